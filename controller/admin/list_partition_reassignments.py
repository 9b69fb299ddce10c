"""ListPartitionReassignments (46): the reassignments in progress of all or the named partitions (KIP-455)."""

from __future__ import annotations

from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions
from anabranch.controller.moving_replicas import ReplicaAssignment
from anabranch.controller.outcome import Outcome
from anabranch.controller.reassignment import reassignment_of
from anabranch.protocol.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from anabranch.protocol.types import TopicPartition


def list_partition_reassignments(
    context: Context, request: ListPartitionReassignmentsRequest, version: int
) -> Decisions[Outcome]:
    """Answer a slice, which always names partitions (``slices.py``)."""
    yield from ()  # nothing is written
    topics = []
    for topic in request.topics or ():
        partitions = []
        for index in topic.partition_indexes:
            assignment = reassignment_of(context.image, TopicPartition(topic.name, index))
            if assignment is not None:
                partitions.append(_shown(index, assignment))
        if partitions:
            topics.append(OngoingTopicReassignment(name=topic.name, partitions=partitions))
    return Outcome(ListPartitionReassignmentsResponse(topics=topics))


def _shown(partition: int, assignment: ReplicaAssignment) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=partition,
        replicas=assignment.replicas,
        adding_replicas=assignment.adding,
        removing_replicas=assignment.removing,
    )
