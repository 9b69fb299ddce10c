"""Types that signatures of all packages share: buffers, parts of a message, and a partition of a topic."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeAlias

ZERO_UUID: Final = uuid.UUID(int=0)

Buffer: TypeAlias = bytes | bytearray | memoryview


class SizedPart(Protocol):
    """Bytes outside of memory, such as a piece of a file: only their number is needed to frame them."""

    def __len__(self) -> int: ...


Part: TypeAlias = Buffer | SizedPart
"""One piece of an encoded message. Pieces are sent in order. The sender must support pieces that are no buffers."""


class TopicPartition(NamedTuple):
    """A partition of a topic. Sorts by topic, then by partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


_make_partition: Callable[..., TopicPartition] = TopicPartition.__new__


@functools.wraps(_make_partition)
def _new_partition(cls: type[TopicPartition], topic: str, partition: int, offset: object = None) -> TopicPartition:
    """Refuse the offset that the class of another library has."""
    if offset is not None:
        raise TypeError("a TopicPartition has no offset: use seek(tp, offset), or commit({tp: offset})")
    return tuple.__new__(cls, (topic, partition))


TopicPartition.__new__ = _new_partition  # type: ignore[method-assign,assignment]
