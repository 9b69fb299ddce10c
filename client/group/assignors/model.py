"""The types of an assignor's input and output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from anabranch.protocol.sentinels import NO_GENERATION
from anabranch.protocol.types import TopicPartition


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The subscription that one member sent when it joined."""

    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    """Partitions that the member still holds (cooperative protocol)."""
    generation_id: int = NO_GENERATION
    """The generation in which the member got ``owned``; -1 if the member sent no generation."""
    group_instance_id: str | None = None
    rack_id: str | None = None
    user_data: bytes | None = field(default=None, repr=False)


Members: TypeAlias = Mapping[str, MemberSubscription]
PartitionCounts: TypeAlias = Mapping[str, int]
Assignment: TypeAlias = dict[str, list[TopicPartition]]


class Assignor(ABC):
    """An assignment strategy. All members of a group must have a strategy with the same name."""

    name: ClassVar[str]
    cooperative: ClassVar[bool] = False
    """Members keep their partitions during a rebalance and give up only those that move (KIP-429)."""

    def user_data(self, generation_id: int) -> bytes | None:
        """The user data that this member adds to its subscription."""
        return None

    @abstractmethod
    def assign(self, partition_counts: PartitionCounts, members: Members) -> Assignment:
        """Partitions per member id. Topics without a count do not exist; every member gets a list."""


def in_member_order(members: Members) -> list[str]:
    """Member ids in Kafka's order: static members by instance id, then the others by member id."""

    def key(member_id: str) -> tuple[bool, str]:
        instance = members[member_id].group_instance_id
        return (instance is None, member_id if instance is None else instance)

    return sorted(members, key=key)
