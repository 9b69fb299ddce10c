"""ListPartitionReassignments (46): the active controller answers (KIP-455)."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.generated.list_partition_reassignments import ListPartitionReassignmentsRequest


def handle(ctx: RequestContext, request: ListPartitionReassignmentsRequest) -> Answer:
    return forward(ctx, request, request.timeout_ms)
