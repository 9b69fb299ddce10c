"""AlterPartitionReassignments (45): the active controller decides (KIP-455)."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.generated.alter_partition_reassignments import AlterPartitionReassignmentsRequest


def handle(ctx: RequestContext, request: AlterPartitionReassignmentsRequest) -> Answer:
    return forward(ctx, request, request.timeout_ms)
