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

from anabranch.protocol.types import TopicPartition

UNKNOWN: Final = -1
"""A generation, leader epoch, incarnation or partition the recorder cannot see."""

ARCHIVE: Final = -2
"""The broker of a copy of a partition's log that was made before its records were removed."""

EXPIRED: Final = -3
"""The broker of a batch that a log start passed, recorded when it did: see ``Expired``."""

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
    state: str | None = None
    """What the member's state had as the last value of this producer and key; "" for nothing, None: it keeps none."""


class Committed(_Event, tag="committed"):
    """A commit of a group's next offset to read, with what became of it."""

    group: str
    member: str
    generation: int
    tp: TopicPartition
    offset: int
    outcome: Outcome
    asked_ms: float
    incarnation: int = UNKNOWN


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
    incarnation: int = UNKNOWN


class Drained(_Event, tag="drained"):
    """After the faults were over, the group had read the partition up to ``end_offset`` as its leader gave it."""

    group: str
    tp: TopicPartition
    end_offset: int
    incarnation: int = UNKNOWN


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
    """Something was broken or mended; for the reader of a failure. A ``member crash`` names who cannot be asked."""

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
    incarnation: int = UNKNOWN


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
    incarnation: int = UNKNOWN

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.values)


# ---------------------------------------------------------------- ordered resize (KIP-253)


class OrderedGroup(_Event, tag="ordered_group"):
    """The members of this group deliver every key in order across resizes: what the promise is checked for."""

    group: str


class KeysLoaded(_Event, tag="keys_loaded"):
    """``on_partition_key_assigned`` returned: the member has the state of the keys these partitions may deliver."""

    group: str
    member: str
    generation: int
    partitions: list[TopicPartition]


class KeysFlushed(_Event, tag="keys_flushed"):
    """``on_partition_key_maybe_revoked`` returned: others can load the state of what these partitions delivered."""

    group: str
    member: str
    generation: int
    partitions: list[TopicPartition]


class PositionReported(_Event, tag="position_reported"):
    """A member sends the coordinator a position: all below is processed, flushed and, with ``commits``, committed.

    Without, the commit itself may be the report: it counts once it is committed.
    """

    group: str
    member: str
    generation: int
    tp: TopicPartition
    position: int
    incarnation: int = UNKNOWN
    commits: bool = True


class Heard(_Event, tag="heard"):
    """The coordinator answered a member whose session it had prolonged: it lasts until then at least, if not left."""

    group: str
    member: str
    until_ms: float


class PositionTold(_Event, tag="position_told"):
    """A coordinator tells a member the group's position on a partition."""

    group: str
    member: str
    tp: TopicPartition
    position: int
    incarnation: int = UNKNOWN


class Created(_Event, tag="created"):
    """A partition came to be. A removed one that comes again shares its name, and nothing else, with its predecessor.

    Where other events do not say which of them they mean, it is the one that was there at the time.
    """

    tp: TopicPartition
    incarnation: int


class Removed(_Event, tag="removed"):
    """A partition is gone, or will be for certain, with all that was held or committed of it.

    An ``ARCHIVE`` replica says what that was.
    """

    tp: TopicPartition
    incarnation: int


class LayoutSet(_Event, tag="layout_set"):
    """The layout that leaders of a partition's leader epoch take records by; later epochs keep it until the next."""

    tp: TopicPartition
    incarnation: int
    leader_epoch: int
    initial: int
    undeleted: int
    layout_version: int


class Expired(_Event, tag="expired"):
    """A replica's log start moves here: from now on what lies below need not be delivered any more.

    ``StoredBatch`` events of the broker ``EXPIRED`` say what that was. A history that tells of no log start of a
    partition, but for that of a ``Replica`` in the end, does not say when its records expired.
    """

    broker: int
    tp: TopicPartition
    log_start_offset: int
    incarnation: int = UNKNOWN


class LayoutAsked(_Event, tag="layout_asked"):
    """A producer named a layout in a request to write ``value``. ``error`` is the error's name, "" for no answer."""

    tp: TopicPartition
    undeleted: int
    layout_version: int
    error: str
    value: str


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
    | OrderedGroup
    | KeysLoaded
    | KeysFlushed
    | PositionReported
    | Heard
    | PositionTold
    | Created
    | Removed
    | LayoutSet
    | Expired
    | LayoutAsked
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
