"""ListPartitionReassignments (46): the reassignments in progress of all or the named partitions (KIP-455)."""

from __future__ import annotations

from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions
from anabranch.controller.moving_replicas import ReplicaAssignment
from anabranch.controller.outcome import Outcome
from anabranch.controller.reassignment import in_progress
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
    yield from ()  # nothing is written
    named = None
    if request.topics is not None:
        named = {TopicPartition(topic.name, index) for topic in request.topics for index in topic.partition_indexes}
    by_topic: dict[str, list[OngoingPartitionReassignment]] = {}
    for tp, assignment in in_progress(context.image):
        if named is None or tp in named:
            by_topic.setdefault(tp.topic, []).append(_shown(tp.partition, assignment))
    topics = [OngoingTopicReassignment(name=name, partitions=partitions) for name, partitions in by_topic.items()]
    return Outcome(ListPartitionReassignmentsResponse(topics=topics))


def _shown(partition: int, assignment: ReplicaAssignment) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=partition,
        replicas=assignment.replicas,
        adding_replicas=assignment.adding,
        removing_replicas=assignment.removing,
    )
