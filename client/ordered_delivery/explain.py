"""Why a partition is not delivered, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from client.ordered_delivery.barriers import CLOSED, BarrierKind, Blocked, Missing
from protocol.types import TopicPartition


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """One thing a partition waits for."""

    reason: BarrierKind
    """The creation of ``partition``, or its deletion."""
    partition: int
    """The partition that was split off, or that is marked for deletion."""
    on: TopicPartition
    """The partition that must be processed first."""
    missing: Missing
    """What is to be found out or to happen next."""
    position: int
    """How far the group is in ``on``, as its reader has told; it tells what may free somebody. -1: not known."""
    threshold: int
    """How far it must be; -1: not known."""
    member: str | None
    """Who reads ``on``; None: not known. The leader of a group knows, others once they have waited for a while."""
    committed: int = -1
    """What the group has committed of ``on``, looked up now and then while this is waited for; -1: not known."""

    def __str__(self) -> str:
        what = "the split that made" if self.reason is BarrierKind.CREATION else "the merge of"
        where = f"{self.on.topic}-{self.on.partition}"
        who = f", read by {self.member}" if self.member is not None else ""
        if self.missing is Missing.POSITION:
            known = f"at {self.position} of" if self.position >= 0 else "not known to have reached"
            committed = f" ({self.committed} committed)" if self.committed > self.position else ""
            return f"{what} partition {self.partition}: {where} {known} {self.threshold}{committed}{who}"
        return f"{what} partition {self.partition}: {self.missing.value} ({where}{who}) is not known yet"


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """A partition held back so that its keys keep their order."""

    partition: TopicPartition
    max_leader_epoch: int
    """Records up to this leader epoch are delivered; -2: none."""
    waits_for: tuple[WaitsFor, ...]

    def __str__(self) -> str:
        name = f"{self.partition.topic}-{self.partition.partition}"
        held = "" if self.max_leader_epoch == CLOSED else f" beyond leader epoch {self.max_leader_epoch}"
        return f"{name} is blocked{held}, waiting for " + "; for ".join(str(wait) for wait in self.waits_for)


def explain(
    blocked: Iterable[Blocked],
    owner_of: Callable[[TopicPartition], str | None],
    committed: Callable[[TopicPartition], int] = lambda _: -1,
) -> tuple[BlockedPartition, ...]:
    """What the gate says, with the members that can do something about it, and what they committed."""
    return tuple(
        BlockedPartition(
            one.tp,
            one.max_leader_epoch,
            tuple(
                WaitsFor(b.kind, b.of, b.on, b.missing, b.position, b.threshold, owner_of(b.on), committed(b.on))
                for b in one.barriers
            ),
        )
        for one in blocked
    )
