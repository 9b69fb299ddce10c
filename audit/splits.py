"""Cut a large segment into parts by its offset index, so that they can be read side by side.

An index entry is eight bytes: the last offset of a batch relative to the segment's base offset, and the position of
that batch in the ``.log`` file (Kafka's ``OffsetIndex``). An entry is used only where a whole batch with a true CRC
begins, for an index may be wrong.
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO, NamedTuple

from protocol.batch_layout import HEADER_BYTES, LENGTH, LENGTH_PREFIX_BYTES, MAGIC, MAGIC_AT
from protocol.records import RecordBatch

_ENTRY = struct.Struct(">ii")


class Part(NamedTuple):
    """The batches of a file that begin in ``[begin, end)``; ``end`` None is the end of the file."""

    begin: int
    end: int | None


def parts_of(path: str, base_offset: int, split_bytes: int) -> list[Part]:
    """Parts of about ``split_bytes`` of the segment at ``path``. One part where there is no index beside it."""
    bounds = [0]
    try:
        size = os.path.getsize(path)
        if size > split_bytes:
            with open(path.removesuffix(".log") + ".index", "rb") as index, open(path, "rb") as log:
                for relative, position in _ENTRY.iter_unpack(_whole_entries(index.read())):
                    far = bounds[-1] + split_bytes <= position <= size - split_bytes // 2
                    if far and _begins_batch(log, position, base_offset + relative):
                        bounds.append(position)
    except FileNotFoundError:
        pass
    return [Part(begin, end) for begin, end in zip(bounds, [*bounds[1:], None], strict=True)]


def _whole_entries(data: bytes) -> bytes:
    return data[: len(data) // _ENTRY.size * _ENTRY.size]


def _begins_batch(log: BinaryIO, position: int, offset: int) -> bool:
    """Whether a batch with a true CRC begins at ``position`` that does not begin behind ``offset``."""
    log.seek(position)
    prefix = log.read(LENGTH_PREFIX_BYTES)
    if len(prefix) < LENGTH_PREFIX_BYTES:
        return False
    first, length = LENGTH.unpack(prefix)
    if first > offset or length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
        return False
    batch = prefix + log.read(length)
    return len(batch) == LENGTH_PREFIX_BYTES + length and batch[MAGIC_AT] == MAGIC and RecordBatch(batch).verify_crc()
