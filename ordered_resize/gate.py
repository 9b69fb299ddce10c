"""The delivery gate of one topic of a consumer: which batches may be delivered.

If a batch may not be delivered yet, the gate names the questions and loads that must come first. Feed ``facts``, then
``look`` at the next batch of a partition. The table of states is ``MOVES``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Set
from types import MappingProxyType
from typing import Final, NamedTuple

from anabranch.ordered_resize import earlier_records, lineage, state_loads
from anabranch.ordered_resize.explain import Wait
from anabranch.ordered_resize.facts import Facts, Lineage, is_fresh, is_processed, log_start_counts
from anabranch.ordered_resize.state_loads import Loaded, PartitionLoads
from anabranch.protocol.sentinels import NO_EPOCH, NO_OFFSET
from anabranch.protocol.transitions import IllegalTransitionError


class GateState(enum.Enum):
    """Whether the next batch of a partition may be delivered."""

    UNKNOWN = "no lineage is known, or the batch is newer than the known lineage"
    WAITING = "an entry at or below the batch's leader epoch is not satisfied"
    DUE = "the user has to load first"
    OPEN = "the batch may be delivered"


MOVES: Final[Mapping[tuple[GateState, GateState], str]] = MappingProxyType(
    {
        (GateState.UNKNOWN, GateState.WAITING): "25301 was answered, and an entry is not satisfied",
        (GateState.UNKNOWN, GateState.DUE): "25301 was answered, and no load covers its entries",
        (GateState.UNKNOWN, GateState.OPEN): "25301 was answered without news",
        (GateState.WAITING, GateState.DUE): "the partitions it waited for were processed",
        (GateState.WAITING, GateState.UNKNOWN): "the batch expired, the next one is newer than the known lineage",
        (GateState.DUE, GateState.OPEN): "the load returned",
        (GateState.DUE, GateState.WAITING): "a position was lowered, or the batch expired and the next one waits",
        (GateState.DUE, GateState.UNKNOWN): "the batch expired, the next one is newer than the known lineage",
        (GateState.OPEN, GateState.UNKNOWN): "the next batch is newer than the known lineage",
        (GateState.OPEN, GateState.WAITING): "the next batch waits, or a position was lowered",
        (GateState.OPEN, GateState.DUE): "the next batch is past an entry, or the floor rose",
    }
)
"""Every move except WAITING to OPEN: a batch that waited is not delivered before a load."""


class QuestionKind(enum.Enum):
    """The kinds of questions."""

    LINEAGE = "25301, answered with at least this leader epoch"
    END = "the end offset of this leader epoch (OffsetForLeaderEpoch)"
    POSITION = "the group's position, and whether the partition has an owner (25300)"
    LOG_START = "the start offset of the log (ListOffsets)"


class Question(NamedTuple):
    """A question; ``epoch`` is -1 if it is about no epoch."""

    ask: QuestionKind
    partition: int
    epoch: int = NO_EPOCH


class _Owned:
    """One partition that the consumer owns."""

    __slots__ = (
        "cap",
        "cap_version",
        "loads",
        "named",
        "named_version",
        "needed",
        "needed_version",
        "state",
    )

    def __init__(self) -> None:
        self.state = GateState.UNKNOWN
        self.loads = PartitionLoads()
        self.cap = -1
        self.cap_version = -1
        self.named: Set[int] = frozenset()
        self.named_version = -1
        self.needed: Mapping[int, int] = {}
        self.needed_version = -1


class Gate:
    """The gate of one topic; see the module."""

    __slots__ = ("_owned", "facts")

    def __init__(self) -> None:
        self.facts = Facts(self._settle_all)
        self._owned: dict[int, _Owned] = {}

    # ------------------------------------------------------------ events

    def assign(self, partitions: Iterable[int]) -> None:
        """Own exactly these partitions. Partitions that were already owned keep their loads."""
        self._owned = {partition: self._owned.get(partition) or _Owned() for partition in partitions}

    def restart(self, partition: int) -> None:
        """Note that the next batch does not follow the last one: after a seek, or a truncation of the log."""
        self._owned[partition].state = GateState.UNKNOWN

    def renew(self, partition: int) -> None:
        """Note that the partition was removed. No load covers its next incarnation."""
        self._owned[partition] = _Owned()

    def forget(self) -> None:
        """Forget everything: another topic has the name (amendment 5)."""
        self.facts.forget()
        self._owned = {partition: _Owned() for partition in self._owned}

    @property
    def owned(self) -> Set[int]:
        """The partitions that the consumer owns."""
        return self._owned.keys()

    # ------------------------------------------------------------ decisions

    def look(self, partition: int, epoch: int) -> GateState:
        """The state of a next batch of this leader epoch. Raises ``IllegalTransitionError``."""
        self.settle(partition)
        owned = self._owned[partition]
        state = self._judge(partition, owned, epoch)
        if state is not owned.state and (owned.state, state) not in MOVES:
            raise IllegalTransitionError(
                f"partition {partition}, leader epoch {epoch}: cannot move from {owned.state.name} to {state.name}"
            )
        owned.state = state
        return state

    def _judge(self, partition: int, owned: _Owned, epoch: int) -> GateState:
        known = self.facts.lineages.get(partition)
        if known is None or not knows_batch(known, epoch):
            return GateState.UNKNOWN
        if epoch > self.cap(partition):
            return GateState.WAITING
        return GateState.DUE if state_loads.is_load_due(known, owned.loads.loaded, epoch) else GateState.OPEN

    def cap(self, partition: int) -> int:
        """The highest leader epoch whose batches may be delivered, if no load is due; -1: none."""
        owned = self._owned[partition]
        return owned.cap if owned.cap_version == self.facts.version else earlier_records.cap(self.facts, partition)

    def settle(self, partition: int) -> None:
        """Note what the facts mean for the partition: epochs are passed, or a lowered position makes a load stale."""
        owned = self._owned[partition]
        if owned.cap_version == self.facts.version:
            return
        earlier_records.pass_satisfied(self.facts, partition)
        owned.cap = earlier_records.cap(self.facts, partition)
        owned.cap_version = self.facts.version
        owned.loads.on_cap(owned.cap)

    def _settle_all(self) -> None:
        """Note lowered caps at once. A load becomes stale even if the cap rises again before the next ``look``."""
        for partition in self._owned:
            self.settle(partition)

    def limit(self, partition: int) -> int:
        """The highest leader epoch whose batches are OPEN according to ``look``; ``BELOW_EVERY_EPOCH``: none."""
        known = self.facts.lineages.get(partition)
        if known is None:
            return lineage.BELOW_EVERY_EPOCH
        return min(self.cap(partition), state_loads.loaded_up_to(known, self._owned[partition].loads.loaded))

    def load_called(self, partition: int) -> Loaded:
        """The epochs that a load called now covers. The caller passes them to ``load_returned``."""
        known = self.facts.lineages[partition]
        self.settle(partition)
        owned = self._owned[partition]
        return owned.loads.called(owned.cap, known.floor)

    def load_returned(self, partition: int, called: Loaded) -> None:
        """Note that a load covers the epochs satisfied at its call, unless they were revoked since."""
        self.settle(partition)
        self._owned[partition].loads.returned(called)

    def take_revoked(self) -> list[int]:
        """Partitions that wait again after a load. The user's revoke callback is due once for each."""
        found = []
        for partition, owned in self._owned.items():
            self.settle(partition)
            if owned.loads.is_revoked:
                owned.loads.is_revoked = False
                found.append(partition)
        return found

    # ------------------------------------------------------------ what is missing

    def questions(self, partition: int, epoch: int) -> list[Question]:
        """The questions whose answers may open the gate for a next batch of this leader epoch."""
        facts, known = self.facts, self.facts.lineages.get(partition)
        if known is None or not knows_batch(known, epoch):
            return [Question(QuestionKind.LINEAGE, partition, epoch)]
        if epoch <= self.cap(partition):
            return []
        needed = self._needed(partition, known)
        highest = self._highest(known) if len(known.entries) > 1 else needed
        asked: list[Question] = []
        for q, f in needed.items():
            asked.extend(_missing(facts, q, f, highest.get(q, f)))
        return list(dict.fromkeys(asked))

    def waits(self, partition: int, owner_of: Callable[[int], str | None] = lambda _: None) -> list[Wait]:
        """The waits of the partition; empty if all batches up to its lineage's epoch may be delivered."""
        known = self.facts.lineages.get(partition)
        if known is None or (cap := self.cap(partition)) >= known.as_of:
            return []
        facts = self.facts
        return [
            Wait(
                partition,
                cap + 1,
                q,
                f,
                facts.ends.get(q, {}).get(f, NO_OFFSET),
                facts.positions.get(q, NO_OFFSET),
                owner_of(q),
            )
            for q, f in sorted(self._needed(partition, known).items())
            if not earlier_records.is_satisfied(facts, q, f)
        ]

    def named(self, partition: int) -> Set[int]:
        """The partitions that entries require, except removed partitions.

        Their positions matter now, or will matter if they are lowered.
        """
        owned, facts = self._owned[partition], self.facts
        if owned.named_version != facts.lineage_version:
            known = facts.lineages.get(partition)
            entries = known.entries if known is not None else ()
            owned.named = {
                q for entry in entries for q in earlier_records.required(facts, entry.losers, passed_too=True)
            }
            owned.named_version = facts.lineage_version
        return owned.named

    def _needed(self, partition: int, known: Lineage) -> Mapping[int, int]:
        """The requirements of the first entry that is not satisfied."""
        cap, owned, facts = self.cap(partition), self._owned[partition], self.facts
        if owned.needed_version != facts.version:
            owned.needed_version = facts.version
            losers = next((entry.losers for entry in known.entries if entry.epoch > cap), {})
            owned.needed = earlier_records.required(facts, losers)
        return owned.needed

    def _highest(self, known: Lineage) -> dict[int, int]:
        """By partition, the highest epoch that an entry requires. All lower epochs end before its end."""
        highest: dict[int, int] = {}
        for entry in known.entries:
            for q, f in earlier_records.required(self.facts, entry.losers).items():
                highest[q] = max(f, highest.get(q, -1))
        return highest


def knows_batch(known: Lineage, epoch: int) -> bool:
    """Whether all entries up to a batch's leader epoch are known. Entries above ``as_of`` are unknown (rule 11)."""
    return epoch <= known.as_of


def _missing(facts: Facts, q: int, f: int, highest: int) -> list[Question]:
    """The questions about a partition that has to be processed up to the end of epoch ``f``."""
    known = facts.lineages.get(q)
    if known is None or not is_fresh(known, f):
        return [Question(QuestionKind.LINEAGE, q, f)]
    if is_processed(facts, q, f):
        return []
    ends = facts.ends.get(q, {})
    asked = [Question(QuestionKind.POSITION, q)]
    if q in facts.missing:
        asked.append(Question(QuestionKind.LINEAGE, q, f))  # the partition may have been removed
    if highest not in ends and is_fresh(known, highest):
        asked.append(Question(QuestionKind.END, q, highest))
    elif f not in ends:
        asked.append(Question(QuestionKind.END, q, f))
    if log_start_counts(facts, q):
        asked.append(Question(QuestionKind.LOG_START, q))
    return asked
