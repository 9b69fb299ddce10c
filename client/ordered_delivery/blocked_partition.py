"""Explains to people why a partition is not delivered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anabranch.ordered_resize.explain import Wait
from anabranch.protocol.sentinels import NO_OFFSET
from anabranch.protocol.types import TopicPartition


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """One thing a partition waits for."""

    from_epoch: int
    """The partition's records of this and later leader epochs wait."""
    on: TopicPartition
    """The partition that must be processed first."""
    epoch: int
    """The leader epoch up to whose end ``on`` must be processed."""
    until: int
    """The offset of that end, which the group must reach; -1 if it is not known yet."""
    position: int
    """The group's position in ``on``, as last reported by the owner of ``on``; -1 if not known."""
    member: str | None
    """The owner of ``on``; None if not known.

    The leader of a group knows all owners. Another member asks for the owner after a while of waiting.
    """
    committed: int = NO_OFFSET
    """The group's committed offset in ``on``, looked up regularly during the wait; -1 if not known."""

    @classmethod
    def of(
        cls,
        topic: str,
        wait: Wait,
        owner_of: Callable[[TopicPartition], str | None],
        committed: Callable[[TopicPartition], int],
    ) -> WaitsFor:
        """Return the wait of a gate, with the member that can end the wait and the group's committed offset."""
        on = TopicPartition(topic, wait.on)
        return cls(wait.from_epoch, on, wait.epoch, wait.offset, wait.position, owner_of(on), committed(on))

    def sentence(self, partition: int) -> str:
        """Describe the wait of ``partition`` in words."""
        wait = Wait(partition, self.from_epoch, self.on.partition, self.epoch, self.until, self.position, self.member)
        return wait.sentence(self.committed)


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """A partition blocked so that its keys keep their order."""

    partition: TopicPartition
    max_leader_epoch: int
    """Records up to this leader epoch are delivered; -2: none."""
    waits_for: tuple[WaitsFor, ...]
    """The waits. Empty as long as no broker has answered with the lineage for the next record."""

    def __str__(self) -> str:
        topic, partition = self.partition
        waits = [wait.sentence(partition) for wait in self.waits_for]
        return f"{topic}: {'; '.join(waits) or f'the lineage of partition {partition} is not known yet'}"
