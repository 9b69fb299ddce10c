"""What is done to, and read from, the log directories of brokers."""

from __future__ import annotations

import hashlib
import random
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from broker.log.checkpoint_files import decode_offsets
from broker.log.paths import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    offset_of,
    parse_directory_name,
)
from protocol.records import RecordBatch, iter_batches
from protocol.types import TopicPartition
from tests.history.events import UNKNOWN, Event, Replica, StoredBatch
from tests.soak.workload import value_id

ROOM_BYTES = 4_096
"""What the fullest logs may still write on a full disk."""


def _checkpoint(log_dir: Path, name: str) -> dict[TopicPartition, int]:
    path = log_dir / name
    return decode_offsets(str(path), path.read_bytes()) if path.exists() else {}


def _partitions(log_dir: Path) -> Iterator[tuple[TopicPartition, Path]]:
    for directory in sorted(path for path in log_dir.iterdir() if path.is_dir()):
        if (tp := parse_directory_name(directory.name)) is not None:
            yield tp, directory


def tear_tails(log_dir: Path, rng: random.Random) -> int:
    """Cut each log at a random byte above its recovery point, as a power cut may; bytes that are gone now.

    Only while the broker is down. What is below the recovery point was synced, so no power cut takes it.
    """
    torn = 0
    recovery_points = _checkpoint(log_dir, RECOVERY_POINT_CHECKPOINT)
    for tp, directory in _partitions(log_dir):
        segments = sorted(directory.glob("*.log"))
        if not segments:
            continue
        data = segments[-1].read_bytes()
        synced = 0
        for batch in iter_batches(memoryview(data)):
            if batch.next_offset > recovery_points.get(tp, 0):
                break
            synced += batch.length
        keep = rng.randint(synced, len(data))
        # A copy takes the file's place: answers of the dead broker that are still on their way may be pages of the old.
        copy = segments[-1].with_suffix(".torn")
        copy.write_bytes(data[:keep])
        copy.replace(segments[-1])
        torn += len(data) - keep
    return torn


def fill_disk(pid: int, log_dir: Path) -> tuple[int, int]:
    """Let a broker's larger files grow no more (EFBIG, where a full disk says ENOSPC); returns the limit to restore."""
    sizes = sorted(path.stat().st_size for _, directory in _partitions(log_dir) for path in directory.glob("*.log"))
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    limit = (sizes[len(sizes) // 2] if sizes else 0) + ROOM_BYTES
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, before[1]))
    return before


def empty_disk(pid: int, limit: tuple[int, int]) -> None:
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


def read_replicas(
    log_dir: Path, broker: int, topic: str, now_ms: float, incarnations: Callable[[TopicPartition], int] | None = None
) -> Iterator[Event]:
    """``Replica`` and ``StoredBatch`` events of a broker that was stopped. Raises ``KafkaError`` for damaged files."""
    watermarks = _checkpoint(log_dir, HIGH_WATERMARK_CHECKPOINT)
    starts = _checkpoint(log_dir, LOG_START_CHECKPOINT)
    for tp, directory in _partitions(log_dir):
        if tp.topic != topic:
            continue
        incarnation = UNKNOWN if incarnations is None else incarnations(tp)
        segments = sorted(directory.glob("*.log"))
        batches = stored_batches(segments, now_ms, broker, tp, incarnation)
        first = (offset_of(segments[0].name) or 0) if segments else 0
        start = max(starts.get(tp, 0), first)
        end = batches[-1].next_offset if batches else start
        yield Replica(now_ms, broker, tp, start, end, watermarks.get(tp, 0), incarnation=incarnation)
        yield from batches


def stored_batches(
    segments: Iterable[Path], now_ms: float, broker: int, tp: TopicPartition, incarnation: int = UNKNOWN
) -> list[StoredBatch]:
    """The batches of segment files. Raises ``KafkaError`` for damaged ones."""
    return [
        _stored(now_ms, broker, tp, batch, incarnation)
        for path in segments
        for batch in iter_batches(memoryview(path.read_bytes()))
    ]


def _stored(now_ms: float, broker: int, tp: TopicPartition, batch: RecordBatch, incarnation: int) -> StoredBatch:
    values: list[str | None] = [None] * (batch.last_offset - batch.base_offset + 1)
    batch.ensure_valid()
    if not batch.is_control:
        for record in batch:
            values[record.offset - batch.base_offset] = sys.intern(value_id(record.value or b""))
    return StoredBatch(
        now_ms,
        broker,
        tp,
        batch.base_offset,
        batch.partition_leader_epoch,
        hashlib.blake2b(batch.buffer, digest_size=8).hexdigest(),
        values,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        incarnation,
    )
