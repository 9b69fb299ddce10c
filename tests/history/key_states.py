"""A state for each key, as an application keeps one: read when its partition comes, written when it may go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from anabranch.protocol.types import TopicPartition


class NotLoadedError(Exception):
    """A record came from a partition whose state was never loaded."""


@dataclass(slots=True)
class KeyStates:
    """One member's states. ``stored`` is what all members of the group share, as a database would be.

    A state is the last value of a key. ``load`` copies what is stored at that moment, so a load that comes before
    another member's ``flush`` shows in every later answer of ``apply``. What the member changed itself and did not
    flush yet stays. A state goes with the generation it was changed in, and the store keeps the later one: a member
    that was given up without knowing it overwrites nothing.
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
        """Forget partitions that went elsewhere, and with them what was not flushed."""
        for tp in partitions:
            self._loaded.pop(tp, None)
            self._changed.pop(tp, None)

    def apply(self, tp: TopicPartition, key: str, value: str, generation: int) -> str:
        """The key's state before this value, "" for none. Raises ``NotLoadedError``."""
        if tp not in self._loaded:
            raise NotLoadedError(f"{value} came from {tp}, whose state was not loaded")
        _, before = self._loaded[tp].get(key, (0, ""))
        self._loaded[tp][key] = self._changed[tp][key] = generation, value
        return before
