"""Kafka's RangeAssignor: each topic's partitions in consecutive runs. Topics of equal counts are assigned alike."""

from __future__ import annotations

from anabranch.client.group.assignors.model import Assignment, Assignor, Members, PartitionCounts, in_member_order
from anabranch.protocol.types import TopicPartition


class RangeAssignor(Assignor):
    name = "range"

    def assign(self, partition_counts: PartitionCounts, members: Members) -> Assignment:
        result: Assignment = {member_id: [] for member_id in members}
        order = in_member_order(members)
        for topic in sorted(partition_counts):
            interested = [m for m in order if topic in members[m].topics]
            if not interested:
                continue
            share, extra = divmod(partition_counts[topic], len(interested))
            first = 0
            for at, member_id in enumerate(interested):
                count = share + (1 if at < extra else 0)
                result[member_id] += [TopicPartition(topic, p) for p in range(first, first + count)]
                first += count
        return result
