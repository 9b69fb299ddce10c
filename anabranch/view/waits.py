"""Computes from brokers' responses which partitions of a group wait for others after a resize. Pure (KIP-253).

Each consumer decides by its own gate. ``anabranch groups describe`` computes the waits from outside, with the same gate
code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from anabranch.client.admin.types import PartitionLineage
from anabranch.ordered_resize.explain import Wait
from anabranch.ordered_resize.gate import Gate, QuestionKind
from anabranch.protocol.sentinels import NO_OFFSET


class BlockedBy(NamedTuple):
    """A wait; ``is_blocked``: the partition cannot deliver any record before the wait is over."""

    wait: Wait
    is_blocked: bool


class GroupOnTopic:
    """The offsets of one group in one topic, by partition number."""

    def __init__(
        self,
        lineages: Mapping[int, PartitionLineage],
        positions: Mapping[int, int],
        log_start_offsets: Mapping[int, int],
        owners: Mapping[int, str],
        waiting_for_nothing: Collection[int] = (),
    ) -> None:
        """``positions``: the first offsets that the group has not processed, -1 when the coordinator does not know.

        ``waiting_for_nothing``: partitions whose owners deliver records as they come; leaders withhold none.
        """
        self._gate, self._owners, self._waiting_for_nothing = Gate(), owners, waiting_for_nothing
        facts = self._gate.facts
        for p, answer in lineages.items():
            self.on_lineage(p, answer)
            facts.on_position(p, positions.get(p, NO_OFFSET))
            facts.on_owner(p, is_owned=p in owners)
            facts.on_log_start(p, log_start_offsets.get(p, NO_OFFSET))
        self._gate.assign(p for p, answer in lineages.items() if answer.lineage is not None)

    def unknown(self, asked: Collection[int]) -> list[int]:
        """Partitions that are in lineages but not in ``asked``. These partitions may be deleted already."""
        return sorted({q for p in self._gate.owned for q in self._gate.named(p)} - set(asked))

    def ends_to_ask(self, asked: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
        """The (partition, leader epoch) pairs whose end offsets are needed and are not in ``asked``."""
        lineages = self._gate.facts.lineages
        wanted = {
            (q, f)
            for p in self._gate.owned
            for ask, q, f in self._gate.questions(p, lineages[p].as_of)
            if ask is QuestionKind.END
        }
        wanted |= {(p, self._gate.cap(p)) for p in self._gate.owned if 0 <= self._gate.cap(p) < lineages[p].as_of}
        return sorted(wanted - set(asked))

    def on_lineage(self, partition: int, answer: PartitionLineage) -> None:
        """Store a partition's lineage, the response to API 25301."""
        self._gate.facts.on_lineage(partition, answer.lineage, answer.over)

    def on_end(self, partition: int, epoch: int, end_offset: int) -> None:
        """Store the end offset, exclusive, of a past leader epoch."""
        self._gate.facts.on_end(partition, epoch, end_offset)

    def waits(self) -> list[BlockedBy]:
        """All waits, by partition."""
        return [
            BlockedBy(wait, self._has_nothing_else(p, wait.from_epoch - 1))
            for p in sorted(self._gate.owned)
            if p not in self._waiting_for_nothing
            for wait in self._gate.waits(p, self._owners.get)
        ]

    def _has_nothing_else(self, partition: int, up_to_epoch: int) -> bool:
        facts = self._gate.facts
        end = facts.ends.get(partition, {}).get(up_to_epoch, NO_OFFSET)
        reached = max(facts.positions.get(partition, NO_OFFSET), facts.log_starts.get(partition, NO_OFFSET))
        return up_to_epoch < 0 or 0 <= end <= reached
