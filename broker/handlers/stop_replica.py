"""StopReplica (5): the controller removes replicas, each in a leader epoch that the request names (KIP-570).

``broker/request/controller_orders.py`` decides which controller's requests are accepted. ``stop`` and ``is_fenced`` in
``broker/replication/replica_manager.py`` decide which leader epochs are accepted: an older epoch is fenced.
"""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.broker.log.slices import TimeSlice
from anabranch.broker.replication.replica_manager import Stopped
from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.controller_orders import obey, refusal_of
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
)


def handle(ctx: RequestContext, request: StopReplicaRequest) -> Answer:
    node = ctx.node

    async def stop() -> StopReplicaResponse:
        async with node.hosted.state_change_lock:
            code = refusal_of(ctx, request)
            if code is not ErrorCode.NONE:
                return StopReplicaResponse(error_code=code)
            return StopReplicaResponse(partition_errors=await _stop(ctx, request))

    return obey(ctx, request, stop, lambda code: StopReplicaResponse(error_code=code))


async def _stop(ctx: RequestContext, request: StopReplicaRequest) -> list[StopReplicaPartitionError]:
    """Stop the replicas one by one, each with its own error. Pauses in between, as deleting a topic may take long."""
    errors = []
    work = TimeSlice(ctx.node.env.clock)
    refusal = ErrorCode.NONE
    for topic, state in _to_stop(request):
        if refusal is ErrorCode.NONE and work.due():
            await work.pause()
            refusal = refusal_of(ctx, request)
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
    """The partitions of a request of any version, in the form of version 3.

    Before version 3 there is no leader epoch (-1), and one flag applies to every partition (KIP-570).
    """
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield topic.topic_name, state
    older = [(partition.topic_name, partition.partition_index) for partition in request.ungrouped_partitions]
    older += [(named.name, index) for named in request.topics for index in named.partition_indexes]
    for name, index in older:
        yield name, StopReplicaPartitionState(partition_index=index, delete_partition=request.delete_partitions)
