"""Type names for the integers of the protocol, so that a signature shows which one it takes.

NewTypes cost nothing at run time. ``-1`` stands for "none" wherever Kafka uses it.
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple, NewType, Protocol, TypeAlias

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
BrokerId = NewType("BrokerId", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
Sequence = NewType("Sequence", int)

NO_OFFSET: Final = Offset(-1)
NO_LEADER: Final = BrokerId(-1)
NO_LEADER_EPOCH: Final = LeaderEpoch(-1)
NO_PRODUCER_ID: Final = ProducerId(-1)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
NO_SEQUENCE: Final = Sequence(-1)
ZERO_UUID: Final = uuid.UUID(int=0)

Buffer: TypeAlias = bytes | bytearray | memoryview


class SizedPart(Protocol):
    """Bytes outside of memory, such as a piece of a file: only their number is needed to frame them."""

    def __len__(self) -> int: ...


Part: TypeAlias = Buffer | SizedPart
"""One piece of an encoded message. Pieces are sent in order; a piece that is no buffer is the caller's to send."""


class TopicPartition(NamedTuple):
    """A partition of a topic. Sorts by topic, then by partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
