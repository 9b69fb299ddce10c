"""LeaderAndIsr (4): the controller assigns replicas to this broker and names their leaders.

``broker/request/controller_orders.py`` decides which controller's requests are accepted.
"""

from __future__ import annotations

from contextlib import suppress

from anabranch.broker.log.producer_rebuild import catch_up
from anabranch.broker.log.slices import TimeSlice
from anabranch.broker.node import Node
from anabranch.broker.replication.replica_manager import Term
from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.controller_orders import obey, refusal_of
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from anabranch.protocol.sentinels import NO_LAYOUT_VERSION
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import ZkError

_FULL = 2
"""The type of a full request: it names every replica that the broker must have."""


def handle(ctx: RequestContext, request: LeaderAndIsrRequest) -> Answer:
    node = ctx.node

    async def apply() -> LeaderAndIsrResponse:
        async with node.hosted.state_change_lock:
            for topic in request.topic_states:
                layout_version = max(
                    (state.layout_version for state in topic.partition_states), default=NO_LAYOUT_VERSION
                )
                await node.dynamic.load_topic(topic.topic_name, topic.topic_id, layout_version)
            code = refusal_of(ctx, request)
            if code is ErrorCode.NONE and not node.replicas.check_term(_term(request)):
                code = ErrorCode.STALE_CONTROLLER_EPOCH
            if code is not ErrorCode.NONE:
                if request.controller_epoch < node.replicas.controller_epoch:
                    with suppress(ZkError):  # the request is refused in any case
                        await node.link.older_zookeeper.check_controller(
                            request.controller_epoch, node.replicas.controller_epoch
                        )
                return LeaderAndIsrResponse(error_code=code)
            node.link.older_zookeeper.controller_accepted()
            node.hosted.leader_addresses.update(
                (live.broker_id, (live.host_name, live.port)) for live in request.live_leaders
            )
            return LeaderAndIsrResponse(topics=await _apply(ctx, request))

    return obey(ctx, request, apply, lambda code: LeaderAndIsrResponse(error_code=code))


def _term(request: LeaderAndIsrRequest) -> Term:
    return Term(request.controller_epoch, request.broker_epoch, request.image_number)


async def _apply(ctx: RequestContext, request: LeaderAndIsrRequest) -> list[LeaderAndIsrTopicError]:
    """Apply the request partition by partition, with pauses: a resize gives every partition a new epoch."""
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
                # A newer controller may have sent a request meanwhile, or this broker may have a new registration.
                refusal = refusal_of(ctx, request)
            key = TopicPartition(topic.topic_name, state.partition_index)
            log = ctx.node.logs.get(key)
            if log is not None and log.rebuild is not None and state.leader == ctx.node.config.broker_id:
                with suppress(KafkaError):  # the error is reported when the role is applied
                    await catch_up(log)  # a leader has to know its producers
                refusal = refusal_of(ctx, request)
            code, why = refusal or ctx.node.replicas.apply(topic.topic_name, topic.topic_id, state), None
            if code is ErrorCode.NONE:
                ctx.node.replicas.note_term(key, term)
                ctx.node.link.older_zookeeper.accepted(key)
            elif refusal is ErrorCode.NONE and code is ErrorCode.STALE_CONTROLLER_EPOCH:
                code, why = await _late_or_newer(ctx.node, key)
                refusal = refusal_of(ctx, request)
            errors.append(
                LeaderAndIsrPartitionError(partition_index=state.partition_index, error_code=code, error_message=why)
            )
        topics.append(LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors))
    return topics


async def _late_or_newer(node: Node, key: TopicPartition) -> tuple[ErrorCode, str | None]:
    """The error for a state that is older than the replica here: the request is late, or ZooKeeper's data are older."""
    known = node.replicas.standing(key)
    if known is None:
        return ErrorCode.STALE_CONTROLLER_EPOCH, None
    try:
        why = await node.link.older_zookeeper.check_log(key, known)
    except ZkError:
        return ErrorCode.REPLICA_NOT_AVAILABLE, None  # the controller sends the state again
    if not why:
        return ErrorCode.STALE_CONTROLLER_EPOCH, None
    node.replicas.refuse(key)
    return ErrorCode.FENCED_LEADER_EPOCH, why
