"""Copy one partition's segment files, up to its high watermark, while the broker goes on writing them."""

from __future__ import annotations

import os
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

_BATCH_PREFIX = struct.Struct(">qi")  # base offset, bytes that follow
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
_HEADER_BYTES = 61
_PREFIX_BYTES = 12
_INDEX_ENTRY = struct.Struct(">ii")
_TIME_INDEX_ENTRY = struct.Struct(">qi")
COPIED_WHOLE = ("leader-epoch-checkpoint", "partition.metadata", "partition-count-checkpoint")
_OFFSET_DIGITS = 20


@dataclass(frozen=True, slots=True)
class SegmentCopy:
    """One copied segment: its file name and size in bytes."""

    name: str
    size_bytes: int


def copy_partition(source: Path, destination: Path, log_start_offset: int, high_watermark: int) -> list[SegmentCopy]:
    """Copy the segments that hold offsets in [log_start_offset, high_watermark) with their indexes and checkpoints.

    The last segment is cut behind the last batch below the high watermark. Retention may delete a segment meanwhile:
    ``FileNotFoundError`` then, and the caller asks for the log start offset again.
    """
    destination.mkdir(parents=True, exist_ok=False)
    names = sorted(name for name in os.listdir(source) if name.endswith(".log") and name[:-4].isdigit())
    bases = [int(name[:-4]) for name in names]
    copies = []
    for name, base, following in zip(names, bases, [*bases[1:], None], strict=True):
        if base >= high_watermark or (following is not None and following <= log_start_offset):
            continue
        with open(source / name, "rb") as log:
            whole = following is not None and following <= high_watermark
            size = os.fstat(log.fileno()).st_size if whole else size_below(log.fileno(), high_watermark)
            _copy_bytes(source / name, destination / name, size)
        _copy_indexes(source, destination, name[:-4], size, high_watermark)
        copies.append(SegmentCopy(name, size))
    for name in COPIED_WHOLE:
        if (source / name).exists():
            shutil.copyfile(source / name, destination / name)
    return copies


def size_below(descriptor: int, offset_limit: int) -> int:
    """Bytes of a segment file up to the end of the last whole batch whose offsets are all below ``offset_limit``."""
    size = os.fstat(descriptor).st_size
    position = 0
    while position + _HEADER_BYTES <= size:
        header = os.pread(descriptor, _HEADER_BYTES, position)
        base_offset, length = _BATCH_PREFIX.unpack_from(header)
        (last_offset_delta,) = _LAST_OFFSET_DELTA.unpack_from(header, _LAST_OFFSET_DELTA_AT)
        end = position + _PREFIX_BYTES + length
        if length <= 0 or end > size or base_offset + last_offset_delta >= offset_limit:
            break
        position = end
    return position


def _copy_bytes(source: Path, destination: Path, size: int) -> None:
    with open(source, "rb") as reading, open(destination, "wb") as writing:
        left = size
        while left > 0:
            chunk = reading.read(min(left, 1 << 20))
            if not chunk:
                break
            writing.write(chunk)
            left -= len(chunk)


def _copy_indexes(source: Path, destination: Path, base: str, log_size: int, high_watermark: int) -> None:
    """The entries of the indexes that point into the copied part; other files of the segment whole."""
    limits = ((".index", _INDEX_ENTRY, log_size), (".timeindex", _TIME_INDEX_ENTRY, high_watermark - int(base)))
    for suffix, entry, limit in limits:
        path = source / (base + suffix)
        if path.exists():
            data = path.read_bytes()
            entries = list(entry.iter_unpack(data[: len(data) // entry.size * entry.size]))
            real = entries[:1] + [fields for fields in entries[1:] if any(fields)]  # a preallocated file ends in zeros
            kept = [fields for fields in real if fields[1] < limit]
            (destination / path.name).write_bytes(b"".join(entry.pack(*fields) for fields in kept))
    for suffix in (".txnindex", ".snapshot"):
        path = source / (base + suffix)
        if path.exists():
            shutil.copyfile(path, destination / path.name)
