"""Why a partition is not delivered, for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anabranch.ordered_resize.explain import Wait
from anabranch.protocol.types import TopicPartition


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """One thing a partition waits for."""

    from_epoch: int
    """The partition's records of this leader epoch and above wait."""
    on: TopicPartition
    """The partition that must be processed first."""
    epoch: int
    """Up to the end of this leader epoch of it."""
    until: int
    """That end: how far the group must be; -1: not known yet."""
    position: int
    """The group's position in ``on``, as its owner last reported it; -1: not known."""
    member: str | None
    """The owner of ``on``; None: not known. The leader of a group knows, others once they have waited for a while."""
    committed: int = -1
    """What the group has committed of ``on``, looked up now and then while this is waited for; -1: not known."""

    @classmethod
    def of(
        cls,
        topic: str,
        wait: Wait,
        owner_of: Callable[[TopicPartition], str | None],
        committed: Callable[[TopicPartition], int],
    ) -> WaitsFor:
        """What a gate says, with the member that can do something about it, and what the group committed."""
        on = TopicPartition(topic, wait.on)
        return cls(wait.from_epoch, on, wait.epoch, wait.offset, wait.position, owner_of(on), committed(on))

    def sentence(self, partition: int) -> str:
        """In words, for the partition that waits."""
        wait = Wait(partition, self.from_epoch, self.on.partition, self.epoch, self.until, self.position, self.member)
        return f"{wait} ({self.committed} committed)" if self.committed > self.position else str(wait)


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """A partition held back so that its keys keep their order."""

    partition: TopicPartition
    max_leader_epoch: int
    """Records up to this leader epoch are delivered; -2: none."""
    waits_for: tuple[WaitsFor, ...]
    """Empty: no broker has told yet what the next record has to wait for."""

    def __str__(self) -> str:
        topic, partition = self.partition
        waits = [wait.sentence(partition) for wait in self.waits_for]
        return f"{topic}: {'; '.join(waits) or f'the lineage of partition {partition} is not known yet'}"
