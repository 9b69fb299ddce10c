"""States of keys, as an application keeps them: loaded at an assignment, and flushed before a revocation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from anabranch.protocol.types import TopicPartition


class NotLoadedError(Exception):
    """A record was delivered from a partition whose state was never loaded."""


@dataclass(slots=True)
class KeyStates:
    """One member's states. ``stored`` is shared by all members of the group, like a database.

    A state is the last value of a key. ``load`` copies the states that are stored at that moment. If another member's
    ``flush`` comes later, ``apply`` returns old states. The member's own unflushed changes stay. Each state has the
    generation of its change, and the store keeps the state of the later generation. So an evicted member that does not
    know of its eviction overwrites no newer state.
    """

    stored: dict[str, tuple[int, str]]
    _loaded: dict[TopicPartition, dict[str, tuple[int, str]]] = field(default_factory=dict)
    _changed: dict[TopicPartition, dict[str, tuple[int, str]]] = field(default_factory=dict)

    def load(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._loaded[tp] = {**self.stored, **self._changed.setdefault(tp, {})}

    def flush(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            for key, (generation, value) in self._changed.get(tp, {}).items():
                if self.stored.get(key, (generation, ""))[0] <= generation:
                    self.stored[key] = generation, value
            self._changed[tp] = {}

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions that went to other members, with their unflushed states."""
        for tp in partitions:
            self._loaded.pop(tp, None)
            self._changed.pop(tp, None)

    def apply(self, tp: TopicPartition, key: str, value: str, generation: int) -> str:
        """Apply a value, and return the key's state before it, "" for none. Raises ``NotLoadedError``."""
        if tp not in self._loaded:
            raise NotLoadedError(f"{value} came from {tp}, whose state was not loaded")
        _, before = self._loaded[tp].get(key, (0, ""))
        self._loaded[tp][key] = self._changed[tp][key] = generation, value
        return before
