"""AlterPartitionReassignments (45) and ListPartitionReassignments (46), version 0 (KIP-455).

AlterPartitionReassignments begins a move to other replicas, or gives a move in progress another target. Null replicas
cancel the move. The controller responds once the change is written, before any data has moved. Every partition has its
own error.
"""

from __future__ import annotations

from anabranch.controller.admin.outcome import Outcome
from anabranch.controller.context import Context
from anabranch.controller.reassignment import decide, in_progress, move, moved
from anabranch.controller.replica_assignment import ReplicaAssignment
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from anabranch.protocol.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import ZkError


async def alter_partition_reassignments(
    context: Context, request: AlterPartitionReassignmentsRequest, version: int
) -> Outcome:
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
            await move(context, effects)
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


async def list_partition_reassignments(
    context: Context, request: ListPartitionReassignmentsRequest, version: int
) -> Outcome:
    """List the reassignments in progress, of all partitions or of the named ones."""
    named = None
    if request.topics is not None:
        named = {TopicPartition(topic.name, index) for topic in request.topics for index in topic.partition_indexes}
    by_topic: dict[str, list[OngoingPartitionReassignment]] = {}
    for tp, assignment in in_progress(context.image):
        if named is None or tp in named:
            by_topic.setdefault(tp.topic, []).append(_shown(tp.partition, assignment))
    topics = [OngoingTopicReassignment(name=name, partitions=partitions) for name, partitions in by_topic.items()]
    return Outcome(ListPartitionReassignmentsResponse(topics=topics))


def _answer(partition: int, error: KafkaError | None) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=partition,
        error_code=error.code if error is not None else ErrorCode.NONE,
        error_message=error.message if error is not None else None,
    )


def _shown(partition: int, assignment: ReplicaAssignment) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=partition,
        replicas=assignment.replicas,
        adding_replicas=assignment.adding,
        removing_replicas=assignment.removing,
    )
