"""DescribeConfigs (32): configs of topics (resource type 2), brokers (4) and loggers (8).

Each config comes with its source.

Topic overrides are read from their znode, so any broker answers for any topic. A broker answers for itself and, with an
empty name, for the default of all brokers; a request for another broker is INVALID_REQUEST, as in Kafka.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from itertools import islice

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.config_resources import ResourceType
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from anabranch.runtime import broker_loggers
from anabranch.runtime.env import NoNodeError
from anabranch.runtime.turns import pause
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.config import ConfigZnode
from anabranch.zk_schemas.config_def import REQUIRED, ConfigKey
from anabranch.zk_schemas.topic_keys import TOPIC_CONFIGS

_ALL_KEYS = frozenset(key.name for keys in (TOPIC_CONFIGS, BROKER_CONFIGS) for key in keys)
_NAMES_AT_ONCE = 10_000


class ValueSource(enum.IntEnum):
    """Where a value comes from (Kafka's ``ValueSource``)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class _Layers:
    """The texts that were set, by layer; the first layer that has a key wins."""

    def __init__(
        self, topic: Mapping[str, str], own: Mapping[str, str], default: Mapping[str, str], static: Mapping[str, str]
    ) -> None:
        self.topic = topic
        self.default = default
        self.brokers = (
            (ValueSource.DYNAMIC_BROKER, own),
            (ValueSource.DYNAMIC_DEFAULT_BROKER, default),
            (ValueSource.STATIC_BROKER, static),
        )

    def of_broker_key(self, name: str) -> list[DescribeConfigsSynonym]:
        found = [
            DescribeConfigsSynonym(name=name, value=layer[name], source=source)
            for source, layer in self.brokers
            if name in layer
        ]
        key = BROKER_CONFIGS[name]
        if key.default is not None and key.default is not REQUIRED:
            default = DescribeConfigsSynonym(name=name, value=key.format(key.default), source=ValueSource.DEFAULT)
            found.append(default)
        return found

    def of_default_alone(self, name: str) -> list[DescribeConfigsSynonym]:
        """Describe the default of all brokers, without the answering broker's own values."""
        return [synonym for synonym in self.of_broker_key(name) if synonym.source == ValueSource.DYNAMIC_DEFAULT_BROKER]

    def of_topic_key(self, key: ConfigKey) -> list[DescribeConfigsSynonym]:
        found = []
        if key.name in self.topic:
            value = self.topic[key.name]
            found.append(DescribeConfigsSynonym(name=key.name, value=value, source=ValueSource.TOPIC))
        for synonym in key.synonyms:
            found += self.of_broker_key(synonym.name)
        return found


def handle(ctx: RequestContext, request: DescribeConfigsRequest) -> Answer:
    async def describe() -> DescribeConfigsResponse:
        results = []
        for resource in request.resources:
            try:
                configs = await _describe(ctx, request, resource)
                results.append(_result(resource, configs, None))
            except KafkaError as error:
                results.append(_result(resource, [], error))
        return DescribeConfigsResponse(results=results)

    def failed(error: KafkaError) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(results=[_result(resource, [], error) for resource in request.resources])

    return ctx.node.later(describe, failed, may_stop=True)


def _result(
    resource: DescribeConfigsResource, configs: list[DescribeConfigsResourceResult], error: KafkaError | None
) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


async def _describe(
    ctx: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    node = ctx.node
    name = resource.resource_name
    wanted = await _wanted(resource)
    if resource.resource_type == ResourceType.TOPIC:
        if name not in node.metadata.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        layers = await _layers(ctx, name)
        values = node.dynamic.topic_values_with(layers.topic)
        return [
            _entry(request, key, key.format(values[key.name]), layers.of_topic_key(key), False)
            for key in TOPIC_CONFIGS
            if key.name in wanted
        ]
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        return broker_loggers.describe(node.config.broker_id, resource)
    if resource.resource_type != ResourceType.BROKER:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"resource type {resource.resource_type} has no configs; topics (2), brokers (4) and loggers (8) have",
        )
    layers = await _layers(ctx, None)
    if name == "":
        return [
            _entry(request, key, layers.default[key.name], layers.of_default_alone(key.name), not key.dynamic)
            for key in BROKER_CONFIGS
            if key.name in layers.default and key.name in wanted
        ]
    if name != str(node.config.broker_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"broker {node.config.broker_id} was asked for the configs of broker {name!r}, which only that broker has",
        )
    values = node.dynamic.values.by_key()
    return [
        _entry(request, key, key.format(values[key.name]), layers.of_broker_key(key.name), not key.dynamic)
        for key in BROKER_CONFIGS
        if key.name in wanted
    ]


async def _wanted(resource: DescribeConfigsResource) -> frozenset[str]:
    """The names of the keys to describe; a null or empty list stands for all keys."""
    named = iter(resource.configuration_keys or _ALL_KEYS)
    wanted: set[str] = set()
    while some := list(islice(named, _NAMES_AT_ONCE)):
        wanted |= _ALL_KEYS.intersection(some)
        if len(some) == _NAMES_AT_ONCE:
            await pause()
    return frozenset(wanted)


async def _layers(ctx: RequestContext, topic: str | None) -> _Layers:
    broker_id = ctx.node.config.broker_id
    overrides = {} if topic is None else await _read(ctx, ConfigZnode.topic_path(topic))
    own = _dynamic(await _read(ctx, ConfigZnode.broker_path(broker_id)))
    default = _dynamic(await _read(ctx, ConfigZnode.broker_path(None)))
    return _Layers(overrides, own, default, ctx.node.config.given)


def _dynamic(given: Mapping[str, str]) -> dict[str, str]:
    """The given values, without keys that were set by hand but cannot change while a broker runs."""
    return {name: value for name, value in given.items() if name in BROKER_CONFIGS and BROKER_CONFIGS[name].dynamic}


async def _read(ctx: RequestContext, path: str) -> dict[str, str]:
    try:
        return ConfigZnode.decode(path, (await ctx.node.link.zk.get(path)).data).config
    except NoNodeError:
        return {}


def _entry(
    request: DescribeConfigsRequest,
    key: ConfigKey,
    value: str | None,
    synonyms: list[DescribeConfigsSynonym],
    read_only: bool,
) -> DescribeConfigsResourceResult:
    source = synonyms[0].source if synonyms else ValueSource.DEFAULT
    return DescribeConfigsResourceResult(
        name=key.name,
        value=None if key.sensitive else value,
        read_only=read_only,
        config_source=source,
        is_sensitive=key.sensitive,
        synonyms=synonyms if request.include_synonyms else [],
        config_type=key.type,
        documentation=key.doc if request.include_documentation else None,
    )
