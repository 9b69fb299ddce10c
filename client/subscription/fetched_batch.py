"""Fetched batches and the records cut out of them, which are decoded only when they are read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, overload

from anabranch.client.config import Deserializer
from anabranch.client.errors import RecordDeserializationError
from anabranch.client.options import KeyOut, ValueOut
from anabranch.client.other_libraries import PAGE, RECORD
from anabranch.protocol.batch_layout import Header
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.key_placement import MOVED_HEADER
from anabranch.protocol.records import Record, RecordBatch, fields
from anabranch.protocol.types import Buffer, TopicPartition

_MOVED = MOVED_HEADER.encode()
LEAST_SHARE: Final = 4
"""Records are copied if they are less than a quarter of the response that they would keep in memory."""


class ConsumerRecord(NamedTuple, Generic[KeyOut, ValueOut]):
    """A record as consumed. ``timestamp`` is milliseconds since the Unix epoch, -1 for none."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    """The epoch of the leader that appended the record; -1 if the log does not have it."""
    timestamp: int
    timestamp_type: int
    """0 CreateTime, 1 LogAppendTime."""
    key: KeyOut
    value: ValueOut
    headers: Sequence[Header]


def _missing(record: ConsumerRecord[Any, Any], name: str) -> Any:
    instead = RECORD.get(name)
    text = f"a ConsumerRecord has no {name}" + ("" if instead is None else f": {instead}, see {PAGE}")
    raise AttributeError(text, name=name, obj=record)


if not TYPE_CHECKING:  # a type checker would accept every name
    ConsumerRecord.__getattr__ = _missing


@dataclass(frozen=True, slots=True)
class Deserializers:
    """The functions that turn the bytes of key and value into the user's objects. None: the user gets the bytes."""

    key: Deserializer | None = None
    value: Deserializer | None = None


def without_response(records: Buffer) -> Buffer:
    """The records, copied if they are a small part of their buffer: a view keeps the buffer of the whole response."""
    kept_bytes = memoryview(records.obj).nbytes if isinstance(records, memoryview) else len(records)
    return bytes(records) if len(records) * LEAST_SHARE < kept_bytes else records


def names_moved(records: Buffer) -> bool:
    """Whether an uncompressed batch in ``records`` may hold tombstones of moved keys. One search covers all batches."""
    return _MOVED in bytes(records)


class FetchedBatch:
    """One fetched batch, and the point where reading begins in it.

    ``taken`` counts the records given out, from the first at or after ``from_offset``. A control or aborted batch has
    no records to give out.
    """

    __slots__ = ("_has_holes", "_records", "_skipped", "batch", "count", "leader_epoch", "rows", "rows_end", "taken")

    def __init__(
        self, batch: RecordBatch, from_offset: int, *, visible: bool = True, may_hold_moved: bool = False
    ) -> None:
        self.batch = batch
        self.leader_epoch: int = batch.partition_leader_epoch
        self._records: list[Record] | None = None
        self.rows: Iterator[ConsumerRecord[Any, Any]] = iter(())
        """The next records, each followed by the next offset, while ``taken`` is below ``rows_end``."""
        self.rows_end = 0
        self._has_holes = batch.count != batch.last_offset_delta + 1
        self._skipped = 0
        self.taken = 0
        if not visible:
            self.count = 0
        elif may_hold_moved and self.leave_out_moved():
            assert self._records is not None
            self._skipped = sum(1 for record in self._records if record.offset < from_offset)
            self.count = len(self._records) - self._skipped
        elif from_offset <= batch.base_offset:
            self.count = batch.count
        elif not self._has_holes:
            self._skipped = from_offset - batch.base_offset
            self.count = batch.count - self._skipped
        else:
            self._records = batch.records()
            self._skipped = sum(1 for record in self._records if record.offset < from_offset)
            self.count = len(self._records) - self._skipped

    def leave_out_moved(self) -> bool:
        """Leave out tombstones of keys that moved to another partition. Returns True if there were any.

        These tombstones let compaction remove the key's old values here. A reader would get a tombstone after the newer
        value in the other partition.
        """
        if self.batch.compression is CompressionType.NONE and _MOVED not in self.batch.body():
            return False
        records = self.batch.records()
        self._records = [r for r in records if r.value is not None or MOVED_HEADER not in (h[0] for h in r.headers)]
        self._has_holes = self._has_holes or len(self._records) < len(records)
        return len(self._records) < len(records)

    @property
    def left(self) -> int:
        """Number of records that are not given out yet."""
        return self.count - self.taken

    @property
    def size_bytes(self) -> int:
        return self.batch.length

    def position(self) -> int:
        """The offset at which reading continues after the records given out."""
        if self.taken == self.count:
            return self.batch.next_offset
        if not self._has_holes:
            return self.batch.base_offset + self._skipped + self.taken
        return self.decoded()[self._skipped + self.taken].offset

    def offset_after(self, stop: int) -> int:
        """The offset after the record before index ``stop`` of ``decoded``."""
        return self.decoded()[stop - 1].offset + 1 if self._has_holes else self.batch.base_offset + stop

    def take(self, limit: int) -> tuple[FetchedBatch, int, int]:
        """Give out at most ``limit`` records. Returns this batch and a range of indexes into ``decoded``."""
        start = self._skipped + self.taken
        count = min(limit, self.left)
        self.taken += count
        self.rows_end = 0
        if self.left:
            self._records = self.decoded()  # given out in pieces: decoded once
        return self, start, start + count

    def prepare_rows(self, tp: TopicPartition, deserializers: Deserializers, limit: int) -> None:
        """Put the next records into ``rows``, at most ``limit``, but not the last record of the batch.

        Without a limit each look for other partitions would prepare the whole rest of a large batch again.
        """
        count = min(limit, self.left - 1)
        if count > 0 and not self._has_holes:
            start = self._skipped + self.taken
            # An iterator of Records that have this batch would refer back to it, and wait for the garbage collector.
            self.rows = Records(tp, [], deserializers)._decode_span((self, start, start + count))
            self.rows_end = self.taken + count

    def give_back(self, count: int) -> None:
        """Take back the last ``count`` records that were given out."""
        self.taken -= count
        self.rows_end = 0

    def decoded(self) -> list[Record]:
        """All records of the batch. Raises CorruptRecordError if its body is damaged."""
        return self._records if self._records is not None else self.batch.records()


class Records(Sequence[ConsumerRecord[KeyOut, ValueOut]], Generic[KeyOut, ValueOut]):
    """Records of one partition in offset order, decoded while they are read.

    Iterating decodes batch by batch and keeps nothing. Indexing decodes all records and keeps them. ``len`` decodes
    nothing. If a deserializer fails for a record, reading this record raises ``RecordDeserializationError``.
    """

    __slots__ = ("_deserializers", "_items", "_length", "_spans", "partition")

    def __init__(
        self, partition: TopicPartition, spans: list[tuple[FetchedBatch, int, int]], deserializers: Deserializers
    ) -> None:
        self.partition = partition
        self._spans = spans
        self._deserializers = deserializers
        self._length = sum(stop - start for _, start, stop in spans)
        self._items: list[ConsumerRecord[KeyOut, ValueOut]] | None = None

    @property
    def spans(self) -> list[tuple[FetchedBatch, int, int]]:
        """The records as ranges of indexes into fetched batches."""
        return self._spans

    @property
    def first_batch(self) -> RecordBatch:
        """The batch that the first record comes from."""
        return self._spans[0][0].batch

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[ConsumerRecord[KeyOut, ValueOut]]:
        return iter(self._items) if self._items is not None else self._decode()

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord[KeyOut, ValueOut]: ...
    @overload
    def __getitem__(self, index: slice) -> list[ConsumerRecord[KeyOut, ValueOut]]: ...
    def __getitem__(
        self, index: int | slice
    ) -> ConsumerRecord[KeyOut, ValueOut] | list[ConsumerRecord[KeyOut, ValueOut]]:
        if self._items is None:
            self._items = list(self._decode())
        return self._items[index]

    def __repr__(self) -> str:
        return f"Records({self.partition}, {self._length} records)"

    def _decode(self) -> Iterator[ConsumerRecord[KeyOut, ValueOut]]:
        """The records, each made without a step of the interpreter unless it has a deserializer.

        The iterator ends at an error. One that went on would join the key of one record and the value of another.
        """
        records = itertools.chain.from_iterable(self._decode_span(span) for span in self._spans)
        is_plain = self._deserializers.key is None and self._deserializers.value is None
        return records if is_plain else (record for record in records)

    def _decode_span(self, span: tuple[FetchedBatch, int, int]) -> Iterator[ConsumerRecord[KeyOut, ValueOut]]:
        fetched, start, stop = span
        offsets, timestamps, keys, values, headers = fields(fetched.decoded()[start:stop])
        topic, partition = map(repeat, self.partition)
        epoch, kind = repeat(fetched.leader_epoch), repeat(fetched.batch.timestamp_type)
        key, value = self._deserializers.key, self._deserializers.value
        shown = (
            keys if key is None else map(self._deserialize, repeat(key), offsets, keys),
            values if value is None else map(self._deserialize, repeat(value), offsets, values),
        )
        rows = zip(topic, partition, offsets, epoch, timestamps, kind, *shown, headers)  # stops with ``offsets``
        return map(tuple.__new__, repeat(ConsumerRecord), rows)

    def _deserialize(self, deserializer: Deserializer, offset: int, data: bytes | None) -> Any:
        try:
            return deserializer(data)
        except Exception as error:
            raise RecordDeserializationError(self.partition, offset, error) from error
