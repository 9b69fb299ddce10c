"""AlterPartitionReassignments (45): move partitions to other replicas (KIP-455).

A request begins a move, changes the target of a move in progress, or with null replicas cancels a move. The controller
responds once the change is written, before any data has moved. Every partition has its own error.
"""

from __future__ import annotations

from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions
from anabranch.controller.outcome import Outcome
from anabranch.controller.reassignment import decide, move, moved
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import ZkError


def alter_partition_reassignments(
    context: Context, request: AlterPartitionReassignmentsRequest, version: int
) -> Decisions[Outcome]:
    """Raises ``ControllerMovedError``, ``ImageStaleError``."""
    wanted: dict[str, dict[int, list[int] | None]] = {}
    for topic in request.topics:
        targets = wanted.setdefault(topic.name, {})
        targets.update({partition.partition_index: partition.replicas for partition in topic.partitions})
    refused: dict[TopicPartition, KafkaError] = {}
    for name, targets in wanted.items():
        effects = decide(context.image, name, targets)
        refused |= effects.response
        try:
            yield from move(context, effects)
        except ZkError as error:
            refused |= {tp: KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(error)) for tp in moved(effects)}
    return Outcome(
        AlterPartitionReassignmentsResponse(
            responses=[
                ReassignableTopicResponse(
                    name=topic.name,
                    partitions=[
                        _answer(
                            partition.partition_index,
                            refused.get(TopicPartition(topic.name, partition.partition_index)),
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
    )


def _answer(partition: int, error: KafkaError | None) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=partition,
        error_code=error.code if error is not None else ErrorCode.NONE,
        error_message=error.message if error is not None else None,
    )
