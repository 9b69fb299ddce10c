"""The assignment that a member made as its group's leader. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from anabranch.client.cluster import Cluster
from anabranch.client.group.assignors import Assignor, Members, PartitionSpan, spread
from anabranch.protocol.types import TopicPartition

_NO_PARTITIONS = PartitionSpan(0, 0)


@dataclass(frozen=True, slots=True)
class LedAssignment:
    """The ``partitions`` of each member, and the input of the assignor.

    ``spans`` has every topic that some member subscribes to. An unknown topic has no partitions.
    """

    assignor: Assignor
    members: Members
    spans: Mapping[str, PartitionSpan]
    partitions: Mapping[str, list[TopicPartition]]

    @classmethod
    def make(cls, assignor: Assignor, members: Members, spans: Mapping[str, PartitionSpan]) -> Self:
        known = {topic: span for topic, span in spans.items() if span != _NO_PARTITIONS}
        return cls(assignor, members, spans, spread(assignor, known, members))

    def owners(self) -> dict[TopicPartition, str]:
        return {tp: member_id for member_id, tps in self.partitions.items() for tp in tps}

    def has_marked(self) -> bool:
        """Whether some of the partitions were marked for deletion."""
        return any(span.undeleted < span.total for span in self.spans.values())

    def for_spans(self, spans: Mapping[str, PartitionSpan]) -> Self | None:
        """Return this assignment if it also fits ``spans``, or None if a rebalance has to make another assignment.

        A cooperative assignor often keeps all partitions at a merge and when marked partitions open again. With another
        assignor, members give up all partitions at a rebalance, and the assignor does not know their owners.
        """
        if spans == self.spans:
            return self
        if not self.assignor.cooperative:
            return None
        owning = {
            member_id: replace(member, owned=tuple(self.partitions.get(member_id, ())), generation_id=0)
            for member_id, member in self.members.items()
        }
        try:
            again = self.make(self.assignor, owning, spans).partitions
        except ValueError:
            return None  # in the rebalance, the user gets their assignor's error
        same = all(sorted(again.get(m, ())) == sorted(self.partitions.get(m, ())) for m in self.members)
        return replace(self, spans=spans) if same else None


def spans_of(cluster: Cluster, topics: Iterable[str]) -> dict[str, PartitionSpan]:
    """The partitions of the topics in the metadata."""
    return {topic: _span(cluster, topic) for topic in topics}


def _span(cluster: Cluster, name: str) -> PartitionSpan:
    topic = cluster.topics.get(name)
    if topic is None or not topic.partitions:
        return _NO_PARTITIONS
    return PartitionSpan.of(topic.partitions, topic.undeleted_partition_count)
