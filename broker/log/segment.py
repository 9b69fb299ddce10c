"""One segment: a ``.log`` file of batches and its indexes."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

import trio

from anabranch.broker.log.cold_reads import ColdError, check_warm
from anabranch.broker.log.index_file import IndexFile
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.offset_index import OffsetIndex
from anabranch.broker.log.paths import DELETED_SUFFIX, LOG_SUFFIX, SEGMENT_SUFFIXES, segment_file
from anabranch.broker.log.time_index import TimeIndex
from anabranch.broker.log.txn_index import TxnIndex
from anabranch.protocol.batch_builder import RECORDS_AT_ONCE
from anabranch.protocol.batch_layout import HEADER_BYTES, Buffer
from anabranch.protocol.compression import CorruptRecordError
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.sentinels import NO_TIMESTAMP
from anabranch.runtime.env import File, Storage

MAX_RELATIVE_OFFSET = 2**31 - 1
_SCAN_CHUNK_BYTES = 64 * 1024
_LOCATE_CHUNK_BYTES = 8 * 1024
_RECENT_BATCHES = 64
CUT_AT_ONCE_BYTES = 16 << 20
"""Up to this many bytes are truncated at once: that takes a millisecond."""


Header: TypeAlias = tuple[int, RecordBatch]
"""The position of a batch, and a view of its header of 61 bytes, without the records."""


def scan_headers(
    file: File, position: int, end: int, chunk_bytes: int = _SCAN_CHUNK_BYTES, *, waits: bool = True
) -> Iterator[Header]:
    """Yields the header of each batch in [position, end) of a log file, without a batch that is cut off at the end.

    Raises ``CorruptRecordError`` if no batch begins at a position. If ``waits`` is False, raises ``ColdError`` instead
    of waiting for the disk.
    """
    chunk, chunk_at, last_length = memoryview(b""), position, 0
    while position + HEADER_BYTES <= end:
        relative = position - chunk_at
        if relative + HEADER_BYTES > len(chunk):
            wanted = HEADER_BYTES if last_length > chunk_bytes // 4 else min(chunk_bytes, end - position)
            if not waits:
                check_warm(file, position, wanted)
            chunk, chunk_at, relative = memoryview(file.pread(position, wanted)), position, 0
            if len(chunk) < HEADER_BYTES:
                return
        batch = RecordBatch(chunk[relative : relative + HEADER_BYTES])
        last_length = batch.length
        if last_length < HEADER_BYTES or batch.magic != 2 or batch.last_offset_delta < 0:
            raise CorruptRecordError(f"{file.path}: no batch at byte {position}")
        if position + last_length > end:
            return
        yield position, batch
        position += last_length


class BatchPosition(NamedTuple):
    """The position of a batch in a log file."""

    position: int
    length: int
    last_offset: int


class ClosedSegment(NamedTuple):
    """The state of a segment whose files are complete and closed."""

    base_offset: int
    size_bytes: int
    max_timestamp: int
    offset_of_max_timestamp: int
    bytes_since_index: int


class LogSegment:
    """A segment's files, and their state in memory for appends and look-ups.

    ``size_bytes`` is the log file's valid size. The log file is opened on first use; indexes hold no descriptor. The
    ``.log`` of a new segment is created last: only then does the segment exist.
    """

    __slots__ = (
        "_bytes_since_index",
        "_file",
        "_index_interval_bytes",
        "_max_index_entries",
        "_max_time_entries",
        "_prepared",
        "_recent_last_offsets",
        "_recent_positions",
        "_storage",
        "_suffix",
        "awaits_cut",
        "base_offset",
        "created_ms",
        "directory",
        "is_flushed",
        "is_sealed",
        "max_timestamp",
        "offset_index",
        "offset_of_max_timestamp",
        "rolling_timestamp",
        "size_bytes",
        "time_index",
        "txn_index",
    )

    def __init__(
        self,
        storage: Storage,
        directory: str,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
        *,
        create: bool = False,
        suffix: str = "",
        in_place_of: str = "",
        closed: ClosedSegment | None = None,
    ) -> None:
        """``create``: create the files. ``in_place_of``: an empty log file that is renamed and used as the log file.

        ``closed``: the state in which the files were left; no file is read.

        Raises ``OSError``; then no log file was created or renamed.
        """
        self._storage = storage
        self.directory = directory
        self._suffix = suffix
        self.base_offset = base_offset
        self.created_ms = now_ms
        self._file: File | None = None
        self._prepared = False
        self.is_sealed = False
        """Whether the index files are complete."""
        self.is_flushed = False
        """Whether the log file may be closed and opened again, because all its writes are synced."""
        self.awaits_cut = False
        """Whether the log file is longer than ``size_bytes``: nothing may be appended before ``cut_tail``."""
        if create:
            for leftover in (self.path(LOG_SUFFIX), self.path(".txnindex")):
                if storage.exists(leftover):
                    storage.remove(leftover)
        self.offset_index = OffsetIndex(storage, self.path(".index"), base_offset, create=create)
        self.time_index = TimeIndex(storage, self.path(".timeindex"), base_offset, create=create)
        self.txn_index = TxnIndex(storage, self.path(".txnindex"), is_new=create)
        if in_place_of:
            storage.rename(in_place_of, self.path(LOG_SUFFIX))
        elif create:
            self._file = storage.open(self.path(LOG_SUFFIX), create=True)
        self.size_bytes = 0 if create else storage.size(self.path(LOG_SUFFIX)) if closed is None else closed.size_bytes
        self.max_timestamp: int | None = NO_TIMESTAMP if create else None
        self.offset_of_max_timestamp = base_offset
        self.rolling_timestamp: int | None = None
        self._bytes_since_index = 0
        self._recent_last_offsets: list[int] = []
        self._recent_positions: list[int] = []
        self.configure(config)
        if closed is not None:
            self.max_timestamp, self.offset_of_max_timestamp = closed.max_timestamp, closed.offset_of_max_timestamp
            self._bytes_since_index = closed.bytes_since_index
            self.is_sealed = self.is_flushed = True

    @property
    def closed(self) -> ClosedSegment:
        """The state to pass as ``closed`` when the files are used again. Raises ``OSError``."""
        largest = self.largest_timestamp()
        return ClosedSegment(
            self.base_offset, self.size_bytes, largest, self.offset_of_max_timestamp, self._bytes_since_index
        )

    def configure(self, config: LogConfig) -> None:
        """Use the index sizes of a configuration."""
        self._index_interval_bytes = config.index_interval_bytes
        self._max_index_entries = config.segment_index_bytes // 8
        self._max_time_entries = config.segment_index_bytes // 12 - 1

    @property
    def indexes(self) -> tuple[IndexFile, ...]:
        """The offset, the time and the transaction index."""
        return self.offset_index, self.time_index, self.txn_index

    def path(self, suffix: str) -> str:
        """Path of one of the segment's files."""
        return segment_file(self.directory, self.base_offset, suffix) + self._suffix

    @property
    def file(self) -> File:
        """The log file, opened when it was not."""
        if self._file is None:
            self._file = self._storage.open(self.path(".log"))
        return self._file

    # ------------------------------------------------------------ append

    def append(self, data: Buffer, last_offset: int, max_timestamp: int) -> None:
        """Append one batch. Raises ``OSError``; then nothing has changed."""
        if not self._prepared:
            self.prepare()
        try:
            (self._file or self.file).append(data)
        except OSError:
            self._prepared = False  # a part of the batch may be left
            raise
        self.account(last_offset, len(data), max_timestamp)

    def open(self) -> None:
        """Open the file and load the indexes, so that reads need no new descriptor. Raises ``OSError``."""
        for index in (self.offset_index, self.time_index, self.txn_index):
            index.load()
        _ = self.file

    @property
    def is_open(self) -> bool:
        """Whether the file is open and the indexes are in memory."""
        return (
            self._file is not None
            and self.offset_index.is_loaded
            and self.time_index.is_loaded
            and self.txn_index.is_loaded
        )

    def check_open(self) -> None:
        """Raise ``ColdError`` when ``open`` may wait for the disk."""
        if not self.is_open and self._storage.is_cold(self.path(LOG_SUFFIX)):
            raise ColdError(self._open_in_thread)

    async def ready(self) -> None:
        """Return when the segment is open; a thread waits for the disk. Raises ``OSError``."""
        if cold := _caught(self.check_open):
            await cold.warm()
        self.open()

    async def _open_in_thread(self) -> None:
        indexes = [index.path for index in (self.offset_index, self.time_index, self.txn_index) if not index.is_loaded]
        await self._storage.read_through(indexes, [self.path(LOG_SUFFIX)])
        self.open()

    def prepare(self) -> None:
        """Load the state that a change of the segment needs, and cut off the rest of a failed append.

        Raises ``OSError``. After this call, only the change of the log file itself can fail.
        """
        if self._prepared:
            return
        self.open()
        self.largest_timestamp()
        if self.file.size() > self.size_bytes:
            self.file.truncate(self.size_bytes)
        self._prepared = True
        self.is_sealed = self.is_flushed = False

    def account(self, last_offset: int, length: int, max_timestamp: int) -> None:
        """Index the batch at position ``size_bytes`` of the file, and add its length to ``size_bytes``."""
        position = self.size_bytes
        if position == 0:
            self.rolling_timestamp = max_timestamp
        known = self.max_timestamp
        if known is None:
            known = self.largest_timestamp()
        if max_timestamp > known:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        if self._bytes_since_index > self._index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self.max_timestamp or 0, self.offset_of_max_timestamp)
            self._bytes_since_index = 0
        self._bytes_since_index += length
        self.size_bytes = position + length
        recent = self._recent_last_offsets
        recent.append(last_offset)
        self._recent_positions.append(position)
        if len(recent) > 2 * _RECENT_BATCHES:
            del recent[:-_RECENT_BATCHES]
            del self._recent_positions[:-_RECENT_BATCHES]

    @property
    def indexes_full(self) -> bool:
        """Whether an index has reached ``segment.index.bytes``."""
        index, times = self.offset_index._data, self.time_index._data
        return (index is not None and len(index) >= self._max_index_entries * 8) or (
            times is not None and len(times) >= self._max_time_entries * 12
        )

    def age_ms(self, now_ms: int, max_timestamp: int) -> int:
        """The segment's age for a new batch with ``max_timestamp``; if there are no timestamps, since its creation."""
        first = self.rolling_timestamp
        if first is None:
            first = self.rolling_timestamp = self.first_timestamp()
        return max_timestamp - first if first >= 0 else now_ms - self.created_ms

    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch; -1 if there is no batch."""
        for _, batch in scan_headers(self.file, 0, self.size_bytes, HEADER_BYTES):
            return batch.max_timestamp
        return NO_TIMESTAMP

    # ------------------------------------------------------------ look up

    def locate(self, offset: int, *, waits: bool = True) -> BatchPosition | None:
        """The first batch whose last offset is at least ``offset``; None if all batches end below ``offset``.

        Raises ``ColdError`` unless it ``waits``.
        """
        recent = self._recent_last_offsets
        if recent and offset > recent[0]:
            index = bisect_left(recent, offset)
            if index == len(recent):
                return None
            position = self._recent_positions[index]
            end = self._recent_positions[index + 1] if index + 1 < len(recent) else self.size_bytes
            return BatchPosition(position, end - position, recent[index])
        if not waits:
            self.check_open()
        _, start = self.offset_index.lookup(offset)
        for position, batch in scan_headers(self.file, start, self.size_bytes, _LOCATE_CHUNK_BYTES, waits=waits):
            if batch.last_offset >= offset:
                return BatchPosition(position, batch.length, batch.last_offset)
        return None

    def end_of_range(
        self, start: BatchPosition, offset: int, max_bytes: int, limit: int, limit_offset: int
    ) -> tuple[int, int]:
        """The end of a read from ``start``, and the number of offsets in the read from ``offset`` on.

        The end is within ``max_bytes`` and ``limit``, at a batch boundary that the index has. The first batch is
        included whole, if ``limit`` permits. If the index has no entry in the range, the last batch may be cut off, and
        clients skip that batch.

        ``offset`` is in the first batch, and ``limit_offset`` is the offset at ``limit``. The number is found without
        reading a batch. It is exact if the read ends at ``limit``. If the read ends at an index entry, the number
        leaves out the first batch of this read, but includes the first batch of the next read (the batch of the entry).
        So the sum over a consumer's reads of a segment is wrong by at most one batch. In all other cases, each batch is
        assumed to have as many offsets as the first batch.
        """
        end = start.position + max(max_bytes, start.length)
        if end >= limit:
            return limit, limit_offset - offset
        last_offset, boundary = self.offset_index.position_floor(end)
        if boundary >= start.position + start.length:
            return boundary, last_offset - start.last_offset
        batches = (end - start.position) // start.length
        return end, min((start.last_offset + 1 - offset) * batches, limit_offset - offset)

    def batches(self, position: int = 0) -> Iterator[Header]:
        """The headers of the batches from ``position`` on."""
        return scan_headers(self.file, position, self.size_bytes)

    def batches_in_steps(self, position: int = 0) -> Iterator[Header | ColdError]:
        """Yield the headers that ``batches`` yields, and a ``ColdError`` before each read that may have to wait."""
        if cold := _caught(self.check_open):
            yield cold
        headers = self.batches(position)
        warm_until = position
        while position < self.size_bytes:
            if position + HEADER_BYTES > warm_until:
                warm_until = min(position + _SCAN_CHUNK_BYTES, self.size_bytes)
                if cold := self.cold(position, warm_until - position):
                    yield cold
            found = next(headers, None)
            if found is None:
                return
            yield found
            position = found[0] + found[1].length

    def cold(self, position: int, length: int) -> ColdError | None:
        """The ``ColdError`` to warm before these bytes of the log file are read; None if they are in memory."""
        return _caught(partial(check_warm, self.file, position, length))

    def read_batch(self, position: int, length: int) -> RecordBatch:
        """Read a whole batch and check its CRC. Raises ``CorruptRecordError``."""
        batch = RecordBatch(self.file.pread(position, length))
        if len(batch.buffer) != length or batch.length != length:
            raise CorruptRecordError(f"{self.file.path}: the batch at byte {position} is cut off")
        batch.ensure_valid()
        return batch

    def find_by_timestamp(
        self, timestamp: int, from_offset: int
    ) -> Generator[ColdError | None, None, tuple[int, int, int] | None]:
        """Return (timestamp, offset, leader epoch) of the first record at or above both arguments.

        Yields after each header and after some records, and before a wait for the disk or a thread.
        """
        if cold := _caught(self.check_open):
            yield cold
        _, hint = self.time_index.lookup(timestamp)
        _, start = self.offset_index.lookup(max(hint, from_offset))
        for found in self.batches_in_steps(start):
            if isinstance(found, ColdError):
                yield found
                continue
            position, header = found
            yield None
            if header.max_timestamp < timestamp or header.last_offset < from_offset or header.count == 0:
                continue
            if cold := self.cold(position, header.length):
                yield cold
            batch = self.read_batch(position, header.length)
            if batch.count > RECORDS_AT_ONCE or batch.may_be_large:
                for for_thread in batch.read_in_steps(RECORDS_AT_ONCE):
                    if for_thread is None:
                        yield ColdError(trio.lowlevel.checkpoint)
                    else:
                        yield ColdError(partial(trio.to_thread.run_sync, for_thread))
            for record in batch:
                if record.timestamp >= timestamp and record.offset >= from_offset:
                    return record.timestamp, record.offset, header.partition_leader_epoch
        return None

    def largest_timestamp(self) -> int:
        """The largest timestamp in the segment, -1 when it has none."""
        if self.max_timestamp is None:
            timestamp, offset = self.time_index.last()
            self.max_timestamp, self.offset_of_max_timestamp = timestamp, offset
        return self.max_timestamp

    def retention_timestamp(self) -> int:
        """The time from which retention counts: the largest timestamp, or without timestamps the file's time."""
        largest = self.largest_timestamp()
        return largest if largest >= 0 else self._storage.modified_ms(self.path(".log"))

    def load_tail(self) -> int:
        """Read what the indexes lack: the largest timestamp, the bytes since the last entry. Returns the next offset.

        Raises ``CorruptRecordError`` when the file does not end with a whole batch.
        """
        timestamp, offset = self.time_index.last()
        self.max_timestamp, self.offset_of_max_timestamp = timestamp, offset
        count = self.offset_index.count
        start = self.offset_index.entry(count - 1)[1] if count else 0
        next_offset, end, since = self.base_offset, start, 0
        for position, batch in self.batches(start):
            if batch.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.offset_of_max_timestamp = batch.max_timestamp, batch.last_offset
            since += batch.length
            next_offset, end = batch.next_offset, position + batch.length
        if end != self.size_bytes:
            raise CorruptRecordError(f"{self.file.path}: {self.size_bytes - end} bytes after the last whole batch")
        self._bytes_since_index = since
        return next_offset

    # ------------------------------------------------------------ change and end

    def truncate_to(self, offset: int) -> int:
        """Drop the batches from the one that holds ``offset`` on; returns the dropped bytes.

        If there are many bytes, ``cut_tail`` removes them from the file later; if the process crashes before that, they
        are back. Raises ``OSError``; then nothing has changed. ``load_tail`` has to be called before the next append.
        """
        self.prepare()
        found = self.locate(offset)
        if found is None:
            return 0
        dropped = self.size_bytes - found.position
        if dropped > CUT_AT_ONCE_BYTES:
            self.awaits_cut = True
        else:
            self.file.truncate(found.position)
        self._recent_last_offsets.clear()
        self._recent_positions.clear()
        self.size_bytes = found.position
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self.rolling_timestamp = None
        return dropped

    async def cut_tail(self) -> None:
        """Cut off, in a thread, the bytes that ``truncate_to`` left.

        Raises ``OSError``; the bytes then still have to be cut off.
        """
        await self.file.cut(self.size_bytes)
        self.awaits_cut = False

    def begin_rebuild(self) -> None:
        """Forget all indexes except the transaction index. Then call ``account`` for each batch from the start."""
        self.offset_index.reset()
        self.time_index.reset()
        self.size_bytes = 0
        self.max_timestamp, self.offset_of_max_timestamp = NO_TIMESTAMP, self.base_offset
        self.rolling_timestamp = None
        self._bytes_since_index = 0
        self._recent_last_offsets.clear()
        self._recent_positions.clear()

    def seal(self) -> None:
        """Write the indexes to disk, the time index with its final entry. Raises ``OSError``; may be called again."""
        if self.size_bytes:
            self.time_index.maybe_append(self.largest_timestamp(), self.offset_of_max_timestamp)
        self.offset_index.write()
        self.time_index.write()
        self.txn_index.write()
        self.is_sealed, self._prepared = True, False

    def release(self) -> None:
        """Drop the indexes from memory, and close the file if it is synced. The next look-up loads both again.

        A read in progress keeps the file open.
        """
        self.offset_index.release()
        self.time_index.release()
        self.txn_index.release()
        if self.is_flushed:
            self._file = None
        self._prepared = False
        self._recent_last_offsets.clear()
        self._recent_positions.clear()

    async def sync_indexes(self) -> None:
        """fdatasync the indexes of a sealed segment."""
        self.seal()
        await self.offset_index.sync()
        await self.time_index.sync()
        await self.txn_index.sync()

    def close(self) -> None:
        """Close the log file; ranges that are being sent stay readable."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def moved_to(self, directory: str) -> None:
        """Note that the directory of the segment's files has another name now."""
        self.directory = directory
        self.offset_index.path = self.path(".index")
        self.time_index.path = self.path(".timeindex")
        self.txn_index.path = self.path(".txnindex")

    def take_over_names(self) -> None:
        """Give the offset and time index of a cleaned segment their final names. Its other files have theirs already.

        If an index cannot be renamed, it is written under its final name later, or built again at the next start.
        """
        self._suffix = ""
        self.offset_index.renamed_to(self.path(".index"))
        self.time_index.renamed_to(self.path(".timeindex"))
        self.txn_index.path = self.path(".txnindex")

    def mark_deleted(self) -> list[str]:
        """Close the segment and rename its files to ``.deleted``; returns their new paths, to be removed later.

        Once the log file is renamed, the segment is deleted. Raises ``OSError``; then the segment is as before. If an
        index keeps its name, a new segment overwrites the index, or the next start removes it.
        """
        log = self.path(LOG_SUFFIX)
        self._storage.rename(log, log + DELETED_SUFFIX)
        self.close()
        renamed = [log + DELETED_SUFFIX]
        for suffix in SEGMENT_SUFFIXES:
            path = self.path(suffix)
            if suffix != LOG_SUFFIX and self._storage.exists(path):
                with contextlib.suppress(OSError):
                    self._storage.rename(path, path + DELETED_SUFFIX)
                    renamed.append(path + DELETED_SUFFIX)
        return renamed


def _caught(check: Callable[[], None]) -> ColdError | None:
    try:
        check()
    except ColdError as cold:
        return cold
    return None
