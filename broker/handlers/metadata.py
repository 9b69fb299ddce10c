"""Metadata (3): the brokers, topics and leaders that this broker knows.

A topic that does not exist is created if ``auto.create.topics.enable`` and the request's flag allow it. Its error is
LEADER_NOT_AVAILABLE until it has leaders. A broker that has no metadata yet answers once it has received metadata:
librdkafka 2.10 and later drops every broker that a response does not name. Topics and partitions are sorted. Partitions
marked for deletion are included, so that consumers drain them. From version 10 on KIP-253's tags carry the topic's
layout, whether its delivery is ordered, and the incarnations of the topic and of each partition. Version 9 has no such
tags: librdkafka 2.1 requests version 9, cannot skip a tag (librdkafka #4278), and would find no leader. All operations
of a resource are authorised (KIP-430), as in Kafka without an authorizer. Stock clients get the partitions of an
announced split before these partitions have leaders (docs/ordered-resize.md).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from itertools import islice

from anabranch.broker.log.slices import TimeSlice, at_once, in_slices
from anabranch.broker.metadata_cache import PARTITIONS_AT_ONCE, CachedPartition, CachedTopic
from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.acl_operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from anabranch.protocol.sentinels import NO_INCARNATION, NO_LEADER
from anabranch.protocol.topic_names import INTERNAL_TOPICS, is_legal
from anabranch.protocol.types import ZERO_UUID

_FIRST_NULL_VERSION = 1
_FIRST_FLAG_VERSION = 4
_FIRST_TAGS_VERSION = 10
_FIRST_NULL_NAME_VERSION = 12


def handle(ctx: RequestContext, request: MetadataRequest) -> Answer:
    if not ctx.node.metadata.brokers:
        return _once_known(ctx, request)
    asked = request.topics
    if asked is None or (not asked and ctx.api_version < _FIRST_NULL_VERSION):
        topics = ctx.node.metadata.topics
        if sum(len(info.partitions) for info in topics.values()) <= PARTITIONS_AT_ONCE:
            return _response(ctx, request, [at_once(_known(ctx, name)) for name in sorted(topics)])
        return ctx.node.later(
            lambda: _everything(ctx, request), lambda _error: _response(ctx, request, []), may_stop=True
        )
    missing = _missing(ctx, asked)
    may_create = ctx.api_version < _FIRST_FLAG_VERSION or request.allow_auto_topic_creation
    if missing and may_create and ctx.node.config.values.auto_create_topics_enable:
        return _after_creation(ctx, request, asked, missing)
    if sum(_partition_count(ctx, topic) for topic in asked) <= PARTITIONS_AT_ONCE:
        return _response(ctx, request, [at_once(_topic(ctx, topic, {})) for topic in asked])
    return ctx.node.later(
        lambda: _named(ctx, request, asked, {}), lambda _error: _response(ctx, request, []), may_stop=True
    )


async def _named(
    ctx: RequestContext,
    request: MetadataRequest,
    asked: list[MetadataRequestTopic],
    errors: Mapping[str, ErrorCode],
) -> MetadataResponse:
    """The response about the requested topics. Topics are read one after another, and may change in the pauses."""
    topics = []
    work = TimeSlice(ctx.node.env.clock)
    for topic in asked:
        topics.append(await in_slices(_topic(ctx, topic, errors), work))
        if work.due():
            await work.pause()
    return _response(ctx, request, topics)


async def _everything(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """The response about all topics. Topics are read one after another, and may change in the pauses."""
    topics = []
    work = TimeSlice(ctx.node.env.clock)
    for name in sorted(ctx.node.metadata.topics):
        if name in ctx.node.metadata.topics:
            topics.append(await in_slices(_known(ctx, name), work))
            if work.due():
                await work.pause()
    return _response(ctx, request, topics)


def _once_known(ctx: RequestContext, request: MetadataRequest) -> Answer:
    async def wait() -> MetadataResponse:
        await ctx.node.metadata.wait_for(lambda: ctx.node.metadata.brokers, math.inf)
        if request.topics is None or (not request.topics and ctx.api_version < _FIRST_NULL_VERSION):
            return await _everything(ctx, request)
        return await _named(ctx, request, request.topics, {})

    return ctx.node.later(wait, lambda _error: _response(ctx, request, []), may_stop=True)


def _missing(ctx: RequestContext, asked: list[MetadataRequestTopic]) -> list[str]:
    known = ctx.node.metadata.topics
    names = {topic.name for topic in asked if topic.name and topic.name not in known}
    return sorted(name for name in names if is_legal(name))


def _after_creation(
    ctx: RequestContext, request: MetadataRequest, asked: list[MetadataRequestTopic], missing: list[str]
) -> Answer:
    async def create() -> MetadataResponse:
        waited_s = ctx.node.env.clock.monotonic() - ctx.begun  # a long request comes here in slices
        return await _named(ctx, request, asked, await ctx.node.link.topic_creator.create(missing, waited_s))

    def failed(_error: object) -> MetadataResponse:
        errors = dict.fromkeys(missing, ErrorCode.LEADER_NOT_AVAILABLE)
        return _response(ctx, request, [at_once(_topic(ctx, topic, errors)) for topic in asked])

    return ctx.node.later(create, failed, may_stop=True)


def _partition_count(ctx: RequestContext, asked: MetadataRequestTopic) -> int:
    """The number of partitions of a requested topic; 0 if the topic does not exist."""
    name = asked.name or ctx.node.metadata.topic_name(asked.topic_id)
    return 0 if name is None else ctx.node.metadata.partition_count(name) or 0


def _topic(
    ctx: RequestContext, asked: MetadataRequestTopic, errors: Mapping[str, ErrorCode]
) -> Generator[None, None, MetadataResponseTopic]:
    """The answer for a requested topic. It is built in steps, because a topic may have very many partitions."""
    name = asked.name
    if asked.topic_id != ZERO_UUID and not name:
        known_name = ctx.node.metadata.topic_name(asked.topic_id)
        if known_name is None:
            name = None if ctx.api_version >= _FIRST_NULL_NAME_VERSION else ""
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=asked.topic_id)
        return (yield from _known(ctx, known_name))
    name = name or ""
    if name in ctx.node.metadata.topics:
        return (yield from _known(ctx, name))
    code = errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not is_legal(name):
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)


def _known(ctx: RequestContext, name: str) -> Generator[None, None, MetadataResponseTopic]:
    """The answer for a known topic, with the partitions that the topic has at the first step."""
    info = ctx.node.metadata.topics[name]
    shown = MetadataResponseTopic(name=name, topic_id=info.topic_id, is_internal=name in INTERNAL_TOPICS)
    known = iter(list(info.partitions.items()))
    while some := [described(ctx, index, partition) for index, partition in islice(known, PARTITIONS_AT_ONCE)]:
        shown.partitions += some
        if len(some) == PARTITIONS_AT_ONCE:
            yield
    if ctx.session.waits_for_leaders:
        shown.partitions += _announced(info)
    if ctx.session.refreshes_seldom:
        _show_coming_leaders(ctx, info, shown.partitions)
    if info.layout_version >= 0 and ctx.api_version >= _FIRST_TAGS_VERSION:
        shown.undeleted_partition_count = info.undeleted_partition_count
        shown.initial_partition_count = info.initial_partition_count
        shown.layout_version = info.layout_version
        shown.topic_incarnation = info.incarnation
        shown.ordered_delivery = int(ctx.node.is_ordered(name))
    return shown


def _show_coming_leaders(ctx: RequestContext, info: CachedTopic, partitions: list[MetadataResponsePartition]) -> None:
    """Name the future leaders of partitions that never had a leader, to clients that would not ask again soon."""
    for partition in partitions:
        coming = info.coming_leader(partition.partition_index)
        if coming >= 0 and ctx.node.metadata.endpoint(coming, ctx.listener) is not None:
            partition.leader_id, partition.error_code = coming, ErrorCode.NONE


def _announced(info: CachedTopic) -> list[MetadataResponsePartition]:
    """Partitions that an announced split will add. Clients without support for layouts wait for leaders there."""
    return [
        MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=NO_LEADER,
            replica_nodes=[],
            isr_nodes=[],
            offline_replicas=[],
        )
        for index in range(max(info.partitions) + 1, info.announced_partition_count)
    ]


def described(ctx: RequestContext, index: int, partition: CachedPartition) -> MetadataResponsePartition:
    metadata = ctx.node.metadata
    leader, code = partition.leader, ErrorCode.NONE
    if leader not in metadata.brokers:
        leader, code = NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
    elif metadata.endpoint(leader, ctx.listener) is None:
        leader, code = NO_LEADER, ErrorCode.LISTENER_NOT_FOUND
    return MetadataResponsePartition(
        error_code=code,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=[replica for replica in partition.replicas if replica not in metadata.brokers],
        incarnation=partition.incarnation if ctx.api_version >= _FIRST_TAGS_VERSION else NO_INCARNATION,
    )


def _response(ctx: RequestContext, request: MetadataRequest, topics: list[MetadataResponseTopic]) -> MetadataResponse:
    metadata = ctx.node.metadata
    brokers = [
        MetadataResponseBroker(node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker, endpoint in metadata.endpoints(ctx.listener)
    ]
    response = MetadataResponse(
        brokers=brokers, cluster_id=ctx.node.link.cluster_id, controller_id=metadata.controller_id(), topics=topics
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.error_code == ErrorCode.NONE:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
    return response
