"""LeaderAndIsr (4) version 5, UpdateMetadata (6) version 7, StopReplica (5) versions 0-3: the controller's orders.

A request of an older controller is refused with STALE_CONTROLLER_EPOCH, one meant for an earlier registration of this
broker with STALE_BROKER_EPOCH; newer ones of either are accepted (KAFKA-7235, 9839). Until this broker is registered
they wait: at the same address the controller may still be talking to the process before it, whose log had more.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress

from anabranch.broker import appended_bytes
from anabranch.broker.log.producer_rebuild import catch_up
from anabranch.broker.log.slices import TimeSlice, at_once, in_slices
from anabranch.broker.metadata_cache import PARTITIONS_AT_ONCE
from anabranch.broker.replication.replica_manager import Stopped, Term
from anabranch.broker.request_context import Answer, RequestContext
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from anabranch.protocol.generated.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
)
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.protocol.types import TopicPartition

_FULL = 2
"""The type of a LeaderAndIsr that names every replica the broker is to have."""


def _refusal(ctx: RequestContext, controller_epoch: int, broker_epoch: int) -> ErrorCode:
    node = ctx.node
    if broker_epoch != -1 and broker_epoch < node.broker_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    if not node.replicas.check_controller(controller_epoch):
        return ErrorCode.STALE_CONTROLLER_EPOCH
    return ErrorCode.NONE


def leader_and_isr(ctx: RequestContext, request: LeaderAndIsrRequest) -> Answer:
    node = ctx.node

    async def apply() -> LeaderAndIsrResponse:
        await node.registered.wait()
        async with node.state_change_lock:
            for topic in request.topic_states:
                layout_version = max((state.layout_version for state in topic.partition_states), default=-1)
                await node.dynamic.load_topic(topic.topic_name, topic.topic_id, layout_version)
            code = _refusal(ctx, request.controller_epoch, request.broker_epoch)
            if code is ErrorCode.NONE and not node.replicas.check_term(_term(request)):
                code = ErrorCode.STALE_CONTROLLER_EPOCH
            if code is not ErrorCode.NONE:
                return LeaderAndIsrResponse(error_code=code)
            node.leader_addresses.update((live.broker_id, (live.host_name, live.port)) for live in request.live_leaders)
            return LeaderAndIsrResponse(topics=await _apply(ctx, request))

    return node.later(apply, lambda error: LeaderAndIsrResponse(error_code=error.code))


def _term(request: LeaderAndIsrRequest) -> Term:
    return Term(request.controller_epoch, request.broker_epoch, request.image_number)


async def _apply(ctx: RequestContext, request: LeaderAndIsrRequest) -> list[LeaderAndIsrTopicError]:
    """Partition by partition, with a pause where it takes long: a resize gives every partition a new epoch."""
    topics = []
    work = TimeSlice(ctx.node.env.clock)
    term = _term(request)
    refusal = ErrorCode.NONE
    if request.type == _FULL:
        named = (
            TopicPartition(topic.topic_name, state.partition_index)
            for topic in request.topic_states
            for state in topic.partition_states
        )
        ctx.node.replicas.retire_strays(named, term)
    for topic in request.topic_states:
        errors = []
        for state in topic.partition_states:
            if refusal is ErrorCode.NONE and work.due():
                await work.pause()
                # A newer controller may have spoken meanwhile, or this broker may be registered anew.
                refusal = _refusal(ctx, request.controller_epoch, request.broker_epoch)
            key = TopicPartition(topic.topic_name, state.partition_index)
            log = ctx.node.logs.get(key)
            if log is not None and log.rebuild is not None and state.leader == ctx.node.config.broker_id:
                with suppress(KafkaError):  # what takes the role says so
                    await catch_up(log)  # a leader has to know its producers
                refusal = _refusal(ctx, request.controller_epoch, request.broker_epoch)
            code = refusal or ctx.node.replicas.apply(topic.topic_name, topic.topic_id, state)
            if code is ErrorCode.NONE:
                ctx.node.replicas.note_term(key, term)
            errors.append(LeaderAndIsrPartitionError(partition_index=state.partition_index, error_code=code))
        topics.append(LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors))
    return topics


def update_metadata(ctx: RequestContext, request: UpdateMetadataRequest) -> Answer:
    node = ctx.node
    partitions = sum(len(topic.partition_states) for topic in request.topic_states)
    if node.registered.is_set() and partitions <= PARTITIONS_AT_ONCE:
        return at_once(_update_metadata(ctx, request))

    async def update() -> UpdateMetadataResponse:
        await node.registered.wait()
        async with node.metadata_lock:
            return await in_slices(_update_metadata(ctx, request), TimeSlice(node.env.clock))

    return node.later(update, lambda error: UpdateMetadataResponse(error_code=error.code))


def _update_metadata(
    ctx: RequestContext, request: UpdateMetadataRequest
) -> Generator[None, None, UpdateMetadataResponse]:
    """In steps. It ends early when a newer controller has spoken meanwhile, which tells everything anew."""
    removed: dict[TopicPartition, int] = {}
    code = _refusal(ctx, request.controller_epoch, request.broker_epoch)
    if code is ErrorCode.NONE:
        for _ in ctx.node.metadata.update_in_steps(request, removed):
            yield
            code = _refusal(ctx, request.controller_epoch, request.broker_epoch)
            if code is not ErrorCode.NONE:
                break
    if removed:
        ctx.node.dynamic.forget_topics(key.topic for key in removed)
        ctx.node.groups.on_partitions_deleted(
            {
                key: incarnation
                for key, incarnation in removed.items()
                if key.topic != OFFSETS_TOPIC and not ctx.node.metadata.goes_on(*key)
            }
        )
    if code is not ErrorCode.NONE:
        return UpdateMetadataResponse(error_code=code)
    if created := ctx.node.metadata.take_created():
        ctx.node.groups.on_partitions_created(created)
    ctx.node.retention_holds.take_over(request.topic_states)
    ctx.node.replicas.brokers_changed()
    ctx.node.metadata_was_updated()
    named = [topic.topic_name for topic in request.topic_states]
    return UpdateMetadataResponse(
        stock_producers=ctx.node.stock_producers.report(named, ctx.node.metadata.topics),
        appended_bytes=appended_bytes.report(ctx.node.metrics.appended_bytes, request.topic_states),
    )


def stop_replica(ctx: RequestContext, request: StopReplicaRequest) -> Answer:
    node = ctx.node

    async def stop() -> StopReplicaResponse:
        await node.registered.wait()
        async with node.state_change_lock:
            code = _refusal(ctx, request.controller_epoch, request.broker_epoch)
            if code is not ErrorCode.NONE:
                return StopReplicaResponse(error_code=code)
            return StopReplicaResponse(partition_errors=await _stop(ctx, request))

    return node.later(stop, lambda error: StopReplicaResponse(error_code=error.code))


async def _stop(ctx: RequestContext, request: StopReplicaRequest) -> list[StopReplicaPartitionError]:
    """Partition by partition, each with its own error; with a pause where it takes long, as when a topic is deleted."""
    errors = []
    work = TimeSlice(ctx.node.env.clock)
    refusal = ErrorCode.NONE
    for topic, state in _to_stop(request):
        if refusal is ErrorCode.NONE and work.due():
            await work.pause()
            refusal = _refusal(ctx, request.controller_epoch, request.broker_epoch)
        stopped = ctx.node.replicas.stop(topic, state) if refusal is ErrorCode.NONE else Stopped(refusal)
        errors.append(
            StopReplicaPartitionError(
                topic_name=topic,
                partition_index=state.partition_index,
                error_code=stopped.error_code,
                log_end_offset=stopped.log_end_offset,
            )
        )
    return errors


def _to_stop(request: StopReplicaRequest) -> Iterator[tuple[str, StopReplicaPartitionState]]:
    """What a request of any version asks for, as version 3 has it.

    Before version 3 no leader epoch is named, which is -1, and one flag counts for every partition (KIP-570).
    """
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield topic.topic_name, state
    older = [(partition.topic_name, partition.partition_index) for partition in request.ungrouped_partitions]
    older += [(named.name, index) for named in request.topics for index in named.partition_indexes]
    for name, index in older:
        yield name, StopReplicaPartitionState(partition_index=index, delete_partition=request.delete_partitions)
