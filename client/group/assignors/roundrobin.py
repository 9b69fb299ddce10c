"""Kafka's RoundRobinAssignor: assigns partitions one by one to the members in turn, if they subscribe to the topic."""

from __future__ import annotations

from anabranch.client.group.assignors.model import Assignment, Assignor, Members, PartitionCounts, in_member_order
from anabranch.protocol.types import TopicPartition


class RoundRobinAssignor(Assignor):
    name = "roundrobin"

    def assign(self, partition_counts: PartitionCounts, members: Members) -> Assignment:
        result: Assignment = {member_id: [] for member_id in members}
        order = in_member_order(members)
        wanted = {topic for member in members.values() for topic in member.topics}
        at = 0
        for topic in sorted(wanted & partition_counts.keys()):
            for partition in range(partition_counts[topic]):
                while topic not in members[order[at % len(order)]].topics:
                    at += 1
                result[order[at % len(order)]].append(TopicPartition(topic, partition))
                at += 1
        return result
