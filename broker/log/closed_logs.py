"""The facts about the closed logs of a log dir, which a clean stop stores, so that the next start reads no log's files.

The clean-shutdown marker has the checksum of the stored facts: facts of an earlier stop, or from before another release
changed the logs, are not used. A log whose directory has other files, or files of another size or time of modification,
is opened by ``log_loader``, which reads them. So is a log without facts.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from anabranch.broker.log.checkpoint_files import LogIdentity
from anabranch.broker.log.identity_file import IdentityFile
from anabranch.broker.log.layout_history import LayoutEntry, LayoutHistory
from anabranch.broker.log.leader_epoch_cache import LeaderEpochCache
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_loader import Checkpoints
from anabranch.broker.log.log_state import LogState
from anabranch.broker.log.open_segments import OpenSegments
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.paths import (
    FILES_OF_LOG,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_COUNT_CHECKPOINT,
    PRODUCERS_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    join,
)
from anabranch.broker.log.producer_capture import PRODUCERS_AT_ONCE
from anabranch.broker.log.producer_state import ProducerExpiration, ProducerState
from anabranch.broker.log.segment import ClosedSegment, LogSegment
from anabranch.broker.log.snapshot_files import SnapshotFiles, restore_producers
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env, Storage

_OF_PRODUCERS = (SNAPSHOT_SUFFIX, PRODUCERS_SUFFIX)


class ClosedLog(NamedTuple):
    """What the files of a log say about it, and its last leader epoch if that has no records.

    ``files`` has the stamps of all files in its directory, by name.
    """

    files: dict[str, list[int]]
    topic_id: str
    incarnation: int
    epochs: list[list[int]]
    layouts: list[list[int]]
    segments: list[list[int]]
    """The fields of a ``ClosedSegment`` each."""
    log_end_offset: int
    has_producers: bool


def describe(storage: Storage, log: PartitionLog) -> ClosedLog | None:
    """The facts about a log that was closed; None if the next start has to read its files. Raises ``OSError``."""
    if log.is_broken or log.rebuild is not None or log.identity.unwritten:
        return None
    if len(log.producers.producers) > PRODUCERS_AT_ONCE:
        return None  # they are restored in steps
    files = {name: list(storage.stamp(join(log.directory, name))) for name in storage.listdir(log.directory)}
    segments = [segment.closed for segment in log.segments]
    sizes = {f"{segment.base_offset:020d}": segment.size_bytes for segment in segments}
    is_whole = all(
        {base + suffix for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)} <= files.keys()
        and files[base + LOG_SUFFIX][0] == size
        for base, size in sizes.items()
    )
    if not is_whole or not all(_is_complete(name, sizes) for name in files):
        return None
    return ClosedLog(
        files,
        log.identity.topic_id.hex,
        log.identity.incarnation,
        [list(entry) for entry in log.leader_epoch_cache.entries],
        [list(entry) for entry in log.layouts.stored],
        [list(segment) for segment in segments],
        log.log_end_offset,
        bool(log.producers.producers),
    )


def _is_complete(name: str, bases: Collection[str]) -> bool:
    """Whether a file belongs to a log without unfinished work: no file of another segment or of a cleaned one."""
    base, _, suffix = name.partition(".")
    return name in FILES_OF_LOG or f".{suffix}" in _OF_PRODUCERS or (base in bases and f".{suffix}" in SEGMENT_SUFFIXES)


def encode(logs: Iterable[tuple[str, ClosedLog]]) -> bytes:
    """A line for each log: the name of its directory, a tab, and its facts."""
    return "".join(f"{name}\t{json.dumps(log, separators=(',', ':'))}\n" for name, log in logs).encode()


def checksum(content: bytes) -> bytes:
    """The content of the clean-shutdown marker for stored facts."""
    return b"closed_logs_crc32: %08x\n" % zlib.crc32(content)


def lines_by_name(content: bytes) -> dict[str, bytes]:
    """The facts by the name of the directory, for ``decode``."""
    pairs = (line.partition(b"\t") for line in content.split(b"\n") if line)
    return {name.decode(): facts for name, _, facts in pairs}


def decode(facts: bytes) -> ClosedLog:
    """The facts about one log, as ``encode`` wrote them."""
    return ClosedLog(*json.loads(facts))


def reopen(
    env: Env,
    directory: str,
    partition: TopicPartition,
    config: LogConfig,
    checkpoints: Checkpoints,
    known: ClosedLog,
    expiration: ProducerExpiration | None,
    open_segments: OpenSegments | None,
) -> PartitionLog | None:
    """The log that was closed in this state; None if its files changed since. Raises ``OSError``."""
    storage = env.storage
    assert storage is not None
    if not _has_files(storage, directory, known.files):
        return None
    now_ms = env.clock.now_ms()
    closed = [ClosedSegment(*segment) for segment in known.segments]
    segments = [LogSegment(storage, directory, each.base_offset, config, now_ms, closed=each) for each in closed]
    end = known.log_end_offset
    log_start = max(checkpoints.log_start_offset, segments[0].base_offset)
    if log_start > end:
        return None
    epochs = LeaderEpochCache(storage, join(directory, LEADER_EPOCH_CHECKPOINT))
    epochs.restore([(epoch, start) for epoch, start in known.epochs if start < end])
    epochs.truncate_from_start(log_start)
    for epoch, start in known.epochs:
        epochs.begin(epoch, start)  # the last one, if it has no records
    layouts = LayoutHistory(storage, join(directory, PARTITION_COUNT_CHECKPOINT))
    layouts.entries = [LayoutEntry(*entry) for entry in known.layouts]
    snapshots = SnapshotFiles(storage, directory, [name for name in known.files if name.endswith(_OF_PRODUCERS)])
    high_watermark = min(max(checkpoints.high_watermark, log_start), end)
    producers = ProducerState(expiration)
    if known.has_producers:
        snapshot = snapshots.load_latest(end)
        if snapshot is None or snapshot.offset != end:
            return None
        for _ in restore_producers(producers, snapshot, log_start, now_ms):
            pass
        producers.remove_expired(now_ms)
    producers.map_end_offset = end
    metadata = LogIdentity(uuid.UUID(hex=known.topic_id), known.incarnation)
    identity = IdentityFile(storage, directory, metadata, synced=any(each.size_bytes for each in closed))
    offsets = (log_start, end, high_watermark, end)
    state = LogState(identity, segments, epochs, layouts, producers, snapshots, *offsets)
    return PartitionLog(env, directory, partition, config, state, open_segments)


def _has_files(storage: Storage, directory: str, files: Mapping[str, list[int]]) -> bool:
    names = storage.listdir(directory)
    if len(names) != len(files) or not files.keys() >= set(names):
        return False
    for name, (size, modified_ms) in files.items():
        if storage.stamp(f"{directory}/{name}") != (size, modified_ms):
            return False
    return True
