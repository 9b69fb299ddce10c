"""How far groups have read a topic: one answer for all decisions that wait for groups.

A *pair* is a partition and a leader epoch. A group is done with a pair when it has processed the partition up to the
end of that epoch. ``ReadProgress.waits`` names the groups that are not done. Four decisions ask it:

- ``withheld_from_stock_consumers.Requirements.caps``: how far a leader serves stock consumers;
- ``removal.drain_wait``: whether the records of a marked partition may be deleted;
- ``removal.removal_wait``: whether an empty marked partition may be removed;
- ``retained_from``: the records that retention keeps.

The positions come from the last answers of the groups' coordinators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Final, NamedTuple

from anabranch.ordered_resize import earlier_records
from anabranch.ordered_resize.explain import ITS_COMMITS, ITS_FLUSH, ITS_REBALANCE, Wait
from anabranch.ordered_resize.facts import Facts, Lineage
from anabranch.protocol.sentinels import NO_OFFSET


class Pair(NamedTuple):
    """A partition that has to be processed up to the end of a leader epoch."""

    partition: int
    epoch: int


class Reader(NamedTuple):
    """A group that reads the topic, or may read it, from its coordinator's answer."""

    group: str
    life: int = 0
    """Distinguishes the group from a deleted group of the same name."""
    positions: Mapping[int, int] = MappingProxyType({})
    """The first offset that is not processed, by partition: the owner's report, or else the commit.

    A group without a position reads the partition's log from its start.
    """
    reporting: frozenset[int] = frozenset()
    """Partitions whose owner reports positions. The log start of these partitions does not count as a position."""
    commits: Mapping[int, int] = MappingProxyType({})
    """The committed offset by partition. Only the decisions about marked partitions and retention ask for it."""
    is_reading: bool = True
    """Whether the group has committed an offset of the topic, or a member subscribes to the topic."""
    has_committed: bool = True
    """Whether the group has committed an offset of any partition of the topic."""
    is_settled: bool = True
    """Whether no rebalance or deletion of the group is in progress. Until then its positions are not known."""
    missing: str = ""
    """The missing fact if it is not known which topics the group reads; empty if it is known."""


ANY_GROUP: Final = Reader("")
"""A group without any position. If a pair is satisfied for it, then for every group, even a future one."""


class ReadProgress:
    """The progress of ``readers`` in one topic. ``facts`` has lineages, ends and log starts, and is not changed."""

    def __init__(self, facts: Facts, readers: Iterable[Reader]) -> None:
        self.facts = facts
        self.readers = tuple(readers)

    @cached_property
    def _processed(self) -> list[tuple[Reader, Facts]]:
        return [(reader, _facts_of(self.facts, reader.positions, reader.reporting)) for reader in self.readers]

    @cached_property
    def _committed(self) -> list[tuple[Reader, Facts]]:
        return [(reader, _facts_of(self.facts, reader.commits, frozenset())) for reader in self.readers]

    def waits(self, pair: Pair) -> list[Wait]:
        """A wait for each group that is not done with the pair.

        Where the owner of the partition reports, the report decides. Otherwise the commit or the log start does.
        """
        return [
            _wait(reader, facts, pair, ITS_FLUSH if reader.is_settled else reader.missing or ITS_REBALANCE)
            for reader, facts in self._processed
            if not (reader.is_settled and earlier_records.is_satisfied(facts, *pair))
        ]

    def commit_waits(self, pair: Pair) -> list[Wait]:
        """A wait for each group that has not committed the end of the pair, whatever the owners report."""
        return [
            _wait(reader, facts, pair, ITS_COMMITS if reader.is_reading else reader.missing or ITS_REBALANCE)
            for reader, facts in self._committed
            if not earlier_records.is_satisfied(facts, *pair)
        ]


def facts_of(pair: Pair, log_start: int, end: int | None) -> Facts:
    """The facts about one partition; ``end`` is the end of the pair, None if it is not known."""
    facts = Facts()
    facts.on_lineage(pair.partition, Lineage(pair.epoch))
    facts.on_log_start(pair.partition, log_start)
    if end is not None:
        facts.on_end(pair.partition, pair.epoch, end)
    return facts


def _facts_of(known: Facts, positions: Mapping[int, int], reporting: frozenset[int]) -> Facts:
    facts = Facts()
    facts.lineages, facts.ends, facts.log_starts = known.lineages, known.ends, known.log_starts
    facts.positions = dict(positions)
    facts.unowned = set(known.log_starts) - reporting
    return facts


def _wait(reader: Reader, facts: Facts, pair: Pair, why: str) -> Wait:
    q, f = pair
    return Wait(
        on=q,
        epoch=f,
        offset=facts.ends.get(q, {}).get(f, NO_OFFSET),
        position=facts.positions.get(q, NO_OFFSET),
        group=reader.group,
        life=reader.life,
        why=why,
    )


# ---------------------------------------------------------------- retention


class Retained(NamedTuple):
    """Retention keeps the records from ``offset`` on, because ``group`` has not read them; "" if it is not known."""

    offset: int
    group: str


KEEP_ALL: Final = Retained(0, "")


def retained_from(progress: ReadProgress, pair: Pair) -> Retained | None:
    """The lowest awaited offset that some group has not committed; None if nothing is kept.

    Only groups that have committed an offset of the topic count. Members of a new group first commit the position where
    they begin. So everything is kept while the commits of a group are not known. Everything is also kept while the end
    of the awaited records is not known.
    """
    if any(not (reader.is_settled or reader.has_committed) for reader in progress.readers):
        return KEEP_ALL
    waits = ReadProgress(progress.facts, [reader for reader in progress.readers if reader.has_committed]).commit_waits(
        pair
    )
    if any(wait.offset < 0 for wait in waits):
        return KEEP_ALL
    start = progress.facts.log_starts.get(pair.partition, 0)
    return min((Retained(max(wait.position, start), wait.group) for wait in waits), default=None)
