"""An assignor for scenes in which a member keeps its partitions."""

from __future__ import annotations

from anabranch.client.group.assignors.model import Assignment, Members, PartitionCounts
from anabranch.client.group.assignors.range import RangeAssignor


class KeepingRange(RangeAssignor):
    """A cooperative range assignor: members keep their partitions, and a member that is cut off keeps its positions."""

    name = "keeping range"
    cooperative = True

    def assign(self, partition_counts: PartitionCounts, members: Members) -> Assignment:
        owned = {tp: member_id for member_id in members for tp in members[member_id].owned}
        found = super().assign(partition_counts, members)
        return {m: [tp for tp in tps if owned.get(tp, m) == m] for m, tps in found.items()}
