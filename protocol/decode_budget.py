"""Bounds on what decoding one message may allocate: counted before the allocation, whatever the sender is.

A byte on the wire can become a hundred bytes of objects: an empty name and an empty array take three bytes. So the
decoders of large messages (``steps``) charge every object to a ``DecodeBudget``. A message that would cost more is
refused with the field at which the budget ended. Small messages need no budget: they are small.
"""

from __future__ import annotations

from collections.abc import Generator
from struct import unpack_from
from typing import Any, Final
from uuid import UUID

from anabranch.protocol.primitives import DecodeError, check_unknown_tags, read_tags

PAUSE: Final = True
"""A step that was as long as many: the loop gets its turn after it."""
AT_ONCE: Final = 1_000
"""Numbers that are unpacked in one step, and array items that are freed in one step."""

# The sizes of CPython's objects, on 64 bits, with their headers for the garbage collector.
STRUCT_BYTES: Final = 32
LIST_BYTES: Final = 72
NUMBER_BYTES: Final = 32
UUID_BYTES: Final = 112
VIEW_BYTES: Final = 208
ITEM_BYTES: Final = 9
"""A reference in a list, which grows by an eighth more than it needs."""
SMALLEST_SINGLE: Final = -5
LARGEST_SINGLE: Final = 256
"""CPython has one object for each number in this range."""
_MANY_NUMBERS: Final = 64


class BudgetError(DecodeError):
    """A message has more elements, or costs more memory, than its sender may use."""


class DecodeBudget:
    """What is left for one message. ``elements``: the items of all arrays; ``memory``: bytes of objects.

    ``limited_by`` is the config key of ``elements``, for the error.
    """

    __slots__ = (
        "_max_elements",
        "_max_memory",
        "_numbers",
        "elements",
        "large_arrays",
        "limited_by",
        "memory",
        "unknown_tags",
    )

    def __init__(self, elements: int, memory: int, limited_by: str = "") -> None:
        self._max_elements = self.elements = elements
        self._max_memory = self.memory = memory
        self.limited_by = limited_by
        self.unknown_tags = 0
        self._numbers: dict[int, int] = {}
        self.large_arrays: list[list[Any]] = []
        """The arrays with many items. Freeing one of them at once may hold the loop: see ``free_in_steps``."""

    @property
    def used_memory(self) -> int:
        """The bytes of objects that were made."""
        return self._max_memory - self.memory

    def new_array(self, path: str, count: int, item_bytes: int) -> list[Any]:
        """An empty list for ``count`` items, each of which costs ``item_bytes`` or more. Raises BudgetError."""
        self.elements -= count
        self.memory -= count * (item_bytes + ITEM_BYTES)
        self.check(path)
        made: list[Any] = []
        if count > AT_ONCE:
            self.large_arrays.append(made)
        return made

    def check(self, path: str) -> None:
        """Raise BudgetError if the budget is used up; ``path`` is the field that used the rest."""
        if self.elements < 0:
            key = f" ({self.limited_by})" if self.limited_by else ""
            raise BudgetError(f"{path}: more than {self._max_elements} elements in one message{key}")
        if self.memory < 0:
            raise BudgetError(f"{path}: the elements are so small that they need {self._max_memory} bytes of memory")

    def shared(self, number: int) -> int:
        """An object for a number that CPython has none for: one for each of the first thousand, such as broker ids."""
        found = self._numbers.get(number)
        if found is not None:
            return found
        self.memory -= NUMBER_BYTES
        if len(self._numbers) < AT_ONCE:
            self._numbers[number] = number
        return number

    def numbers(
        self, path: str, data: memoryview, pos: int, count: int, code: str, size: int
    ) -> Generator[bool | None, None, list[Any]]:
        """An array of ``count`` numbers, which are known to be in ``data``."""
        found = self.new_array(path, count, 0)
        while count > 0:
            some = unpack_from(f">{min(count, AT_ONCE)}{code}", data, pos)
            if min(some) < SMALLEST_SINGLE or max(some) > LARGEST_SINGLE:
                if len(some) < _MANY_NUMBERS:
                    some = tuple([self.shared(number) for number in some])
                else:
                    self.memory -= NUMBER_BYTES * len(some)
                self.check(path)
            found += some
            pos += size * len(some)
            count -= len(some)
            if len(some) >= _MANY_NUMBERS:
                yield PAUSE
        return found

    def uuids(self, path: str, data: memoryview, pos: int, count: int) -> Generator[bool | None, None, list[Any]]:
        """An array of ``count`` UUIDs, which are known to be in ``data``."""
        found = self.new_array(path, count, UUID_BYTES)
        for at in range(pos, pos + 16 * count, 16):
            found.append(UUID(bytes=bytes(data[at : at + 16])))
            yield None
        return found

    def read_tags(
        self, data: memoryview, pos: int, count: int, known: tuple[int, ...] = ()
    ) -> tuple[dict[int, memoryview], int]:
        """``primitives.read_tags``, with a bound for all structs of the message together."""
        tags, end, unknown = read_tags(data, pos, count, known)
        self.unknown_tags += unknown
        check_unknown_tags(self.unknown_tags, end)
        return tags, end


def free_in_steps(arrays: list[list[Any]]) -> Generator[bool | None, None, None]:
    """Free the items of large arrays in steps. Call it while the arrays exist, and drop them before the first step."""
    copies = [array[:] for array in arrays]
    arrays.clear()
    yield None
    while copies:
        items = copies.pop()
        while items:
            del items[-AT_ONCE:]
            yield PAUSE
