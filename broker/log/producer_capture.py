"""Takes a snapshot of many producers in steps. The snapshot has each producer as it was when the snapshot began."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.broker.log.producer_files import Packed, StoredProducer, pack, parts_of_both

PRODUCERS_AT_ONCE = 1_000
"""The number of producers in one step. A partition with at most so many producers is written in one piece."""


class ProducerCapture:
    """The producers at ``offset``. ``keep`` adds a producer before it changes; ``step`` adds all other producers."""

    __slots__ = ("_packed", "offset", "pending")

    def __init__(self, producers: Mapping[int, StoredProducer], offset: int) -> None:
        self.offset = offset
        self.pending = dict(producers)
        self._packed: list[Packed] = []

    def keep(self, producer_id: int) -> None:
        """Add a producer that is about to change, unless it was added already or is newer than the snapshot."""
        producer = self.pending.pop(producer_id, None)
        if producer is not None:
            self._packed.append(pack([producer]))

    def step(self) -> bool:
        """Add ``PRODUCERS_AT_ONCE`` producers; returns whether some are still to be added."""
        some = [self.pending.popitem()[1] for _ in range(min(PRODUCERS_AT_ONCE, len(self.pending)))]
        self._packed.append(pack(some))
        return bool(self.pending)

    def parts(self) -> tuple[list[bytes], list[bytes]]:
        """The contents of both files, once ``step`` has added all producers. Call it once."""
        packed, self._packed = self._packed, []
        return parts_of_both(packed)
