"""Sentences that explain why a partition or a resize waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anabranch.ordered_resize.resize import Phase, losers_are_done, phases
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.protocol.sentinels import NO_OFFSET
from anabranch.zk_schemas.topic import TopicZnode


class Wait(NamedTuple):
    """One wait of a partition. An unknown number is -1, an unknown owner None."""

    partition: int
    from_epoch: int
    """The partition's batches of this and later leader epochs wait."""
    on: int
    """The partition that has to be processed first."""
    epoch: int
    """The partition ``on`` has to be processed up to the end of this leader epoch."""
    offset: int = NO_OFFSET
    """The end of ``epoch``."""
    position: int = NO_OFFSET
    owner: str | None = None

    def __str__(self) -> str:
        end = f"offset {self.offset}" if self.offset >= 0 else f"the end of epoch {self.epoch}, not known yet"
        owner = f"owned by {self.owner}" if self.owner is not None else "owner not known"
        at = f"at position {self.position}" if self.position >= 0 else "position not known"
        return f"partition {self.partition} from epoch {self.from_epoch} waits for {self.on} until {end}, {owner}, {at}"


def resize_waits(snapshot: Snapshot, left: Mapping[int, Sequence[int]]) -> list[str]:
    """The waits of a resize, one sentence each, except the waits of partitions with a step that is due.

    ``left``: the brokers that still have a replica, for each partition that is being removed.
    """
    if snapshot.frozen:
        return [f"frozen: {snapshot.frozen}"]
    found: dict[Phase, list[int]] = {}
    for partition, phase in phases(snapshot).items():
        if partition not in snapshot.unreadable:
            found.setdefault(phase, []).append(partition)
    losers_of = snapshot.moves.losers_of
    losers = {q for p in found.get(Phase.BEHIND, ()) for q in losers_of[p]}
    silent = sorted(q for q in losers if not losers_are_done(snapshot, [q]))
    brokers = sorted({broker for p in found.get(Phase.LEAVING, ()) for broker in left.get(p, ())})
    why = {
        Phase.UNLED: "have had no leader yet",
        Phase.BEHIND: f"gain keys when the leaders of partitions {listed(silent)} have answered",
        Phase.LEADERLESS: "gain keys, and no replica of them may lead",
        Phase.UNANSWERED: "have the layout, and their leaders have not answered",
        Phase.DRAINING: "are marked for deletion",
        Phase.LEAVING: f"are being removed, and brokers {listed(brokers)} have replicas of them",
    }
    waits = [f"partitions {listed(found[phase])} {why[phase]}" for phase in why if phase in found]
    if snapshot.unreadable:
        waits.insert(0, f"the states of partitions {listed(sorted(snapshot.unreadable))} cannot be read: see the log")
    if (wanted := snapshot.topic.wanted) is not None:
        waits.append(f"{wanted} partitions are requested next")
    return waits


def request_effect(topic: TopicZnode, asked: TopicZnode, count: int) -> str:
    """The effect of a request for ``count`` on the resize in progress and the queued count; empty: none.

    ``asked`` is the znode that results from the request.
    """
    goal, queued = topic.undeleted_partition_count, topic.wanted
    instead = f" in place of the queued {queued}" if queued not in (None, count) else ""
    if count == goal:
        return f"a request for {count} takes the queued {queued} back" if instead else ""
    if asked.wanted == count:
        return f"{count} partitions are queued" if queued == count else f"{count} partitions would be queued{instead}"
    if asked.previous_undeleted_partition_count == asked.undeleted_partition_count:
        return f"{count} partitions would take back the resize to {goal}{instead}"
    return f"the resize to {count} partitions would begin{instead}" if instead else ""


def listed(numbers: Sequence[object]) -> str:
    """The first ten numbers, and how many more there are."""
    shown = ", ".join(map(str, numbers[:10]))
    return f"{shown} and {len(numbers) - 10} more" if len(numbers) > 10 else shown
