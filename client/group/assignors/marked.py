"""Assigns partitions marked for deletion apart from the others (KIP-253, Proposed Changes 6).

A marked partition gets no new records. If marked and other partitions were assigned together, one member could get
almost only marked partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from anabranch.client.group.assignors.model import Assignment, Assignor, Members
from anabranch.protocol.types import TopicPartition


class PartitionSpan(NamedTuple):
    """A topic's partitions: those below ``undeleted`` and, from there to ``total``, those marked for deletion."""

    total: int
    undeleted: int

    @classmethod
    def of(cls, partitions: Iterable[int], undeleted: int) -> PartitionSpan:
        """The span of a topic in the metadata: ``partitions`` exist; ``undeleted`` is -1 if the metadata has no count.

        A resize may create a partition before another partition with a lower number exists. Both are assigned then.
        """
        total = max(partitions) + 1
        return cls(total, min(undeleted, total) if undeleted > 0 else total)


def spread(assignor: Assignor, topics: Mapping[str, PartitionSpan], members: Members) -> Assignment:
    """Joins the assignor's results for marked and other partitions. Topics without an entry do not exist."""
    result = assignor.assign({name: span.undeleted for name, span in topics.items()}, members)
    marked = {name: span.total - span.undeleted for name, span in topics.items() if span.total > span.undeleted}
    if not marked:
        return result
    first = {name: topics[name].undeleted for name in marked}
    shifted = {
        member_id: replace(
            member,
            topics=member.topics & marked.keys(),
            owned=tuple(
                TopicPartition(tp.topic, tp.partition - first[tp.topic])
                for tp in member.owned
                if tp.partition >= first.get(tp.topic, tp.partition + 1)
            ),
        )
        for member_id, member in members.items()
    }
    for member_id, partitions in assignor.assign(marked, shifted).items():
        result.setdefault(member_id, []).extend(
            TopicPartition(tp.topic, tp.partition + first[tp.topic]) for tp in partitions
        )
    return result
