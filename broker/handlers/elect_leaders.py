"""ElectLeaders (43): the active controller decides.

The request to the controller has the highest version, because its response has an error for the whole request.
"""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


def handle(ctx: RequestContext, request: ElectLeadersRequest) -> Answer:
    def failed(error: KafkaError) -> ElectLeadersResponse:
        """Version 0 has no error for the whole request, so every partition gets the error."""
        return ElectLeadersResponse(
            error_code=error.code,
            replica_election_results=[
                ReplicaElectionResult(
                    topic=topic.topic,
                    partition_result=[
                        PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)
                        for index in topic.partitions
                    ],
                )
                for topic in request.topic_partitions or []
            ],
        )

    version = API[ApiKey.ELECT_LEADERS].max_version
    return forward(ctx, request, request.timeout_ms, lambda response: [response], lambda _: True, failed, version)
