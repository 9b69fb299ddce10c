"""AlterConfigs (33), versions 0-2, and IncrementalAlterConfigs (44), versions 0-1, for topics and brokers.

AlterConfigs replaces all overrides of a resource, IncrementalAlterConfigs changes single keys. The overrides go to
``/config/...``, and a notification under ``/config/changes`` makes brokers read them. A key that does not exist, a
value out of range and a broker key that cannot be changed while running are INVALID_CONFIG.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.controller.admin.create_topics import check_autoscale, checked_config, config_too_large
from anabranch.controller.admin.outcome import Outcome
from anabranch.controller.config_changes import take, with_ordered_delivery
from anabranch.controller.context import Context
from anabranch.controller.store import chunks
from anabranch.controller.topic_config import ORDERED_KEY
from anabranch.controller.topic_names import name_problem
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterConfigsResourceResponse as IncrementalResourceResponse,
)
from anabranch.runtime.env import CreateOp, DeleteOp, SetOp, ZkRequestTooLargeError
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import Endpoint
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from anabranch.zk_schemas.config_def import ConfigDef, ConfigError, ConfigType, UpdateMode
from anabranch.zk_schemas.config_keys import BROKER_CONFIGS, TOPIC_CONFIGS
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS

ADVERTISED_LISTENERS = "advertised.listeners"
WILDCARDS = ("0.0.0.0", "::")
CHANGES_KEPT = 1000
"""Notifications that stay for brokers to read; a broker that starts reads all configs anyway."""
_PURGE_EVERY = 100
MAX_BROKER_ID_DIGITS = 10
"""Those of the largest int32."""


class ResourceType(enum.IntEnum):
    """A config resource's type on the wire."""

    TOPIC = 2
    BROKER = 4


class Operation(enum.IntEnum):
    """What IncrementalAlterConfigs does with a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class _Resource:
    """A topic, a broker, or the default of all brokers, whose config is changed; ``entity`` as in notifications."""

    entity: str
    path: str
    is_topic: bool
    per_broker: bool
    znode: ConfigZnode
    version: int
    """zkVersion of the config znode, -1: there is none."""

    @property
    def table(self) -> ConfigDef:
        return TOPIC_CONFIGS if self.is_topic else BROKER_CONFIGS


async def alter_configs(context: Context, request: AlterConfigsRequest, version: int) -> Outcome:
    """Raises ``ControllerMovedError``, ``ImageStaleError``."""
    responses, named = [], _counted(request.resources)
    for resource in request.resources:
        given = {config.name: config.value for config in resource.configs}
        error = await _change(context, named, resource, lambda _old, given=given: given, request.validate_only)
        responses.append(_response(AlterConfigsResourceResponse, resource, error))
    return Outcome(AlterConfigsResponse(responses=responses))


async def incremental_alter_configs(context: Context, request: IncrementalAlterConfigsRequest, version: int) -> Outcome:
    """Raises ``ControllerMovedError``, ``ImageStaleError``."""
    responses, named = [], _counted(request.resources)
    for resource in request.resources:
        error = await _change(
            context,
            named,
            resource,
            lambda old, resource=resource: changed_keys(old, resource.configs),
            request.validate_only,
        )
        responses.append(_response(IncrementalResourceResponse, resource, error))
    return Outcome(IncrementalAlterConfigsResponse(responses=responses))


def changed_keys(resource: _Resource, changes: list[AlterableConfig]) -> dict[str, str | None]:
    """The overrides after ``changes``. Raises ``KafkaError``."""
    config: dict[str, str | None] = dict(resource.znode.config)
    for change in changes:
        key = resource.table.get(change.name)
        if change.config_operation == Operation.DELETE:
            config.pop(change.name, None)
        elif change.value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for {change.name}.")
        elif change.config_operation == Operation.SET:
            config[change.name] = change.value
        elif change.config_operation in (Operation.APPEND, Operation.SUBTRACT):
            if key is None or key.type is not ConfigType.LIST:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG, f"Only a list can be appended to or subtracted from, not {change.name}."
                )
            present = dict.fromkeys(key.parse(config.get(change.name) or key.format(key.default) or ""))
            items = dict.fromkeys(key.parse(change.value))
            if change.config_operation == Operation.APPEND:
                present |= items
            else:
                present = {item: None for item in present if item not in items}
            config[change.name] = key.format(list(present))
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Operation {change.config_operation} does not exist.")
    return config


async def _change(context: Context, named: Counter[Hashable], resource: Any, change: Any, validate_only: bool) -> Any:
    """Apply one resource's change; the ``KafkaError`` it is refused with, or None."""
    try:
        _check_unique(named, resource)
        found = _find(context, resource.resource_type, resource.resource_name)
        config = _checked(found, change(found))
        _check_listeners(context, found, resource.resource_name, config)
        if found.is_topic:
            _check_ordered_delivery(context, resource.resource_name, config)
            topic = context.image.topics.get(resource.resource_name)
            if topic is not None:
                check_autoscale(resource.resource_name, config, topic.znode.initial_partition_count)
        op = _operation(found, config)
        try:
            context.store.check_fits([op])
        except ZkRequestTooLargeError as error:
            raise config_too_large(config, error) from error
        if not validate_only:
            await _write(context, found, op)
    except KafkaError as error:
        return error
    except ConfigError as error:
        return KafkaError(ErrorCode.INVALID_CONFIG, str(error))
    return None


def _counted(resources: Iterable[Any]) -> Counter[Hashable]:
    return Counter((resource.resource_type, resource.resource_name) for resource in resources)


def _check_unique(named: Counter[Hashable], resource: Any) -> None:
    if named[resource.resource_type, resource.resource_name] > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The resource is named more than once in the request.")
    twice = [name for name, count in Counter(config.name for config in resource.configs).items() if count > 1]
    if twice:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The key {twice[0]} is given more than once.")


def _find(context: Context, resource_type: int, name: str) -> _Resource:
    if resource_type == ResourceType.TOPIC:
        if (problem := name_problem(name)) is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if not context.image.exists(name):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        entity, path = f"topics/{name}", paths.topic_config(name)
    elif resource_type == ResourceType.BROKER:
        if name and not (name.isascii() and name.isdigit() and len(name) <= MAX_BROKER_ID_DIGITS):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"'{name[:MAX_BROKER_ID_DIGITS]}' is not a broker id.")
        entity, path = f"brokers/{name or paths.DEFAULT_BROKER}", paths.broker_config(int(name) if name else None)
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Configs of resource type {resource_type} cannot be changed.")
    found = context.image.config(path)
    if found.znode is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, found.problem)
    is_topic = resource_type == ResourceType.TOPIC
    return _Resource(entity, path, is_topic, bool(name) and not is_topic, found.znode, found.version)


def _checked(resource: _Resource, config: Mapping[str, str | None]) -> dict[str, str]:
    if resource.is_topic:
        return checked_config(dict(config), len(config))
    for name in config:
        if name in CONTROLLER_CONFIGS and name not in BROKER_CONFIGS:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} is read from the controller's file when it starts.")
    BROKER_CONFIGS.parse_given(config)
    for name, value in config.items():
        mode = BROKER_CONFIGS[name].update_mode
        if mode is UpdateMode.READ_ONLY:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} cannot be changed while a broker runs.")
        if mode is UpdateMode.PER_BROKER and not resource.per_broker:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} can be set for one broker only.")
        if mode is UpdateMode.ALL_BROKERS and resource.per_broker:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"{name} can be set for all brokers only: the controller acts by it."
            )
        if value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for {name}.")
    return {name: value for name, value in config.items() if value is not None}


def _check_listeners(context: Context, resource: _Resource, name: str, config: dict[str, str]) -> None:
    """A running broker's listeners may be reached elsewhere; which there are does not change."""
    given = config.get(ADVERTISED_LISTENERS)
    broker = context.image.brokers.get(int(name)) if resource.per_broker and given is not None else None
    if broker is None:
        return
    try:
        endpoints = [Endpoint.parse(entry) for entry in BROKER_CONFIGS[ADVERTISED_LISTENERS].parse(given)]
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{ADVERTISED_LISTENERS}: {error}") from None
    if any(endpoint.host in WILDCARDS for endpoint in endpoints):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{ADVERTISED_LISTENERS}: clients cannot connect to a wildcard.")
    names = sorted(endpoint.listener for endpoint in endpoints)
    registered = sorted(endpoint.listener for endpoint in broker.registration.endpoints)
    if names != registered:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{ADVERTISED_LISTENERS} has to name the listeners of broker {name}: {', '.join(registered)}.",
        )


def _check_ordered_delivery(context: Context, name: str, config: dict[str, str]) -> None:
    """Whether keys keep their order is settled by the first resize: both kinds of placement agree until then."""
    topic = context.image.topics.get(name)
    settled = topic.znode.ordered_delivery if topic is not None else None
    if with_ordered_delivery(ConfigZnode(config), settled) is not None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{ORDERED_KEY} cannot be changed any more: {name} was resized.")


def _operation(resource: _Resource, config: dict[str, str]) -> CreateOp | SetOp:
    data = ConfigZnode(config, resource.znode.version, resource.znode.extra).encode()
    return CreateOp(resource.path, data) if resource.version < 0 else SetOp(resource.path, data, resource.version)


async def _write(context: Context, resource: _Resource, op: CreateOp | SetOp) -> None:
    versions = await context.store.write([op])
    take(context.image, op.path, op.data, versions[0])
    created = await context.store.notify(paths.CONFIG_CHANGE_PREFIX, ConfigChange(resource.entity).encode())
    number = created.removeprefix(paths.CONFIG_CHANGE_PREFIX)
    if number.isdigit() and int(number) % _PURGE_EVERY == 0:
        await _purge_changes(context)


async def _purge_changes(context: Context) -> None:
    """Delete old notifications. The last one that this controller has read stays: it reads on from there."""
    names = await context.store.children(paths.CONFIG_CHANGES)
    old = [name for name in names[:-CHANGES_KEPT] if name < context.image.config_changes_seen]
    for ops in chunks([[DeleteOp(f"{paths.CONFIG_CHANGES}/{name}")] for name in old]):
        await context.store.write(ops)


def _response(kind: Any, resource: Any, error: KafkaError | None) -> Any:
    return kind(
        error_code=error.code if error is not None else ErrorCode.NONE,
        error_message=error.message if error is not None else None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
