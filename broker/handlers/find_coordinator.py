"""FindCoordinator (10): the broker that coordinates a group.

The coordinator is the leader of the group's partition of ``__consumer_offsets``. The first such request creates this
topic. Until the partition has a leader, the error is COORDINATOR_NOT_AVAILABLE. Skipped: transaction coordinators (key
type 1), of which every client is told that there are none.
"""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.unsupported import NO_TRANSACTIONS, NO_TRANSACTIONS_CODE
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from anabranch.protocol.sentinels import NO_NODE
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.protocol.types import TopicPartition

_GROUP, _TRANSACTION = 0, 1
_FIRST_BATCHED_VERSION = 4


def handle(ctx: RequestContext, request: FindCoordinatorRequest) -> Answer:
    if request.key_type == _GROUP and OFFSETS_TOPIC not in ctx.node.metadata.topics:
        ctx.node.link.topic_creator.start([OFFSETS_TOPIC])
    return _response(ctx, request)


def _response(ctx: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if ctx.api_version >= _FIRST_BATCHED_VERSION:
        return FindCoordinatorResponse(
            coordinators=[_find(ctx, request.key_type, key) for key in request.coordinator_keys]
        )
    found = _find(ctx, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(ctx: RequestContext, key_type: int, key: str) -> Coordinator:
    if key_type == _TRANSACTION:
        return _none(key, NO_TRANSACTIONS_CODE, NO_TRANSACTIONS)
    if key_type != _GROUP:
        return _none(key, ErrorCode.INVALID_REQUEST, f"key type {key_type} is not supported, only groups (0) are")
    tp = TopicPartition(OFFSETS_TOPIC, ctx.node.groups.partition_for(key))
    partition = ctx.node.metadata.partition(tp)
    endpoint = None if partition is None else ctx.node.metadata.endpoint(partition.leader, ctx.listener)
    if partition is None or endpoint is None:
        message = f"{tp}, the partition of group {key}, has no live leader with listener {ctx.listener} now"
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    return Coordinator(
        key=key,
        node_id=partition.leader,
        host=endpoint.host,
        port=endpoint.port,
        error_code=ErrorCode.NONE,
        error_message=None,
    )


def _none(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=NO_NODE, host="", port=-1, error_code=code, error_message=message)
