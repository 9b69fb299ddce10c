"""Rules of the delivery gate switched off, one at a time, for tests that have to notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from client.ordered_delivery import gate
from client.ordered_delivery.barriers import NO_LIMIT
from client.ordered_delivery.gate import DeliveryGate

Patch = pytest.MonkeyPatch


def no_creation_barrier(patch: Patch) -> None:
    patch.setattr(DeliveryGate, "_creation", lambda *_: [])


def no_deletion_barrier(patch: Patch) -> None:
    patch.setattr(gate, "marked_descendants", lambda *_: ())


def a_blocked_parent_frees_its_child(patch: Patch) -> None:
    """A parent's own parents do not count, and a partition that is blocked tells its position."""
    patch.setattr(DeliveryGate, "has_position", lambda *_: True)
    patch.setattr(gate, "chain", lambda p, initial: (p,) if p >= initial else ())


def only_what_names_the_survivor(patch: Patch) -> None:
    original, descendants = DeliveryGate._deletion, gate.marked_descendants

    def deletion(self: Any, topic: Any, p: int, held: Any, ask: Any) -> list[Any]:
        def named(partition: int, *counts: int) -> tuple[int, ...]:
            maps = {q: self._map(topic, q) for q in descendants(partition, *counts)}
            return tuple(q for q, known in maps.items() if known is None or known.merged_into == p)

        patch.setattr(gate, "marked_descendants", named)
        return original(self, topic, p, held, ask)

    patch.setattr(DeliveryGate, "_deletion", deletion)


def a_marked_partition_waits_for_nobody(patch: Patch) -> None:
    """Also not for what an earlier merge brought it."""
    original = gate.marked_descendants

    def marked_descendants(partition: int, initial: int, undeleted: int, total: int) -> tuple[int, ...]:
        return original(partition, initial, undeleted, total) if partition < undeleted else ()

    patch.setattr(gate, "marked_descendants", marked_descendants)


def an_expired_log_start_counts_for_every_partition(patch: Patch) -> None:
    """Also for one whose live owner has delivered records and not flushed them."""
    original = DeliveryGate._log_start_passed

    def passed(self: Any, tp: Any, info: Any, end: int, ask: Any) -> bool:
        held, awaited = self._held, self._owners_awaited
        self._held, self._owners_awaited = {}, False
        try:
            return original(self, tp, info, end, ask)
        finally:
            self._held, self._owners_awaited = held, awaited

    patch.setattr(DeliveryGate, "_log_start_passed", passed)


def batches_of_any_epoch_are_delivered(patch: Patch) -> None:
    """A partition that neither a split nor a merge is known to hold back is delivered without a limit."""
    _lift_caps(patch, lambda _gate, _tp: True)


def batches_of_epochs_to_come_are_delivered(patch: Patch) -> None:
    """The same, but only of a partition that was decided about by all that its metadata says."""

    def is_decided(gate: Any, tp: Any) -> bool:
        info = gate._info(tp)
        return info is not None and bool(info.leader_epoch == gate._held[tp].evaluated_epoch)

    _lift_caps(patch, is_decided)


def _lift_caps(patch: Patch, where: Callable[[Any, Any], bool]) -> None:
    original = DeliveryGate.cap

    def cap(self: Any, tp: Any) -> int:
        held, limit = self._held.get(tp), original(self, tp)
        return NO_LIMIT if held is not None and limit == held.evaluated_epoch and where(self, tp) else limit

    patch.setattr(DeliveryGate, "cap", cap)


def maps_of_any_incarnation_count(patch: Patch) -> None:
    def on_map(self: Any, tp: Any, answer: Any) -> None:
        topic = self._topics.get(tp.topic)
        info = topic.partitions.get(tp.partition) if topic is not None else None
        if info is not None:
            answer = answer._replace(incarnation=info.incarnation)
            self._maps[tp] = answer, self._map_version(topic, tp.partition, answer)
            self._dirty[tp.topic] = None

    patch.setattr(DeliveryGate, "on_map", on_map)
