"""Cooperative sticky assignment (KIP-429): balanced, with as few moves as possible.

A partition that moves is left out until its present owner has revoked it. The present owner then joins again, and the
second rebalance assigns the partition to the new owner. The user data is what Kafka's CooperativeStickyAssignor sends:
the generation as int32.
"""

from __future__ import annotations

import struct

from anabranch.client.group.assignors.model import Assignment, Assignor, Members, MemberSubscription, PartitionCounts
from anabranch.protocol.sentinels import NO_GENERATION
from anabranch.protocol.types import TopicPartition

_GENERATION = struct.Struct(">i")


class CooperativeStickyAssignor(Assignor):
    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, generation_id: int) -> bytes | None:
        return _GENERATION.pack(generation_id)

    def assign(self, partition_counts: PartitionCounts, members: Members) -> Assignment:
        owners = valid_owners(partition_counts, members)
        assignment = sticky_assign(partition_counts, members, owners)
        claimed = {tp: m for m, member in sorted(members.items()) for tp in member.owned}
        claimed.update(owners)
        return {
            member_id: sorted(tp for tp in tps if claimed.get(tp, member_id) == member_id)
            for member_id, tps in assignment.items()
        }


def _generation(member: MemberSubscription) -> int:
    """The generation of a member's claims: in the user data, or since subscription version 2 in a field (KIP-792)."""
    if member.generation_id >= 0:
        return member.generation_id
    if member.user_data is not None and len(member.user_data) >= _GENERATION.size:
        generation: int = _GENERATION.unpack_from(member.user_data)[0]
        return generation
    return NO_GENERATION


def valid_owners(partition_counts: PartitionCounts, members: Members) -> dict[TopicPartition, str]:
    """The owner of each partition. If several members claim a partition, the newest generation's claim counts.

    If several claims are of the newest generation, no claim counts.
    """
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id in sorted(members):
        member = members[member_id]
        generation = _generation(member)
        for tp in member.owned:
            if tp.topic not in member.topics or tp.partition >= partition_counts.get(tp.topic, 0):
                continue
            other = best.get(tp)
            if other is None or generation > other[0]:
                best[tp] = (generation, member_id)
            elif generation == other[0]:
                best[tp] = (generation, None)
    return {tp: owner for tp, (_, owner) in best.items() if owner is not None}


def sticky_assign(
    partition_counts: PartitionCounts, members: Members, owners: dict[TopicPartition, str]
) -> dict[str, set[TopicPartition]]:
    """Assign every partition to a member that subscribes to it, with loads as even as possible and few moves.

    Each move takes a partition from a member to a member with at least two partitions fewer. So the sum of squared
    loads falls with each move, and the loop ends.
    """
    given: dict[str, set[TopicPartition]] = {member_id: set() for member_id in sorted(members)}
    for tp, owner in owners.items():
        given[owner].add(tp)
    candidates = {topic: [m for m in given if topic in members[m].topics] for topic in sorted(partition_counts)}
    free = [
        TopicPartition(topic, p)
        for topic, count in sorted(partition_counts.items())
        if candidates[topic]
        for p in range(count)
        if TopicPartition(topic, p) not in owners
    ]
    # Partitions with the fewest possible owners come first. Later, these members may have their share already.
    free.sort(key=lambda tp: (len(candidates[tp.topic]), tp))
    for tp in free:
        given[min(candidates[tp.topic], key=lambda m: len(given[m]))].add(tp)
    while _move_one(given, candidates, owners):
        pass
    return given


def _move_one(
    given: dict[str, set[TopicPartition]], candidates: dict[str, list[str]], owners: dict[TopicPartition, str]
) -> bool:
    """Move a partition from the most loaded member that can give one away. Returns False when loads are even.

    One call moves only one partition, because the next partition may have to come from another member.
    """
    for member_id in sorted(given, key=lambda m: -len(given[m])):
        # Partitions that this member owned before are the last to leave it.
        for tp in sorted(given[member_id], key=lambda tp: (owners.get(tp) == member_id, tp)):
            least = min(candidates[tp.topic], key=lambda m: len(given[m]))
            if len(given[least]) + 1 < len(given[member_id]):
                given[member_id].discard(tp)
                given[least].add(tp)
                return True
    return False
