"""The events of a history: the workload's requests and responses, and the disks' contents at the end of the run.

A history is a sequence of small typed events in the order of recording. All times are of one clock (virtual or real). A
record is identified by its value, which must be unique in the history. The event of a response also has
the time at which the request was sent, so that the checker knows which events came before the request. One event is one
line of JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from anabranch.protocol.types import TopicPartition

UNKNOWN: Final = -1
"""Stands for a generation, leader epoch, incarnation or partition that the recorder cannot see."""

ARCHIVE: Final = -2
"""The broker number for a copy of a partition's log that was made before its records were removed."""

EXPIRED: Final = -3
"""The broker number for a batch that is about to expire: see ``Expired``."""

Outcome: TypeAlias = Literal["ok", "refused", "unknown"]
"""The outcome of a request. A timeout or a lost connection is ``unknown``: the request may have been applied."""


class _Event(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True):
    at_ms: float


# ---------------------------------------------------------------- producers


class Sent(_Event, tag="sent"):
    """A record was passed to a producer. ``partition`` is ``UNKNOWN`` when the producer chooses it.

    A producer with ``names_layouts`` keeps the order of a key across resizes. Another producer may write a record to
    its old partition after a later record of the key to the new one.
    """

    producer: str
    topic: str
    key: str
    value: str
    partition: int = UNKNOWN
    idempotent: bool = True
    names_layouts: bool = True


class Acked(_Event, tag="acked"):
    """The record was acknowledged at an offset, with acks=all.

    The offset is ``UNKNOWN`` for a duplicate of a batch whose offset the broker no longer has.
    """

    producer: str
    tp: TopicPartition
    offset: int
    value: str


class NotWritten(_Event, tag="not_written"):
    """The record failed. ``refused``: the log does not have it (not sent, or always refused). ``unknown``: it may."""

    producer: str
    value: str
    outcome: Outcome
    error: str = ""


# ---------------------------------------------------------------- groups


class Assigned(_Event, tag="assigned"):
    """A member got these partitions in a generation, in addition to its others."""

    group: str
    member: str
    generation: int
    partitions: list[TopicPartition]


class Revoked(_Event, tag="revoked"):
    """A member gave up these partitions. ``lost``: other members may have got them before."""

    group: str
    member: str
    generation: int
    partitions: list[TopicPartition]
    lost: bool = False


class Positioned(_Event, tag="positioned"):
    """A member got a new position, by a seek or by a reset without a committed offset."""

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
    """The last value of this producer and key in the member's state; "" for none, None when it keeps no state."""


class Committed(_Event, tag="committed"):
    """A commit of a group's next offset to read, with its outcome."""

    group: str
    member: str
    generation: int
    tp: TopicPartition
    offset: int
    outcome: Outcome
    asked_ms: float
    incarnation: int = UNKNOWN


class OffsetFetched(_Event, tag="offset_fetched"):
    """A group's committed offset in a coordinator's response; -1 is none.

    ``current`` is False when another coordinator may have replaced this one without its knowledge. The replaced
    coordinator responds with its old state, and no epoch in the response shows that. Members are safe from such a
    response, because no rebalance completes at the replaced coordinator.
    """

    group: str
    tp: TopicPartition
    offset: int
    asked_ms: float
    current: bool = True
    incarnation: int = UNKNOWN


class Drained(_Event, tag="drained"):
    """After the faults, the group has read the partition up to ``end_offset``, which its leader reported."""

    group: str
    tp: TopicPartition
    end_offset: int
    incarnation: int = UNKNOWN


# ---------------------------------------------------------------- the cluster


class WatermarkSeen(_Event, tag="watermark"):
    """A broker responded with a high watermark as the leader of ``leader_epoch``.

    ``via`` is ``list`` for ListOffsets, whose result must never go back (KIP-207). It is ``fetch`` for Fetch: there a
    new leader may show a lower high watermark than its predecessor.
    """

    tp: TopicPartition
    broker: int
    leader_epoch: int
    offset: int
    asked_ms: float
    via: Literal["list", "fetch"] = "list"


class Fault(_Event, tag="fault"):
    """A fault began or ended. The checks use only ``member crash``, which names the member."""

    kind: str
    what: str


class Replica(_Event, tag="replica"):
    """The log of a replica at the end of the run. Its batches follow as ``StoredBatch`` events in the log's order.

    ``in_sync`` is False for a replica that may lack committed records, such as the replica of a broker that is still
    down.
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

    ``values`` has one value for each offset from ``base_offset``; None is an offset without a data record, because it
    was compacted or is a control record.
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
    """The members of this group deliver every key in order across resizes: the promise is checked for this group."""

    group: str


class KeysLoaded(_Event, tag="keys_loaded"):
    """``on_partition_key_assigned`` returned: the member has loaded the state of these partitions' keys."""

    group: str
    member: str
    generation: int
    partitions: list[TopicPartition]


class KeysFlushed(_Event, tag="keys_flushed"):
    """``on_partition_key_maybe_revoked`` returned: other members can load the state of these partitions' keys."""

    group: str
    member: str
    generation: int
    partitions: list[TopicPartition]


class PositionReported(_Event, tag="position_reported"):
    """A member reports a position: all records below it are processed, flushed and, with ``commits``, committed.

    Without ``commits``, the report may be a commit request, and counts once the commit is accepted.
    """

    group: str
    member: str
    generation: int
    tp: TopicPartition
    position: int
    incarnation: int = UNKNOWN
    commits: bool = True


class SessionExtended(_Event, tag="session_extended"):
    """A coordinator extended a member's session and responded. The session lasts at least until this time."""

    group: str
    member: str
    until_ms: float


class PositionAnswered(_Event, tag="position_answered"):
    """A coordinator responds to a member with the group's position in a partition."""

    group: str
    member: str
    tp: TopicPartition
    position: int
    incarnation: int = UNKNOWN


class Created(_Event, tag="created"):
    """A partition was created. If the number was used before, the two partitions share only their name.

    An event without an incarnation belongs to the partition that existed at the time.
    """

    tp: TopicPartition
    incarnation: int


class Removed(_Event, tag="removed"):
    """A partition is removed, or certain to be removed, with its records and commits.

    An ``ARCHIVE`` replica has the records of the removed partition.
    """

    tp: TopicPartition
    incarnation: int


class LayoutSet(_Event, tag="layout_set"):
    """From this leader epoch of a partition on, leaders accept records by this layout, until the next such event."""

    tp: TopicPartition
    incarnation: int
    leader_epoch: int
    initial: int
    undeleted: int
    layout_version: int


class Expired(_Event, tag="expired"):
    """A replica's log start moves to this offset: records below the offset need not be delivered any more.

    ``StoredBatch`` events of the broker ``EXPIRED`` have these records. A partition without such events has only the
    final log starts in its ``Replica`` events. The time when its records expired is not known.
    """

    broker: int
    tp: TopicPartition
    log_start_offset: int
    incarnation: int = UNKNOWN


class LayoutAsked(_Event, tag="layout_asked"):
    """A producer named a layout in a Produce request for ``value``. ``error`` is the error's name, "" for none."""

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
    | SessionExtended
    | PositionAnswered
    | Created
    | Removed
    | LayoutSet
    | Expired
    | LayoutAsked
)

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """The event as one line, with a newline."""
    return _ENCODER.encode(event) + b"\n"


def decode_event(line: bytes) -> Event:
    """The event in a line that ``encode_event`` returned. Raises ``msgspec.DecodeError`` for any other line."""
    return _DECODER.decode(line)


def write_history(path: Path, events: Iterable[Event]) -> None:
    with path.open("wb") as file:
        for event in events:
            file.write(encode_event(event))


def read_history(path: Path) -> Iterator[Event]:
    """The events of a file, in order."""
    with path.open("rb") as file:
        for line in file:
            yield decode_event(line)
