"""Opens a log on disk: finishes interrupted changes, recovers damaged segments, and rebuilds missing state.

After an unclean shutdown the segments from the recovery point on are read batch by batch. The log then ends before the
first bad batch, and the indexes, the leader epochs and the producers are built again. Below the recovery point, and
after an orderly stop, each segment has to end where the next segment begins. If records are missing or duplicated
there, the log is broken, and its files stay as they are so that an operator can restore them. The work is cut into
slices.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import chain, pairwise

import structlog

from anabranch.broker.log.batch_reader import BatchReader
from anabranch.broker.log.checkpoint_files import MalformedFileError
from anabranch.broker.log.identity_file import IdentityFile
from anabranch.broker.log.layout_history import LayoutHistory
from anabranch.broker.log.leader_epoch_cache import LeaderEpochCache
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_state import LogState
from anabranch.broker.log.open_segments import OpenSegments
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.paths import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_COUNT_CHECKPOINT,
    SEGMENT_SUFFIXES,
    join,
    offset_of,
)
from anabranch.broker.log.producer_state import ProducerExpiration, ProducerState
from anabranch.broker.log.segment import MAX_RELATIVE_OFFSET, LogSegment
from anabranch.broker.log.segment_swap import finish_swaps
from anabranch.broker.log.slices import TimeSlice
from anabranch.broker.log.snapshot_files import SnapshotFiles, replay_producers, restore_producers
from anabranch.protocol.compression import CorruptRecordError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env, Storage

logger = structlog.get_logger(__name__)

MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """One partition's offsets in the log dir's checkpoint files. If a file has no line for it, the default is used."""

    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    first_dirty_offset: int = 0
    """The offset up to which the log was compacted: offsets below may be missing."""


async def open_log(
    env: Env,
    directory: str,
    partition: TopicPartition,
    config: LogConfig,
    checkpoints: Checkpoints,
    *,
    clean: bool,
    expiration: ProducerExpiration | None = None,
    open_segments: OpenSegments | None = None,
) -> PartitionLog:
    """Open the log in ``directory``. ``clean``: the last shutdown wrote everything, so nothing needs recovery.

    Damaged log files raise no error. If records are missing, the log ``is_broken``. Raises ``OSError`` if the disk
    refuses.
    """
    loader = _Loader(env, directory, partition, config, checkpoints)
    await loader.load_segments(clean=clean)
    state = await loader.state(clean=clean, expiration=expiration)
    for segment in state.segments:
        segment.is_flushed = True  # may be closed: the open file would report no failed write of an earlier process
        segment.release()
    return PartitionLog(env, directory, partition, config, state, open_segments)


class _Loader:
    """One opening of one log."""

    def __init__(
        self, env: Env, directory: str, partition: TopicPartition, config: LogConfig, checkpoints: Checkpoints
    ) -> None:
        assert env.storage is not None
        self._storage: Storage = env.storage
        self._now_ms = env.clock.now_ms()
        self._directory = directory
        self._partition = partition
        self._config = config
        self._checkpoints = checkpoints
        self._work = TimeSlice(env.clock)
        self._epochs = LeaderEpochCache(self._storage, join(directory, LEADER_EPOCH_CHECKPOINT))
        self._layouts = LayoutHistory(self._storage, join(directory, PARTITION_COUNT_CHECKPOINT))
        self._segments: list[LogSegment] = []
        self._first_recovered = 0
        """The base offset of the first segment that was read batch by batch."""
        self._end_offset = 0
        self._failure = ""
        self._log = logger.bind(partition=str(partition))

    # ------------------------------------------------------------ segments

    async def load_segments(self, *, clean: bool) -> None:
        """Find the segments, recover those that need it, and find the log's end."""
        finish_swaps(self._storage, self._directory)
        names = self._storage.listdir(self._directory)
        bases = sorted(base for name in names if name.endswith(LOG_SUFFIX) and (base := offset_of(name)) is not None)
        self._remove_orphans(names, set(bases))
        self._layouts.load()
        try:
            self._epochs.load()
        except MalformedFileError as error:
            self._log.warning("log.epochs_malformed", error=str(error))
            clean = False
        self._segments = [
            LogSegment(self._storage, self._directory, base, self._config, self._now_ms) for base in bases
        ]
        if not self._segments:
            self._start_over(self._checkpoints.log_start_offset)
            return
        await self._remove_strays()
        first = self._first_to_recover(clean)
        for index, segment in enumerate(self._segments):
            if self._work.due():
                await self._work.pause()
            is_last = index == len(self._segments) - 1
            following = None if is_last else self._segments[index + 1]
            end = self._sound_end(segment, is_last=is_last) if index < first else None
            if end is None and (index >= first or is_last):
                damaged, end = await self._recover(segment, following)
                if damaged and following is not None:
                    self._drop_after(index)
                    break
            elif end is None:
                end = await self._rebuild_below_recovery_point(segment, following)
            if following is not None and end is not None and not self._failure and index < first:
                self._check_join(segment, end, following)
            if self._failure:
                self._end_offset = segment.base_offset if end is None else end
                self._log.error("log.broken", directory=self._directory, reason=self._failure)
                return
        self._end_offset = self._segments[-1].load_tail()

    def _first_to_recover(self, clean: bool) -> int:
        """The index of the segment that holds the recovery point. All segments before that one are on disk."""
        bases = [segment.base_offset for segment in self._segments]
        point = self._checkpoints.recovery_point
        first = len(bases) if clean else max(sum(1 for base in bases if base <= point) - 1, 0)
        self._first_recovered = bases[first] if first < len(bases) else MAX_OFFSET
        return first

    async def _remove_strays(self) -> None:
        """Remove empty segments that begin within the records of the segment before: remains of an abandoned roll."""
        for before, segment in pairwise(list(self._segments)):
            if segment.size_bytes or before not in self._segments:
                continue
            end = before.base_offset
            reader = BatchReader(before.file, before.size_bytes)
            position = 0
            with contextlib.suppress(CorruptRecordError):
                while end <= segment.base_offset and position < before.size_bytes:
                    batch = reader.at(position)
                    end, position = batch.next_offset, position + batch.length
                    if self._work.due():
                        await self._work.pause()
            if end > segment.base_offset:
                self._log.warning("log.stray_removed", file=segment.path(LOG_SUFFIX), records_until=end)
                self._segments.remove(segment)
                for path in segment.mark_deleted():
                    self._storage.remove(path)

    def _check_join(self, segment: LogSegment, end: int, following: LogSegment) -> None:
        """Note a failure if records are missing or duplicated between a segment that ends at ``end`` and the next."""
        if following.base_offset <= self._checkpoints.log_start_offset:
            return  # these records are never read
        if end > following.base_offset or self._lacks_records(end, following.base_offset):
            what = "lack" if end < following.base_offset else "both have"
            low, high = sorted((end, following.base_offset))
            files = f"{segment.path(LOG_SUFFIX)} and {following.path(LOG_SUFFIX)}"
            self._failure = f"{files} {what} offsets {low} to {high - 1}"

    async def _rebuild_below_recovery_point(self, segment: LogSegment, following: LogSegment | None) -> int | None:
        """Rebuild a segment's indexes below the recovery point; sync them, because no flush does; returns its end."""
        damage, end = await self._recover(segment, following, cut=False)
        if damage:
            self._failure = f"{segment.path(LOG_SUFFIX)}, which was synced, is damaged: {damage}"
        with contextlib.suppress(OSError):
            await segment.sync_indexes()
        return end

    def _sound_end(self, segment: LogSegment, *, is_last: bool) -> int | None:
        """The end offset of a segment that needs no recovery; None if its indexes are missing or wrong."""
        has_indexes = self._storage.exists(segment.offset_index.path) and self._storage.exists(segment.time_index.path)
        if not has_indexes:
            return None
        # A sealed segment's time index ends with a final entry, so an empty time index has lost its entries.
        times_lost = segment.size_bytes > 0 and segment.time_index.size_on_disk() == 0 and not is_last
        sound = not times_lost and (
            all(index.fits(segment.size_bytes) for index in segment.indexes)
            and segment.offset_index.is_sane(segment.size_bytes)
            and segment.time_index.is_sane()
            and segment.txn_index.is_sane()
        )
        end = None
        if sound:
            with contextlib.suppress(CorruptRecordError):
                end = segment.load_tail()
                segment.is_sealed = True
        if not is_last:
            segment.release()
        return end

    async def _recover(self, segment: LogSegment, following: LogSegment | None, *, cut: bool = True) -> tuple[str, int]:
        """Read a segment batch by batch and build its indexes; returns its damage and its end.

        Damage is a bad batch, or records that are missing before the ``following`` segment. The segment is cut at the
        damage, unless ``cut`` is false and the cut would lose records.
        """
        next_base = None if following is None else following.base_offset
        last_allowed = MAX_RELATIVE_OFFSET + segment.base_offset if next_base is None else next_base - 1
        file = segment.file
        size = file.size()
        reader = BatchReader(file, size)
        segment.begin_rebuild()
        next_offset = segment.base_offset
        damage = ""
        while segment.size_bytes < size:
            try:
                batch = reader.at(segment.size_bytes)
            except CorruptRecordError as error:
                damage = error.message
                break
            if batch.base_offset < next_offset or batch.last_offset > last_allowed:
                damage = (
                    f"batch at byte {segment.size_bytes} has offsets {batch.base_offset}-{batch.last_offset}, "
                    f"outside [{next_offset}, {last_allowed}]"
                )
                break
            segment.account(batch.last_offset, batch.length, batch.max_timestamp)
            self._epochs.correct(batch.partition_leader_epoch, batch.base_offset)
            next_offset = batch.next_offset
            if self._work.due():
                await self._work.pause()
        if next_offset == next_base and not cut:
            cut, damage = bool(damage), ""  # the rest is not a batch of this segment
        elif not damage and next_base is not None and self._lacks_records(next_offset, next_base):
            damage = f"its batches end before offset {next_offset}, the next segment begins at {next_base}"
        if segment.size_bytes < size and cut:
            self._log.warning(
                "log.truncated",
                file=file.path,
                kept_bytes=segment.size_bytes,
                dropped_bytes=size - segment.size_bytes,
                reason=damage or "bytes after the last batch",
            )
            await file.cut(segment.size_bytes)
        if not segment.txn_index.fits(size) or not segment.txn_index.is_sane():
            segment.txn_index.reset()
        if cut or not damage:
            segment.txn_index.truncate_to(next_offset)
        try:
            segment.seal()
        except OSError as error:  # a full disk does not prevent reading; the next flush writes the indexes
            self._log.warning("log.indexes_not_written", file=file.path, error=str(error))
        return damage, next_offset

    def _lacks_records(self, end_offset: int, following: int) -> bool:
        """Whether offsets are missing between two segments, although compaction cannot have removed them."""
        return end_offset < following and not self._config.compacts and following > self._checkpoints.first_dirty_offset

    def _drop_after(self, index: int) -> None:
        """Drop the segments after ``index``: records are missing between it and the next one. The log ends there."""
        for segment in self._segments[index + 1 :]:
            self._log.warning("log.segment_dropped", file=segment.path(LOG_SUFFIX))
            for path in segment.mark_deleted():
                self._storage.remove(path)
        del self._segments[index + 1 :]

    def _remove_orphans(self, names: list[str], bases: set[int]) -> None:
        for name in names:
            base = offset_of(name)
            if base is not None and base not in bases and name.endswith(SEGMENT_SUFFIXES):
                self._storage.remove(join(self._directory, name))

    def _start_over(self, offset: int) -> None:
        self._segments = [LogSegment(self._storage, self._directory, offset, self._config, self._now_ms, create=True)]
        self._end_offset = offset

    # ------------------------------------------------------------ offsets, epochs, producers

    async def state(self, *, clean: bool, expiration: ProducerExpiration | None) -> LogState:
        """The state with which a ``PartitionLog`` begins."""
        log_start = max(self._checkpoints.log_start_offset, self._segments[0].base_offset)
        if self._failure:
            return self._broken_state(min(log_start, self._end_offset))
        if log_start > self._end_offset:
            self._log.warning("log.start_above_end", log_start_offset=log_start, log_end_offset=self._end_offset)
            for segment in self._segments:
                for path in segment.mark_deleted():
                    self._storage.remove(path)
            self._start_over(log_start)
        end = self._end_offset
        self._epochs.truncate_from_end(end)
        self._epochs.truncate_from_start(log_start)
        snapshots = SnapshotFiles(self._storage, self._directory, self._storage.listdir(self._directory))
        snapshots.keep_for([segment.base_offset for segment in self._segments])
        producers = ProducerState(expiration)
        snapshots.remove_above(end)
        # The batches that are read again complete the transaction indexes of the recovered segments.
        snapshot = snapshots.load_latest(min(end, self._first_recovered))
        restored = restore_producers(producers, snapshot, log_start, self._now_ms)
        for _ in chain(restored, replay_producers(producers, self._segments, end, self._now_ms, snapshots)):
            if self._work.due():
                await self._work.pause()
        producers.remove_expired(self._now_ms)
        high_watermark = min(max(self._checkpoints.high_watermark, log_start), end)
        producers.on_high_watermark(high_watermark)
        recovery_point = end if clean else min(self._checkpoints.recovery_point, end)
        return LogState(
            IdentityFile.load(self._storage, self._directory, synced=clean and self._has_records),
            self._segments,
            self._epochs,
            self._layouts,
            producers,
            snapshots,
            log_start,
            end,
            high_watermark,
            recovery_point,
            truncation_synced=clean,
        )

    @property
    def _has_records(self) -> bool:
        return any(segment.size_bytes for segment in self._segments)

    def _broken_state(self, log_start: int) -> LogState:
        """The state of a log that cannot be used. The log ends before the missing records; the state has the reason."""
        end = self._end_offset
        return LogState(
            IdentityFile.load(self._storage, self._directory, synced=True),
            self._segments,
            self._epochs,
            self._layouts,
            ProducerState(),
            SnapshotFiles(self._storage, self._directory, self._storage.listdir(self._directory)),
            log_start,
            end,
            min(max(self._checkpoints.high_watermark, log_start), end),
            min(self._checkpoints.recovery_point, end),
            failure=self._failure,
        )
