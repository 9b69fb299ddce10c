"""A reader's facts about one topic: answers of brokers and of the reader's group, of any age. Partitions are numbers.

25301 is the API PartitionLeaderEpochsForPartitions, and 25300 is ConsumerGroupPosition.

While a fact is missing, records are blocked. Answers may arrive in any order, because the newest lineage of each
partition is kept, and a removed incarnation stays removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponsePartition,
)
from anabranch.protocol.sentinels import NO_EPOCH, NO_OFFSET
from anabranch.zk_schemas.partition_state import LineageEntry, PartitionState


class Lineage(NamedTuple):
    """The answer of 25301 for an existing partition. All its facts come from one read of the partition's znode."""

    as_of: int
    """The partition's leader epoch. All entries up to this epoch are here, except entries dropped up to the floor."""
    floor: int = -1
    entries: tuple[LineageEntry, ...] = ()
    """Ascending by epoch."""
    times_ms: Mapping[int, int] = MappingProxyType({})
    """The known times of entries, in ms since 1970, by leader epoch."""

    @classmethod
    def of(cls, state: PartitionState) -> Lineage:
        return cls(state.leader_epoch, state.floor, state.lineage, state.lineage_times)

    @classmethod
    def of_answer(cls, answer: PartitionLeaderEpochsForPartitionsResponsePartition) -> Lineage | None:
        """The lineage in an answer; None: the partition does not exist."""
        if answer.as_of < 0:
            return None
        entries = tuple(
            LineageEntry(entry.epoch, {loser.partition_index: loser.leader_epoch for loser in entry.losers})
            for entry in answer.lineage
        )
        times = {entry.epoch: entry.written_ms for entry in answer.lineage if entry.written_ms >= 0}
        return cls(answer.as_of, answer.floor, entries, times)


class Facts:
    """Facts about one topic. ``version`` increases with every change that a decision may depend on.

    ``taken_back`` is called as soon as a lowered position revokes passed epochs, before a later fact can restore them.
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
        """Increases with each lineage that is stored."""
        self.forget()

    def forget(self) -> None:
        """Forget all facts: another topic has the name, and epochs and offsets start again (amendment 5)."""
        self.lineages: dict[int, Lineage] = {}
        self.over: dict[int, int] = {}
        """The last leader epoch of each removed partition, by number."""
        self.ends: dict[int, dict[int, int]] = {}
        """The end offset of each leader epoch of a partition, exclusive."""
        self.positions: dict[int, int] = {}
        """The group's position in a partition: the first offset of the next batch, or the log end."""
        self.rewinds: dict[int, int] = {}
        """How often the group's position in a partition was lowered, as its coordinator counts."""
        self.log_starts: dict[int, int] = {}
        self.unowned: set[int] = set()
        """Partitions that no live member owns, according to the group's coordinator."""
        self.missing: set[int] = set()
        """Partitions unknown to a broker. The broker may lag, so 25301 is sent again."""
        self.passed: dict[int, int] = {}
        """The leader epoch up to which a partition was found satisfied."""
        self.version += 1
        self.lineage_version += 1

    def on_lineage(self, partition: int, lineage: Lineage | None, over: int = NO_EPOCH) -> None:
        """Store an answer of 25301: the lineage, and in ``over`` the last epoch of the last removed incarnation.

        ``lineage`` is None if the partition does not exist; ``over`` is -1 if no incarnation was removed.
        """
        self.version += 1
        self.lineage_version += 1
        self.missing.discard(partition)
        self.over[partition] = max(over, self.over.get(partition, NO_EPOCH))
        known = self.lineages.get(partition)
        if lineage is not None and (known is None or lineage.as_of >= known.as_of):
            self.lineages[partition] = lineage

    def on_missing(self, partition: int) -> None:
        """Note that a broker does not know the partition."""
        self.version += 1
        self.missing.add(partition)

    def on_end(self, partition: int, epoch: int, end_offset: int) -> None:
        """Store the end of ``epoch``, which comes from a leader of a higher epoch."""
        self.version += 1
        self.ends.setdefault(partition, {})[epoch] = end_offset

    def on_log_start(self, partition: int, offset: int) -> None:
        self.version += 1
        self.log_starts[partition] = offset

    def on_owner(self, partition: int, *, is_owned: bool) -> None:
        """Store whether a live member owns the partition, as 25300 answers."""
        if is_owned == (partition not in self.unowned):
            return
        self.version += 1
        if is_owned:
            self.unowned.discard(partition)
        else:
            self.unowned.add(partition)

    def on_position(self, partition: int, position: int) -> None:
        """Store the group's position. A lower position revokes epochs that were passed because of the higher one.

        -1 means that the position is not known (any more). -1 revokes nothing.
        """
        if self.positions.get(partition, NO_OFFSET) == position:
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
        """Store how often the group's position in a partition was lowered.

        If the count has changed, the position was lower meanwhile. How low is not known, so all epochs that were passed
        because of a position are revoked.
        """
        before = self.rewinds.get(partition, rewinds)
        self.rewinds[partition] = rewinds
        if rewinds == before:
            return
        position = self.positions.get(partition, NO_OFFSET)
        self.on_position(partition, 0)
        self.on_position(partition, position)

    def on_leader_change(self, partition: int) -> None:
        """Forget the ends of epochs that are not passed yet, because an unclean election lowers these ends."""
        self.version += 1
        passed = self.passed.get(partition, -1)
        self.ends[partition] = {epoch: end for epoch, end in self.ends.get(partition, {}).items() if epoch <= passed}

    def on_new_generation(self) -> None:
        """Forget positions and owners, which end with their generation. Passed epochs stay passed."""
        self.version += 1
        self.positions.clear()
        self.unowned.clear()

    def pass_all(self, satisfied: Mapping[int, int]) -> None:
        """Note epochs that are satisfied together. They stay satisfied unless a position is lowered."""
        if satisfied:
            self.version += 1
            self.passed.update(satisfied)


def is_over(facts: Facts, partition: int, epoch: int) -> bool:
    """Whether the incarnation of the partition with this epoch was removed.

    An answer has to state the removal. A removal is never concluded from other facts (rule 12).
    """
    return facts.over.get(partition, NO_EPOCH) >= epoch


def is_passed(facts: Facts, partition: int, epoch: int) -> bool:
    return epoch <= facts.passed.get(partition, -1)


def is_fresh(known: Lineage, epoch: int) -> bool:
    """Whether a lineage is new enough to have every entry up to this epoch (rule 11)."""
    return known.as_of >= epoch


def is_processed(facts: Facts, partition: int, epoch: int) -> bool:
    """Whether the group has processed the partition up to the end of this or a later epoch.

    If the partition has no record up to this end, no position is needed.
    """
    reached = facts.positions.get(partition, 0)
    if log_start_counts(facts, partition):
        reached = max(reached, facts.log_starts.get(partition, NO_OFFSET))
    ends = facts.ends.get(partition)
    if ends is None:
        return False
    if (end := ends.get(epoch)) is not None and reached >= end:
        return True
    return any(later > epoch and reached >= end for later, end in ends.items())


def log_start_counts(facts: Facts, partition: int) -> bool:
    """Whether a log start past the end counts as a position: only if no live member reports positions (rule 14)."""
    return partition in facts.unowned


def take_back(facts: Facts, partition: int, still_passed: int) -> None:
    """Lower the passed epoch of a partition, and of partitions that were passed because of it (amendment 13)."""
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
