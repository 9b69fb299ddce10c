"""AlterConfigs (33): replace all overrides of topics and brokers. IncrementalAlterConfigs decides by the same rules.

The overrides go to ``/config/...``, and a notification under ``/config/changes`` makes brokers read them. The error is
INVALID_CONFIG for an unknown key, for a value out of range, and for a broker key that cannot change while the broker
runs.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from anabranch.controller.admin.create_topics import check_autoscale, checked_config, config_too_large
from anabranch.controller.config_changes import with_ordered_delivery
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.controller.outcome import Outcome
from anabranch.controller.topic_config import ORDERED_KEY
from anabranch.controller.topic_names import name_problem
from anabranch.protocol.config_resources import ResourceType
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.alter_configs import AlterableConfig as GivenConfig
from anabranch.protocol.generated.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from anabranch.protocol.generated.incremental_alter_configs import AlterConfigsResource as IncrementalResource
from anabranch.protocol.generated.incremental_alter_configs import IncrementalAlterConfigsRequest
from anabranch.runtime.env import CreateOp, SetOp, ZkOp, ZkRequestTooLargeError
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.broker_registration import Endpoint
from anabranch.zk_schemas.config import ConfigZnode
from anabranch.zk_schemas.config_def import ConfigDef, ConfigError, UpdateMode
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS
from anabranch.zk_schemas.topic_keys import TOPIC_CONFIGS

ADVERTISED_LISTENERS = "advertised.listeners"
WILDCARDS = ("0.0.0.0", "::")
MAX_BROKER_ID_DIGITS = 10
"""The largest int32 has ten digits."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Resource:
    """The config of a topic, a broker or all brokers. ``entity`` is its name in change notifications."""

    entity: str
    path: str
    is_topic: bool
    per_broker: bool
    znode: ConfigZnode
    version: int
    """The zkVersion of the config znode; -1 if there is none."""

    @property
    def table(self) -> ConfigDef:
        return TOPIC_CONFIGS if self.is_topic else BROKER_CONFIGS


@dataclass(frozen=True, slots=True)
class ConfigsDemand:
    """A request for one resource. ``changed`` computes the new overrides from the current resource."""

    resource: AlterConfigsResource | IncrementalResource
    changed: Callable[[Resource], Mapping[str, str | None]]
    validate_only: bool = False
    is_repeated: bool = False
    """Whether the request names the resource more than once."""


def alter_configs(context: Context, request: AlterConfigsRequest, version: int) -> Decisions[Outcome]:
    """Raises ``ControllerMovedError``, ``ImageStaleError``."""
    responses = yield from answer_each(context, request, given_keys, AlterConfigsResourceResponse)
    return Outcome(AlterConfigsResponse(responses=responses))


def answer_each(
    context: Context,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    changed: Callable[..., Mapping[str, str | None]],
    response: type[R],
) -> Decisions[list[R]]:
    """Decide a request for each resource. ``changed(resource, changes=...)`` returns its new overrides.

    A resource that the request names more than once is refused, with one answer.

    Raises ``ControllerMovedError``, ``ImageStaleError``.
    """
    responses, named = [], counted(request.resources)
    for resource in request.resources:
        times = named.pop(key_of(resource), 0)
        if not times:
            continue  # answered already
        of_resource = functools.partial(changed, changes=resource.configs)
        demand = ConfigsDemand(resource, of_resource, request.validate_only, times > 1)
        effects = decide(context.image, demand, context.store.check_fits)
        yield effects
        responses.append(response_of(response, resource, effects.response))
    return responses


def given_keys(_resource: Resource, changes: list[GivenConfig]) -> dict[str, str | None]:
    """The overrides of an AlterConfigs request, which replace all existing ones."""
    return {change.name: change.value for change in changes}


def decide(image: ClusterImage, demand: ConfigsDemand, check_fits: Callable[[Sequence[ZkOp]], None]) -> Effects:
    """The effects of a request for one resource; ``response`` is the ``KafkaError`` of a refusal, or None.

    ``check_fits`` raises ``ZkRequestTooLargeError``.
    """
    effects = Effects()
    try:
        written = _written(image, demand, check_fits)
        if not demand.validate_only:
            effects = written
    except KafkaError as error:
        effects = Effects(response=error.with_traceback(None))  # the traceback refers to these effects
    except ConfigError as error:
        effects = Effects(response=KafkaError(ErrorCode.INVALID_CONFIG, str(error)))
    return effects


def _written(image: ClusterImage, demand: ConfigsDemand, check_fits: Callable[[Sequence[ZkOp]], None]) -> Effects:
    """The write of the new overrides. Raises ``KafkaError``, ``ConfigError``."""
    name = demand.resource.resource_name
    _check_unique(demand)
    found = _find(image, demand.resource.resource_type, name)
    config = _checked(found, demand.changed(found))
    _check_listeners(image, found, name, config)
    topic = image.topics.get(name)
    if found.is_topic and topic is not None:
        _check_ordered_delivery(topic, config)
        check_autoscale(name, config, topic.znode.initial_partition_count)
    op = _operation(found, config)
    try:
        check_fits([op])
    except ZkRequestTooLargeError as error:
        raise config_too_large(config, error) from error
    return Effects(writes=(op,), notify=(found.entity,))


def key_of(resource: AlterConfigsResource | IncrementalResource) -> Hashable:
    return resource.resource_type, resource.resource_name


def counted(resources: Iterable[AlterConfigsResource | IncrementalResource]) -> Counter[Hashable]:
    return Counter(map(key_of, resources))


def _check_unique(demand: ConfigsDemand) -> None:
    if demand.is_repeated:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The resource is named more than once in the request.")
    twice = [name for name, count in Counter(config.name for config in demand.resource.configs).items() if count > 1]
    if twice:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The key {twice[0]} is given more than once.")


def _find(image: ClusterImage, resource_type: int, name: str) -> Resource:
    if resource_type == ResourceType.TOPIC:
        if (problem := name_problem(name)) is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if not image.exists(name):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        entity, path = f"topics/{name}", paths.topic_config(name)
    elif resource_type == ResourceType.BROKER:
        if name and not (name.isascii() and name.isdigit() and len(name) <= MAX_BROKER_ID_DIGITS):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"'{name[:MAX_BROKER_ID_DIGITS]}' is not a broker id.")
        broker = int(name) if name else None  # 007 is broker 7, as in Kafka
        entity = f"brokers/{paths.DEFAULT_BROKER if broker is None else broker}"
        path = paths.broker_config(broker)
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Configs of resource type {resource_type} cannot be changed.")
    found = image.config(path)
    if found.znode is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, found.problem)
    is_topic = resource_type == ResourceType.TOPIC
    return Resource(entity, path, is_topic, bool(name) and not is_topic, found.znode, found.version)


def _checked(resource: Resource, config: Mapping[str, str | None]) -> dict[str, str]:
    if resource.is_topic:
        return checked_config(dict(config), len(config))
    for name in config:
        if name in CONTROLLER_CONFIGS and name not in BROKER_CONFIGS:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{name} cannot be changed by a request: a controller reads it from its file when it starts.",
            )
    BROKER_CONFIGS.parse_given(config)
    for name, value in config.items():
        mode = BROKER_CONFIGS[name].update_mode
        if mode is UpdateMode.READ_ONLY:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} cannot be changed while a broker runs.")
        if mode is UpdateMode.PER_BROKER and not resource.per_broker:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} can only be set for each broker, not for all brokers.")
        if mode is UpdateMode.ALL_BROKERS and resource.per_broker:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{name} can only be set for all brokers, not for one: the controller uses it.",
            )
        if value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for {name}.")
    return {name: value for name, value in config.items() if value is not None}


def _check_listeners(image: ClusterImage, resource: Resource, name: str, config: dict[str, str]) -> None:
    """A running broker's listeners may get other addresses, but their names must stay."""
    given = config.get(ADVERTISED_LISTENERS)
    broker = image.brokers.get(int(name)) if resource.per_broker and given is not None else None
    if broker is None:
        return
    try:
        endpoints = [Endpoint.parse(entry) for entry in BROKER_CONFIGS[ADVERTISED_LISTENERS].parse(given)]
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{ADVERTISED_LISTENERS}: {error}") from None
    if any(endpoint.host in WILDCARDS for endpoint in endpoints):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{ADVERTISED_LISTENERS}: clients cannot connect to a wildcard address: {given}"
        )
    names = sorted(endpoint.listener for endpoint in endpoints)
    registered = sorted(endpoint.listener for endpoint in broker.registration.endpoints)
    if names != registered:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{ADVERTISED_LISTENERS} has to name the listeners of broker {name}: {', '.join(registered)}.",
        )


def _check_ordered_delivery(topic: TopicImage, config: dict[str, str]) -> None:
    """Refuse to change ``enable.ordered.delivery`` after the topic's first resize.

    Before the first resize, a key's partition is the same under both values.
    """
    if with_ordered_delivery(ConfigZnode(config), topic.znode.ordered_delivery) is not None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{ORDERED_KEY} cannot be changed any more: {topic.name} was resized."
        )


def _operation(resource: Resource, config: dict[str, str]) -> CreateOp | SetOp:
    data = ConfigZnode(config, resource.znode.version, resource.znode.extra).encode()
    return CreateOp(resource.path, data) if resource.version < 0 else SetOp(resource.path, data, resource.version)


def response_of(kind: Any, resource: Any, error: KafkaError | None) -> Any:
    return kind(
        error_code=error.code if error is not None else ErrorCode.NONE,
        error_message=error.message if error is not None else None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
