"""What happened in a run, as small typed events: what the workload did and was told, and what is on the disks after it.

A history is a sequence of events in the order in which they were recorded, all by one clock (virtual or real). A record
is known by its value, which must be unique in the history. An event that is the answer to a request says when it was
asked, so that the checker knows what was over before the request began. One event is one line of JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from protocol.types import TopicPartition

UNKNOWN: Final = -1
"""A generation, leader epoch or partition the recorder cannot see."""

Outcome: TypeAlias = Literal["ok", "refused", "unknown"]
"""What became of a request. A timeout or a lost connection is ``unknown``: it may still have happened."""


class _Event(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True):
    at_ms: float


# ---------------------------------------------------------------- producers


class Sent(_Event, tag="sent"):
    """A producer was given a record. ``partition`` is ``UNKNOWN`` where the producer chooses."""

    producer: str
    topic: str
    key: str
    value: str
    partition: int = UNKNOWN
    idempotent: bool = True


class Acked(_Event, tag="acked"):
    """The record was acknowledged at an offset, with acks=all.

    The offset is ``UNKNOWN`` where a retry was answered as a duplicate of a batch the broker no longer remembers.
    """

    producer: str
    tp: TopicPartition
    offset: int
    value: str


class NotWritten(_Event, tag="not_written"):
    """``refused``: for certain not in the log (never sent, or each attempt was refused). ``unknown``: may be in it."""

    producer: str
    value: str
    outcome: Outcome
    error: str = ""


# ---------------------------------------------------------------- groups


class Assigned(_Event, tag="assigned"):
    """A member got these partitions (in addition to those it has) in a generation."""

    group: str
    member: str
    generation: int
    partitions: list[TopicPartition]


class Revoked(_Event, tag="revoked"):
    """A member gave these partitions up; ``lost`` when others may have had them already."""

    group: str
    member: str
    generation: int
    partitions: list[TopicPartition]
    lost: bool = False


class Positioned(_Event, tag="positioned"):
    """A member was told where to read on: a seek, or the reset of a position without a committed offset."""

    group: str
    member: str
    tp: TopicPartition
    offset: int


class Polled(_Event, tag="polled"):
    """A record was delivered to a member."""

    group: str
    member: str
    tp: TopicPartition
    offset: int
    value: str
    generation: int = UNKNOWN
    leader_epoch: int = UNKNOWN


class Committed(_Event, tag="committed"):
    """A commit of a group's next offset to read, with what became of it."""

    group: str
    member: str
    generation: int
    tp: TopicPartition
    offset: int
    outcome: Outcome
    asked_ms: float


class OffsetFetched(_Event, tag="offset_fetched"):
    """A group's committed offset as a coordinator answered it; -1 is none.

    ``current`` is False where the coordinator may have been deposed without knowing it: it then answers what it knew.
    Such an answer carries no epoch that would say so. A member is safe from it, for no rebalance completes there.
    """

    group: str
    tp: TopicPartition
    offset: int
    asked_ms: float
    current: bool = True


class Drained(_Event, tag="drained"):
    """After the faults were over, the group had read the partition up to ``end_offset`` as its leader gave it."""

    group: str
    tp: TopicPartition
    end_offset: int


# ---------------------------------------------------------------- the cluster


class WatermarkSeen(_Event, tag="watermark"):
    """A broker answered a high watermark as the leader of ``leader_epoch``.

    ``via`` is ``list`` for ListOffsets, which must never go back (KIP-207), and ``fetch`` for Fetch, where a new leader
    may know less than its predecessor told.
    """

    tp: TopicPartition
    broker: int
    leader_epoch: int
    offset: int
    asked_ms: float
    via: Literal["list", "fetch"] = "list"


class Fault(_Event, tag="fault"):
    """Something was broken or mended; for the reader of a failure."""

    kind: str
    what: str


class Replica(_Event, tag="replica"):
    """The log of a replica at the end of the run. Its batches follow as ``StoredBatch`` events in the log's order.

    ``in_sync`` is False for one that may lack committed records, such as the replica of a broker that is still down.
    """

    broker: int
    tp: TopicPartition
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    in_sync: bool = True


class StoredBatch(_Event, tag="stored"):
    """A batch on a replica. ``digest`` stands for all its bytes.

    ``values`` is one value for each offset from ``base_offset``; None is an offset without a data record (compacted
    away, or a control record).
    """

    broker: int
    tp: TopicPartition
    base_offset: int
    leader_epoch: int
    digest: str
    values: list[str | None]
    producer_id: int = UNKNOWN
    producer_epoch: int = UNKNOWN
    base_sequence: int = UNKNOWN

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.values)


Event: TypeAlias = (
    Sent
    | Acked
    | NotWritten
    | Assigned
    | Revoked
    | Positioned
    | Polled
    | Committed
    | OffsetFetched
    | Drained
    | WatermarkSeen
    | Fault
    | Replica
    | StoredBatch
)

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """One line, with its end."""
    return _ENCODER.encode(event) + b"\n"


def decode_event(line: bytes) -> Event:
    """The inverse of ``encode_event``. Raises ``msgspec.DecodeError`` for a line that is no event."""
    return _DECODER.decode(line)


def write_history(path: Path, events: Iterable[Event]) -> None:
    with path.open("wb") as file:
        for event in events:
            file.write(encode_event(event))


def read_history(path: Path) -> Iterator[Event]:
    """The events of a file, in its order."""
    with path.open("rb") as file:
        for line in file:
            yield decode_event(line)
