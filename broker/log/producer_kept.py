"""The file ``.producers``: what a broker knows about the producers of a ``.snapshot`` beyond Kafka's fields. Pure.

Layout: int16 version 1; uint32 CRC32C of the rest; uint32 CRC of the ``.snapshot``; int32 number of producers; int32
number of batches; for each producer int64 id and int64 time of its last append; for each batch int64 producer id, int32
last sequence, int64 last offset, int32 offset delta, int64 timestamp. The batches are the last ones of earlier epochs
(``repeated_batches``), in order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fastcrc import crc32

from anabranch.broker.log.checkpoint_files import MalformedFileError
from anabranch.broker.log.repeated_batches import BatchMetadata

_VERSION = 1
_HEADER = struct.Struct(">hI")
_COUNTS = struct.Struct(">Iii")
_PRODUCER = struct.Struct(">qq")
_BATCH = struct.Struct(">qiqiq")
_SNAPSHOT_CRC = struct.Struct(">I")
_SNAPSHOT_CRC_AT = 2


class KeptProducer(NamedTuple):
    """One producer: when this broker appended its last batch, and its last batches of earlier epochs."""

    producer_id: int
    appended_ms: int
    earlier: Sequence[BatchMetadata] = ()


class PackedProducers(NamedTuple):
    """Some producers of the file, encoded."""

    producers: bytes
    batches: bytes


def pack_producers(kept: Iterable[KeptProducer]) -> PackedProducers:
    """Encode some producers of the file."""
    producers, batches = [], []
    for known in kept:
        producers.append(_PRODUCER.pack(known.producer_id, known.appended_ms))
        batches += [_BATCH.pack(known.producer_id, *batch) for batch in known.earlier]
    return PackedProducers(b"".join(producers), b"".join(batches))


def kept_parts(packed: Sequence[PackedProducers], snapshot_start: bytes) -> list[bytes]:
    """The content of the file, in parts; ``snapshot_start`` has the first bytes of the ``.snapshot``."""
    producers = [part.producers for part in packed]
    batches = [part.batches for part in packed]
    counts = _COUNTS.pack(
        _snapshot_crc(snapshot_start),
        sum(map(len, producers)) // _PRODUCER.size,
        sum(map(len, batches)) // _BATCH.size,
    )
    crc = 0
    for part in (counts, *producers, *batches):
        crc = crc32.iscsi(part, crc)
    return [_HEADER.pack(_VERSION, crc), counts, *producers, *batches]


def decode_kept(path: str, data: bytes, snapshot: bytes) -> Iterator[KeptProducer]:
    """The producers in the file's order. Raises ``MalformedFileError``, also if the file is not for ``snapshot``."""
    if len(data) < _HEADER.size + _COUNTS.size:
        raise MalformedFileError(path, f"{len(data)} bytes are too few")
    version, crc = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if version != _VERSION:
        raise MalformedFileError(path, f"version {version} is not known")
    if crc32.iscsi(body) != crc:
        raise MalformedFileError(path, "the checksum does not match")
    snapshot_crc, producers, batches = _COUNTS.unpack_from(body)
    size = _COUNTS.size + producers * _PRODUCER.size + batches * _BATCH.size
    if producers < 0 or batches < 0 or len(body) != size:
        raise MalformedFileError(path, f"{producers} producers and {batches} batches do not fit {len(data)} bytes")
    if snapshot_crc != _snapshot_crc(snapshot):
        raise MalformedFileError(path, "it belongs to another .snapshot")
    return _read(body[_COUNTS.size :], producers * _PRODUCER.size)


def _read(body: memoryview, batches_at: int) -> Iterator[KeptProducer]:
    earlier: dict[int, list[BatchMetadata]] = {}
    for producer_id, *fields in _BATCH.iter_unpack(body[batches_at:]):
        earlier.setdefault(producer_id, []).append(BatchMetadata(*fields))
    for producer_id, appended_ms in _PRODUCER.iter_unpack(body[:batches_at]):
        yield KeptProducer(producer_id, appended_ms, tuple(earlier.get(producer_id, ())))


def _snapshot_crc(snapshot: bytes) -> int:
    (crc,) = _SNAPSHOT_CRC.unpack_from(snapshot, _SNAPSHOT_CRC_AT)
    return int(crc)
