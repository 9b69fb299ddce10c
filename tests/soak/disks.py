"""Faults of the log directories of brokers, and reads of their logs."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from anabranch.broker.log.checkpoint_files import MalformedFileError, decode_offsets, decode_partition_metadata
from anabranch.broker.log.paths import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    offset_of,
    parse_directory_name,
)
from anabranch.protocol.records import RecordBatch, iter_batches
from anabranch.protocol.types import TopicPartition
from tests.history.events import UNKNOWN, Event, Replica, StoredBatch
from tests.soak.workload import value_id

HIDDEN_SUFFIX = "-hidden"
ROOM_BYTES = 4_096
"""How many bytes a log of median size can still append on a full disk."""


def _checkpoint(log_dir: Path, name: str) -> dict[TopicPartition, int]:
    path = log_dir / name
    return decode_offsets(str(path), path.read_bytes()) if path.exists() else {}


def _partitions(log_dir: Path) -> Iterator[tuple[TopicPartition, Path]]:
    for directory in sorted(path for path in log_dir.iterdir() if path.is_dir()):
        if (tp := parse_directory_name(directory.name)) is not None:
            yield tp, directory


def segments_of(directory: Path) -> list[Path]:
    """The segments of a partition, in order; empty when a running broker has removed the partition's directory."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(directory / name for name in names if name.endswith(".log"))


def median_size(files: Iterable[Path]) -> int:
    """The median size in bytes; 0 without files. A file that a running broker has removed is left out."""
    sizes = []
    for file in files:
        with suppress(FileNotFoundError):
            sizes.append(file.stat().st_size)
    return sorted(sizes)[len(sizes) // 2] if sizes else 0


def incarnation_in(directory: Path) -> int:
    """The incarnation of the log in a partition's directory; UNKNOWN when its metadata file is missing or malformed."""
    path = directory / PARTITION_METADATA
    try:
        return decode_partition_metadata(str(path), path.read_bytes()).incarnation
    except (OSError, MalformedFileError):
        return UNKNOWN


def hide_a_log(log_dirs: Sequence[Path], rng: random.Random) -> Path | None:
    """Make a segment of one log unreadable: a directory replaces it (EISDIR). Returns its path; None without logs.

    Call this only while the broker is down. ``unhide`` restores the segment.
    """
    found = [path for log_dir in log_dirs for _, directory in _partitions(log_dir) for path in segments_of(directory)]
    if not found:
        return None
    path = rng.choice(sorted(found))
    path.rename(path.with_name(path.name + HIDDEN_SUFFIX))
    path.mkdir()
    return path


def hide_log_dir(path: Path) -> None:
    """Make a log dir unusable: a file replaces it (ENOTDIR). Call this only while the broker is down."""
    path.rename(path.with_name(path.name + HIDDEN_SUFFIX))
    path.write_bytes(b"")


def unhide(path: Path) -> None:
    """Make the segment or log dir readable again. Call this only while the broker is down."""
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    path.with_name(path.name + HIDDEN_SUFFIX).rename(path)


def tear_tails(log_dir: Path, rng: random.Random) -> int:
    """Cut each log at a random byte above its recovery point, as a power cut may. Returns how many bytes are removed.

    Call this only while the broker is down. Data below the recovery point is synced, so no power cut removes it.
    """
    torn = 0
    recovery_points = _checkpoint(log_dir, RECOVERY_POINT_CHECKPOINT)
    for tp, directory in _partitions(log_dir):
        segments = segments_of(directory)
        if not segments:
            continue
        data = segments[-1].read_bytes()
        synced = 0
        for batch in iter_batches(memoryview(data)):
            if batch.next_offset > recovery_points.get(tp, 0):
                break
            synced += batch.length
        keep = rng.randint(synced, len(data))
        # A copy replaces the file: responses of the dead broker in flight may still use pages of the old file.
        copy = segments[-1].with_suffix(".torn")
        copy.write_bytes(data[:keep])
        copy.replace(segments[-1])
        torn += len(data) - keep
    return torn


def fill_disk(pid: int, log_dirs: Iterable[Path]) -> tuple[int, int]:
    """Limit the size of a broker's files. Errors are EFBIG instead of a full disk's ENOSPC. Returns the old limit."""
    partitions = [directory for log_dir in log_dirs for _, directory in _partitions(log_dir)]
    limit = median_size(itertools.chain.from_iterable(map(segments_of, partitions))) + ROOM_BYTES
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, before[1]))
    return before


def empty_disk(pid: int, limit: tuple[int, int]) -> None:
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


def read_replicas(
    log_dir: Path,
    broker: int,
    topic: str,
    now_ms: float,
    incarnations: Callable[[TopicPartition], int | None] | None = None,
) -> Iterator[Event]:
    """``Replica`` and ``StoredBatch`` events of a stopped broker. Raises ``KafkaError`` for damaged files.

    ``incarnations`` returns the current incarnation of a partition, or None. Logs of other incarnations do not count as
    replicas: they were in a lost log dir when their partition was removed.
    """
    watermarks = _checkpoint(log_dir, HIGH_WATERMARK_CHECKPOINT)
    starts = _checkpoint(log_dir, LOG_START_CHECKPOINT)
    for tp, directory in _partitions(log_dir):
        if tp.topic != topic:
            continue
        incarnation = UNKNOWN if incarnations is None else incarnations(tp)
        if incarnation is None or (incarnation != UNKNOWN and incarnation_in(directory) not in (UNKNOWN, incarnation)):
            continue
        segments = segments_of(directory)
        batches = stored_batches(segments, now_ms, broker, tp, incarnation)
        first = (offset_of(segments[0].name) or 0) if segments else 0
        start = max(starts.get(tp, 0), first)
        end = batches[-1].next_offset if batches else start
        yield Replica(now_ms, broker, tp, start, end, watermarks.get(tp, 0), incarnation=incarnation)
        yield from batches


def stored_batches(
    segments: Iterable[Path], now_ms: float, broker: int, tp: TopicPartition, incarnation: int = UNKNOWN
) -> list[StoredBatch]:
    """Read the batches of segment files. Raises ``KafkaError`` for damaged files."""
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
