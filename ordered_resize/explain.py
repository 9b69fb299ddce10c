"""The words for all waits: of a partition for a group, of a partition marked for deletion, and of a resize.

``explain_blocked``, the descriptions of groups and topics, the console, the log and the metrics use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from anabranch.ordered_resize.delete_when_drained import DRAIN_KEY, LOSS_KEY, Marked, is_compacted
from anabranch.ordered_resize.snapshot import Phase, Snapshot
from anabranch.protocol.plurals import counted, listed, named, one_or_many
from anabranch.protocol.sentinels import NO_OFFSET
from anabranch.zk_schemas.topic import TopicZnode

ITS_COMMITS: Final = "its commits"
ITS_FLUSH: Final = "its flush callback"
ITS_REBALANCE: Final = "the end of its rebalance"
SOME_READER: Final = "a group that reads the topic"


class Wait(NamedTuple):
    """A wait until a group has processed a partition. An unknown number is -1, an unknown owner None."""

    partition: int = -1
    """The partition that waits; -1 if several may wait, or if retention or a removal waits."""
    from_epoch: int = -1
    """The partition's batches of this and later leader epochs wait."""
    on: int = -1
    """The partition that has to be processed first."""
    epoch: int = -1
    """The partition ``on`` has to be processed up to the end of this leader epoch."""
    offset: int = NO_OFFSET
    """The end of ``epoch``."""
    position: int = NO_OFFSET
    owner: str | None = None
    group: str = ""
    """The group; empty if it is the reader's own group, or if the wait is not for a group."""
    life: int = 0
    """Distinguishes the group from a deleted group of the same name."""
    why: str = ""
    """The awaited event in words, where it is not the position alone."""

    @property
    def key(self) -> tuple[str, int, int, int]:
        """What stays the same while the group makes progress."""
        return self.group, self.life, self.on, self.epoch

    def __str__(self) -> str:
        return self.sentence()

    def sentence(self, committed: int = NO_OFFSET) -> str:
        """The wait in words. A member reports its position only now and then, so its commit may be ahead of it."""
        end = f"offset {self.offset}" if self.offset >= 0 else f"the end of epoch {self.epoch}, not known yet"
        owner = f"owned by {self.owner}" if self.owner is not None else "owner not known"
        at = f"at position {self.position}" if self.position >= 0 else "position not known"
        waits = f"partition {self.partition} from epoch {self.from_epoch} waits for partition {self.on} until {end}"
        return f"{waits}, {owner}, {at}" + (f" ({committed} committed)" if committed > self.position else "")

    def withheld(self, waited_s: int, *, is_over: bool, is_let_go: bool) -> str:
        """The wait of a partition's leader for ``group``, in words, while it withholds records from stock consumers."""
        end = f"offset {self.offset}" if self.offset >= 0 else f"the end of epoch {self.epoch}"
        at = f"at offset {self.position}" if self.position >= 0 else "without a commit"
        return (
            f"partition {self.partition} from epoch {self.from_epoch} "
            f"{'was withheld' if is_over else 'is withheld from stock consumers'}: "
            f"group {self.group} must first process partition {self.on} until {end} "
            f"({at}, for {waited_s} s{', no longer awaited' if is_let_go else ''})"
        )


def waits_for(waiting: str, left: int | None, on: str) -> str:
    """The wait of a partition with this name, for ``left`` records (None: not known) of another partition, in short."""
    return f"{waiting} waits for {'records' if left is None else counted(left, 'record', form=',')} of {on}"


# ---------------------------------------------------------------- partitions marked for deletion

A_LEADER: Final = "a leader"


def for_merge(unfinished: str) -> str:
    """``unfinished``: see ``resize_waits``."""
    return f"the merge: {unfinished}"


def for_grow(wanted: int) -> str:
    return f"the resize to {wanted} partitions, which counts it again"


def for_replicas(brokers: Sequence[int]) -> str:
    return f"brokers {listed(brokers)} to delete their replicas"


def for_records(marked: Marked, values: Mapping[str, Any]) -> str:
    """Why the records stay, although every group may have read them. ``values``: see ``Marked.of``."""
    if marked is Marked.EXPIRED:
        return "their records to expire"
    if is_compacted(values):
        return f"{LOSS_KEY}=true: they have the latest values of their keys"
    return f"{DRAIN_KEY}=true: their records never expire"


def for_lagging_replicas(brokers: Sequence[int]) -> str:
    return f"{named('broker', brokers)} to delete {one_or_many(len(brokers), 'its', 'their')} records: not in sync"


def for_refused_deletion(leader: int, code: str) -> str:
    return f"broker {leader} to delete its records: {code}"


def for_positions(why: object) -> str:
    return f"the groups' positions: {why}"


# ---------------------------------------------------------------- resizes


def resize_waits(
    snapshot: Snapshot,
    phases: Mapping[int, Phase],
    left: Mapping[int, Sequence[int]],
    behind: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> list[str]:
    """The waits of a resize, one sentence each, except the waits of partitions with a step that is due.

    ``phases``: the phase of each partition. ``left``: the brokers that still have a replica, for each partition that is
    being removed. ``behind``: the brokers that are not in sync and have not deleted their records, for each partition
    that is drained.
    """
    if snapshot.frozen:
        return [f"frozen: {snapshot.frozen}"]
    found: dict[Phase, list[int]] = {}
    for partition, phase in phases.items():
        if partition not in snapshot.unreadable:
            found.setdefault(phase, []).append(partition)
    losers_of = snapshot.moves.losers_of
    losers = {q for p in found.get(Phase.BEHIND, ()) for q in losers_of[p]}
    silent = sorted(q for q in losers if not snapshot.has_confirmed_goal(q))
    brokers = sorted({broker for p in found.get(Phase.LEAVING, ()) for broker in left.get(p, ())})
    leaders = f"{one_or_many(len(silent), 'leader', 'leaders')} of {named('partition', silent)}"
    answered = one_or_many(len(silent), "has answered", "have answered")
    holders = f"{named('broker', brokers)} {one_or_many(len(brokers), 'has', 'have')}"
    why = {
        Phase.UNLED: ("has had no leader yet", "have had no leader yet"),
        Phase.BEHIND: (f"gains keys when the {leaders} {answered}", f"gain keys when the {leaders} {answered}"),
        Phase.LEADERLESS: ("gains keys, and no replica of it may lead", "gain keys, and no replica of them may lead"),
        Phase.UNANSWERED: (
            "has the layout, and its leader has not answered",
            "have the layout, and their leaders have not answered",
        ),
        Phase.DRAINING: ("is marked for deletion", "are marked for deletion"),
        Phase.LEAVING: (
            f"is being removed, and {holders} a replica of it",
            f"are being removed, and {holders} replicas of them",
        ),
    }
    waits = [
        f"{named('partition', found[phase])} {one_or_many(len(found[phase]), *words)}"
        for phase, words in why.items()
        if phase in found
    ]
    if lagging := sorted({broker for p in found.get(Phase.DRAINING, ()) for broker in behind.get(p, ())}):
        late = sorted(p for p in found[Phase.DRAINING] if behind.get(p))
        are = one_or_many(len(lagging), "is not in sync and has", "are not in sync and have")
        waits.append(f"{named('broker', lagging)} {are} to delete the records of {named('partition', late)}")
    if snapshot.unreadable:
        waits.insert(0, states_unreadable(sorted(snapshot.unreadable)))
    if (wanted := snapshot.topic.wanted) is not None:
        waits.append(f"the resize to {wanted} partitions is queued")
    return waits


def request_effect(topic: TopicZnode, asked: TopicZnode, count: int) -> str:
    """The effect of a request for ``count`` on the resize in progress and the queued count; empty: none.

    ``asked`` is the znode that results from the request.
    """
    goal, queued = topic.undeleted_partition_count, topic.wanted
    instead = f" in place of the queued resize to {queued}" if queued not in (None, count) else ""
    if count == goal:
        return f"the queued resize to {queued} partitions would be cancelled" if instead else ""
    if asked.wanted == count:
        to_count = f"the resize to {count} partitions"
        return f"{to_count} is queued already" if queued == count else f"{to_count} would be queued{instead}"
    if asked.previous_undeleted_partition_count == asked.undeleted_partition_count:
        also = f", and the queued resize to {queued} partitions" if instead else ""
        return f"the resize to {goal} partitions would be cancelled{also}"
    return f"the resize to {count} partitions would begin{instead}" if instead else ""


def states_unreadable(partitions: Sequence[int]) -> str:
    """The sentence about partitions whose states cannot be read, without a capital and a full stop."""
    states = one_or_many(len(partitions), "state", "states")
    return f"the {states} of {named('partition', partitions)} cannot be read: see the controller's log"
