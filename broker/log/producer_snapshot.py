"""The file ``.snapshot``: the producers known at an offset, in the format of Kafka 3. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fastcrc import crc32

from anabranch.broker.log.checkpoint_files import MalformedFileError

_VERSION = 1
_HEADER = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class SnapshotEntry(NamedTuple):
    """A producer and its last batch.

    The fields of the batch are -1 if there is no batch; ``txn_first_offset`` is -1 if there is no transaction.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


def encode_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """Encode a snapshot: int16 version 1, uint32 CRC32C of the rest, int32 count, the entries."""
    return b"".join(parts_of([encode_entries(entries)]))


def encode_entries(entries: Iterable[SnapshotEntry]) -> bytes:
    """Encode some entries of a snapshot."""
    return b"".join([_ENTRY.pack(*entry) for entry in entries])


def parts_of(packed: Sequence[bytes]) -> list[bytes]:
    """The content of a snapshot of all these entries, in parts."""
    count = _COUNT.pack(sum(map(len, packed)) // _ENTRY.size)
    crc = 0
    for part in (count, *packed):
        crc = crc32.iscsi(part, crc)
    return [_HEADER.pack(_VERSION, crc), count, *packed]


def decode_snapshot(path: str, data: bytes) -> Iterator[SnapshotEntry]:
    """The inverse of ``encode_snapshot``. Raises ``MalformedFileError``; entries are decoded as they are read."""
    if len(data) < _HEADER.size + _COUNT.size:
        raise MalformedFileError(path, f"{len(data)} bytes are too few for a snapshot")
    version, crc = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if version != _VERSION:
        raise MalformedFileError(path, f"snapshot version {version} is not known")
    if crc32.iscsi(body) != crc:
        raise MalformedFileError(path, "the checksum does not match")
    (count,) = _COUNT.unpack_from(body)
    entries = body[_COUNT.size :]
    if count < 0 or len(entries) != count * _ENTRY.size:
        raise MalformedFileError(path, f"{len(entries)} bytes of entries, {count} producers need {count * _ENTRY.size}")
    return (SnapshotEntry(*fields) for fields in _ENTRY.iter_unpack(entries))
