"""AlterPartitionReassignments (45): the active controller decides (KIP-455)."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)


def handle(ctx: RequestContext, request: AlterPartitionReassignmentsRequest) -> Answer:
    def failed(error: KafkaError) -> AlterPartitionReassignmentsResponse:
        return AlterPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)

    return forward(ctx, request, request.timeout_ms, lambda response: [response], lambda _: True, failed)
