"""Types that signatures of all packages share: buffers, parts of a message, and a partition of a topic."""

from __future__ import annotations

import uuid
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
