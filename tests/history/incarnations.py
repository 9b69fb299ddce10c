"""Renames partitions that were removed and created again: each incarnation gets a topic name, ``topic#incarnation``.

So every check treats two incarnations as unrelated partitions, which must share nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import msgspec

from anabranch.protocol.types import TopicPartition
from tests.history.events import UNKNOWN, Created, Event, LayoutSet, Replica, StoredBatch


def incarnation_name(tp: TopicPartition, incarnation: int) -> TopicPartition:
    return TopicPartition(f"{tp.topic}#{incarnation}", tp.partition)


def topic_of(tp: TopicPartition) -> str:
    """The original topic of an incarnation's topic name."""
    return tp.topic.partition("#")[0]


def name_incarnations(events: Iterable[Event]) -> list[Event]:
    """Return the same events. If a partition had several incarnations, each incarnation has a topic name of its own."""
    events = list(events)
    incarnations = _Incarnations(events)
    return [incarnations.named(event) for event in events] if incarnations.several else events


class _Incarnations:
    def __init__(self, events: list[Event]) -> None:
        found: dict[TopicPartition, dict[int, None]] = {}
        for event in events:
            if isinstance(event, Created | LayoutSet | Replica) and event.incarnation != UNKNOWN:
                found.setdefault(event.tp, {})[event.incarnation] = None
        self.several = {tp: list(incarnations) for tp, incarnations in found.items() if len(incarnations) > 1}
        self._of_value: dict[tuple[TopicPartition, str], int] = {}
        self._created: dict[TopicPartition, list[tuple[float, int]]] = {}
        self._epochs: dict[TopicPartition, dict[int, int]] = {}
        for event in events:
            if isinstance(event, StoredBatch) and event.tp in self.several:
                self._of_value.update(((event.tp, value), event.incarnation) for value in event.values if value)
            elif isinstance(event, Created) and event.tp in self.several:
                self._created.setdefault(event.tp, []).append((event.at_ms, event.incarnation))
            elif isinstance(event, LayoutSet) and event.tp in self.several:
                self._epochs.setdefault(event.tp, {}).setdefault(event.incarnation, event.leader_epoch)

    def named(self, event: Any) -> Event:
        partitions = getattr(event, "partitions", None)
        if partitions is not None:
            names = [name for tp in partitions for name in self._names(tp)]
            return msgspec.structs.replace(event, partitions=names)
        tp = getattr(event, "tp", None)
        if tp not in self.several:
            return event
        return msgspec.structs.replace(event, tp=incarnation_name(tp, self._incarnation(event)))

    def _names(self, tp: TopicPartition) -> list[TopicPartition]:
        return [incarnation_name(tp, incarnation) for incarnation in self.several[tp]] if tp in self.several else [tp]

    def _incarnation(self, event: Any) -> int:
        """Find the incarnation of an event by its field, its stored value, its leader epoch, or its time.

        Leader epochs of an incarnation are above those of the previous one.
        """
        if getattr(event, "incarnation", UNKNOWN) != UNKNOWN:
            return event.incarnation
        stored = self._of_value.get((event.tp, getattr(event, "value", "")))
        if stored is not None:
            return stored
        epoch = getattr(event, "leader_epoch", UNKNOWN)
        begun = [
            (first, incarnation) for incarnation, first in self._epochs.get(event.tp, {}).items() if first <= epoch
        ]
        if begun:
            return max(begun)[1]
        created = self._created.get(event.tp, [])
        at = bisect_right(created, (getattr(event, "asked_ms", event.at_ms), float("inf")))
        return created[max(at - 1, 0)][1] if created else self.several[event.tp][-1]
