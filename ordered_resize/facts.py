"""Facts of a reader about one topic: answers of brokers and of its group, of any age. Partitions are numbers.

A missing fact blocks. Answers may arrive in any order: the newest lineage of each partition is kept, and a removed
incarnation stays removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponsePartition,
)
from anabranch.zk_schemas.partition_state import LineageEntry, PartitionState


class Lineage(NamedTuple):
    """The answer of 25301 for a partition that exists, all of one read of its znode."""

    as_of: int
    """The partition's leader epoch: every entry up to it is here, or below the floor."""
    floor: int = -1
    entries: tuple[LineageEntry, ...] = ()
    """Ascending by epoch."""

    @classmethod
    def of(cls, state: PartitionState) -> Lineage:
        return cls(state.leader_epoch, state.floor, state.lineage)

    @classmethod
    def of_answer(cls, answer: PartitionLeaderEpochsForPartitionsResponsePartition) -> Lineage | None:
        """None: the partition does not exist."""
        if answer.as_of < 0:
            return None
        entries = tuple(
            LineageEntry(entry.epoch, {loser.partition_index: loser.leader_epoch for loser in entry.losers})
            for entry in answer.lineage
        )
        return cls(answer.as_of, answer.floor, entries)


class Facts:
    """See the module. ``version`` goes up whenever something changes that a decision may depend on.

    ``taken_back`` is called whenever a lowered position took something back, before a later fact can restore it.
    """

    __slots__ = (
        "_taken_back",
        "ends",
        "lineage_version",
        "lineages",
        "log_starts",
        "missing",
        "over",
        "passed",
        "positions",
        "rewinds",
        "unowned",
        "version",
    )

    def __init__(self, taken_back: Callable[[], None] = lambda: None) -> None:
        self._taken_back = taken_back
        self.version = 0
        self.lineage_version = 0
        """Goes up with each lineage that is taken in."""
        self.forget()

    def forget(self) -> None:
        """Another topic has the name: epochs and offsets start again (amendment 5)."""
        self.lineages: dict[int, Lineage] = {}
        self.over: dict[int, int] = {}
        """The last leader epoch of each number that was removed at some time."""
        self.ends: dict[int, dict[int, int]] = {}
        """Where a leader epoch of a partition ended, exclusive."""
        self.positions: dict[int, int] = {}
        """How far the group has processed a partition: the first offset of the next batch, or the log end."""
        self.rewinds: dict[int, int] = {}
        """How often the group went back in a partition, as its coordinator counts."""
        self.log_starts: dict[int, int] = {}
        self.unowned: set[int] = set()
        """Partitions that no live member owns, by the group's coordinator."""
        self.missing: set[int] = set()
        """Partitions that a broker did not know, which may mean that it is behind: 25301 is asked again."""
        self.passed: dict[int, int] = {}
        """Up to which leader epoch a partition was found satisfied."""
        self.version += 1
        self.lineage_version += 1

    def on_lineage(self, partition: int, lineage: Lineage | None, over: int = -1) -> None:
        """25301 was answered: the lineage (None: it does not exist) and ``last_leader_epochs``, -1 for none."""
        self.version += 1
        self.lineage_version += 1
        self.missing.discard(partition)
        self.over[partition] = max(over, self.over.get(partition, -1))
        known = self.lineages.get(partition)
        if lineage is not None and (known is None or lineage.as_of >= known.as_of):
            self.lineages[partition] = lineage

    def on_missing(self, partition: int) -> None:
        """A broker does not know the partition."""
        self.version += 1
        self.missing.add(partition)

    def on_end(self, partition: int, epoch: int, end_offset: int) -> None:
        """A leader of a higher epoch answered where ``epoch`` ended."""
        self.version += 1
        self.ends.setdefault(partition, {})[epoch] = end_offset

    def on_log_start(self, partition: int, offset: int) -> None:
        self.version += 1
        self.log_starts[partition] = offset

    def on_owner(self, partition: int, *, is_owned: bool) -> None:
        """Whether a live member owns the partition, by 25300."""
        if is_owned == (partition not in self.unowned):
            return
        self.version += 1
        if is_owned:
            self.unowned.discard(partition)
        else:
            self.unowned.add(partition)

    def on_position(self, partition: int, position: int) -> None:
        """How far the group is. A lower position than before takes back what was passed because of the higher one.

        -1: not known (any more), which takes nothing back.
        """
        if self.positions.get(partition, -1) == position:
            return
        self.version += 1
        if position < 0:
            del self.positions[partition]
            return
        self.positions[partition] = position
        ends, passed = self.ends.get(partition, {}), self.passed.get(partition, -1)
        if any(epoch <= passed and not is_processed(self, partition, epoch) for epoch in ends):
            still = [epoch for epoch in ends if epoch <= passed and is_processed(self, partition, epoch)]
            self.ends[partition] = {epoch: ends[epoch] for epoch in still}
            take_back(self, partition, max(still, default=-1))
            self._taken_back()

    def on_rewinds(self, partition: int, rewinds: int) -> None:
        """How often the group went back in a partition.

        With another count than before the position was lower meanwhile. How low is not known: what was passed because
        of any position is taken back.
        """
        before = self.rewinds.get(partition, rewinds)
        self.rewinds[partition] = rewinds
        if rewinds == before:
            return
        position = self.positions.get(partition, -1)
        self.on_position(partition, 0)
        self.on_position(partition, position)

    def on_leader_change(self, partition: int) -> None:
        """Ends of what is not passed yet are asked again: an unclean election lowers them."""
        self.version += 1
        passed = self.passed.get(partition, -1)
        self.ends[partition] = {epoch: end for epoch, end in self.ends.get(partition, {}).items() if epoch <= passed}

    def on_new_generation(self) -> None:
        """Positions and owners die with their generation; what was passed stays passed."""
        self.version += 1
        self.positions.clear()
        self.unowned.clear()

    def pass_all(self, satisfied: Mapping[int, int]) -> None:
        """These are satisfied together, and stay so unless a position is lowered."""
        if satisfied:
            self.version += 1
            self.passed.update(satisfied)


def is_over(facts: Facts, partition: int, epoch: int) -> bool:
    """Whether the life of the partition that had this epoch was removed: read, never concluded (rule 12)."""
    return facts.over.get(partition, -1) >= epoch


def is_passed(facts: Facts, partition: int, epoch: int) -> bool:
    return epoch <= facts.passed.get(partition, -1)


def is_fresh(known: Lineage, epoch: int) -> bool:
    """Whether a lineage is new enough to have every entry up to this epoch (rule 11)."""
    return known.as_of >= epoch


def is_processed(facts: Facts, partition: int, epoch: int) -> bool:
    """Whether the group has processed the partition up to the end of the epoch; the end of a later one serves too.

    Of a partition without a record up to there nobody has to say anything.
    """
    reached = facts.positions.get(partition, 0)
    if log_start_counts(facts, partition):
        reached = max(reached, facts.log_starts.get(partition, -1))
    ends = facts.ends.get(partition)
    if ends is None:
        return False
    if (end := ends.get(epoch)) is not None and reached >= end:
        return True
    return any(later > epoch and reached >= end for later, end in ends.items())


def log_start_counts(facts: Facts, partition: int) -> bool:
    """Whether a log start past the end stands for a position: only where no live member would report one (rule 14)."""
    return partition in facts.unowned


def take_back(facts: Facts, partition: int, still_passed: int) -> None:
    """Lower what is passed of a partition, and of everything that was passed because of it (amendment 13)."""
    facts.passed[partition] = still_passed
    lowered = [partition]
    while lowered:
        q = lowered.pop()
        for name, passed in list(facts.passed.items()):
            depending = [
                entry.epoch
                for entry in facts.lineages[name].entries
                if entry.epoch <= passed and _is_missing_now(facts, q, entry.losers.get(q, -1))
            ]
            if depending:
                facts.passed[name] = min(depending) - 1
                lowered.append(name)


def _is_missing_now(facts: Facts, partition: int, epoch: int) -> bool:
    return not is_over(facts, partition, epoch) and not is_passed(facts, partition, epoch)
