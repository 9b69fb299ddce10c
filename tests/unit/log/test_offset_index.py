"""The search in the offset index, compared with a search through all entries."""

from __future__ import annotations

import random
from typing import Any

import pytest

from anabranch.broker.log.offset_index import OffsetIndex


class NoStorage:
    """A storage without a file."""

    def read_bytes(self, path: str) -> bytes:
        raise FileNotFoundError(path)


@pytest.mark.parametrize("largest_step", [1, 2, 50, 1_000_000])
@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 18, 40, 300])
def test_a_search_finds_the_last_entry_at_or_below_a_value_however_the_batches_differ(
    count: int, largest_step: int
) -> None:
    rng = random.Random(count * largest_step)
    storage: Any = NoStorage()
    index = OffsetIndex(storage, "00000000000000000100.index", 100)
    entries = [(100, 0)]
    for _ in range(count):
        offset, position = (each + rng.choice([1, rng.randint(1, largest_step), largest_step]) for each in entries[-1])
        entries.append((offset, position))
        index.append(offset, position)
    values = {near for entry in entries for each in entry for near in (each - 1, each, each + 1)}
    for value in {*values, *(rng.randint(0, 101 + 2 * entries[-1][0]) for _ in range(50))}:
        below = [entry for entry in entries[1:] if entry[0] <= value]
        assert index.lookup(value) == (below[-1] if below else (100, 0)), value
        below = [entry for entry in entries[1:] if entry[1] <= value]
        assert index.position_floor(value) == (below[-1] if below else (100, 0)), value
