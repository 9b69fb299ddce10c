"""Reads whole batches of a log file in order, in large pieces."""

from __future__ import annotations

import struct

from anabranch.broker.log.cold_reads import warm
from anabranch.protocol.batch_layout import HEADER_BYTES, LENGTH_PREFIX_BYTES
from anabranch.protocol.compression import CorruptRecordError
from anabranch.protocol.records import RecordBatch
from anabranch.runtime.env import File

CHUNK_BYTES = 1024 * 1024
_LENGTH_AT = 8
_LENGTH = struct.Struct(">i")


class BatchReader:
    """Returns batches at given positions of a file. One read fetches several consecutive batches."""

    __slots__ = ("_chunk", "_chunk_at", "_end", "_file", "_warm_until")

    def __init__(self, file: File, end: int) -> None:
        self._file = file
        self._end = end
        self._chunk = memoryview(b"")
        self._chunk_at = 0
        self._warm_until = 0

    async def warm(self, position: int) -> None:
        """Return once ``at(position)`` need not wait for the disk. ``position`` must not decrease between calls."""
        if self._warm_until - position < min(CHUNK_BYTES, self._end - position):
            length = min(2 * CHUNK_BYTES, self._end - position)
            await warm(self._file, position, length)
            self._warm_until = position + length
        if self._end - position >= HEADER_BYTES:
            length = self._length(self._bytes(position, HEADER_BYTES))
            if position + length > self._warm_until and length <= self._end - position:
                await warm(self._file, position, length)

    def at(self, position: int) -> RecordBatch:
        """The batch at ``position``, CRC and counts checked. A bad or cut-off batch raises ``CorruptRecordError``."""
        if self._end - position < HEADER_BYTES:
            raise CorruptRecordError(
                f"{self._end - position} bytes from byte {position} on, less than a batch's header"
            )
        header = self._bytes(position, HEADER_BYTES)
        length = self._length(header)
        if not HEADER_BYTES <= length <= self._end - position:
            raise CorruptRecordError(f"batch at byte {position} claims {length} bytes, {self._end - position} are left")
        batch = RecordBatch(self._bytes(position, length))
        if batch.magic != 2:
            raise CorruptRecordError(f"batch at byte {position} has magic {batch.magic}")
        batch.ensure_valid()
        if batch.base_offset < 0 or not 0 <= batch.count <= batch.last_offset_delta + 1:
            raise CorruptRecordError(f"batch at byte {position} claims impossible offsets: {batch!r}")
        return batch

    @staticmethod
    def _length(header: memoryview) -> int:
        length: int = _LENGTH.unpack_from(header, _LENGTH_AT)[0]
        return length + LENGTH_PREFIX_BYTES

    def _bytes(self, position: int, length: int) -> memoryview:
        start = position - self._chunk_at
        if start < 0 or start + length > len(self._chunk):
            wanted = min(max(length, CHUNK_BYTES), self._end - position)
            self._chunk, self._chunk_at, start = memoryview(self._file.pread(position, wanted)), position, 0
            if len(self._chunk) < length:
                raise CorruptRecordError(f"the file ends within the batch at byte {position}")
        return self._chunk[start : start + length]
