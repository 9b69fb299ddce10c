"""ListPartitionReassignments (46): the active controller answers (KIP-455)."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(ctx: RequestContext, request: ListPartitionReassignmentsRequest) -> Answer:
    def failed(error: KafkaError) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)

    return forward(ctx, request, request.timeout_ms, lambda response: [response], lambda _: True, failed)
