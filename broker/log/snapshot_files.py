"""Keeps the ``.snapshot`` files of a partition, and rebuilds producer state from these files and the log.

Each has a ``.producers`` file beside it, with what Kafka's format lacks. That file is written first and removed last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import structlog

from anabranch.broker.log.checkpoint_files import MalformedFileError, write_parts, write_replace
from anabranch.broker.log.cold_reads import ColdError
from anabranch.broker.log.paths import PRODUCERS_SUFFIX, SNAPSHOT_SUFFIX, offset_of, segment_file
from anabranch.broker.log.producer_capture import PRODUCERS_AT_ONCE, ProducerCapture
from anabranch.broker.log.producer_files import ProducerFiles
from anabranch.broker.log.producer_kept import KeptProducer, decode_kept
from anabranch.broker.log.producer_snapshot import SnapshotEntry, decode_snapshot
from anabranch.broker.log.producer_state import ProducerState
from anabranch.broker.log.segment import LogSegment
from anabranch.broker.log.slices import TimeSlice
from anabranch.broker.log.txn_index import AbortedTxn
from anabranch.runtime.env import Clock, Storage

logger = structlog.get_logger(__name__)


class ProducerSnapshot(NamedTuple):
    """A snapshot at ``offset``. ``kept`` has the producers of its ``.producers`` file; None if that cannot be read."""

    offset: int
    entries: Iterator[SnapshotEntry]
    kept: Iterator[KeptProducer] | None


class SnapshotFiles:
    """The snapshots of one partition. ``offsets`` has the offsets of the snapshots on disk, ascending."""

    __slots__ = ("_capture", "_directory", "_storage", "offsets")

    def moved_to(self, directory: str) -> None:
        """Note that the directory of the files has another name now."""
        self.give_up()
        self._directory = directory

    def __init__(self, storage: Storage, directory: str, names: Iterable[str] = ()) -> None:
        self._storage = storage
        self._directory = directory
        self._capture: ProducerCapture | None = None
        """The snapshot that is being taken, if any."""
        found = list(names)
        self.offsets = _offsets_of(found, SNAPSHOT_SUFFIX)
        for offset in set(_offsets_of(found, PRODUCERS_SUFFIX)) - set(self.offsets):  # left by a crash
            with contextlib.suppress(OSError):
                storage.remove(self._path(offset, PRODUCERS_SUFFIX))

    def take(self, state: ProducerState) -> None:
        """Write the state at its end offset, unless that snapshot exists. Raises ``OSError``.

        With many producers the snapshot is only begun, and ``write_begun`` does the rest. If an earlier snapshot is not
        written yet, it is dropped: the next start then reads more of the log.
        """
        offset = state.map_end_offset
        if offset in self.offsets:
            return
        if len(state.producers) > PRODUCERS_AT_ONCE:
            self._capture = state.capture()
        else:
            self._write(offset, state.files())

    async def write_begun(self, clock: Clock) -> None:
        """Complete the snapshot that ``take`` has begun, in steps, and write it.

        If that raises ``OSError``, the snapshot is dropped.
        """
        work = TimeSlice(clock)
        while (capture := self._capture) is not None:
            is_whole = not capture.step()
            if not is_whole or work.due():
                await work.pause()
            if is_whole and self._capture is capture:
                try:
                    await self._write_slowly(capture, work)
                finally:
                    if self._capture is capture:
                        self._capture = None

    def give_up(self) -> None:
        """Stop writing a snapshot that was begun: the log was moved, closed or truncated."""
        self._capture = None

    async def _write_slowly(self, capture: ProducerCapture, work: TimeSlice) -> None:
        snapshot, kept = capture.parts()
        for suffix, parts in ((PRODUCERS_SUFFIX, kept), (SNAPSHOT_SUFFIX, snapshot)):
            writing = write_parts(self._storage, self._path(capture.offset, suffix), parts)
            for _ in writing:
                if work.due():
                    await work.pause()
                if self._capture is not capture:
                    writing.close()  # dropped: another snapshot replaced this one, or the log was truncated below it
                    return
        self.offsets = sorted([*self.offsets, capture.offset])

    def _write(self, offset: int, files: ProducerFiles) -> None:
        for suffix, content in ((PRODUCERS_SUFFIX, files.kept), (SNAPSHOT_SUFFIX, files.snapshot)):
            if content:
                write_replace(self._storage, self._path(offset, suffix), content)
        self.offsets = sorted([*self.offsets, offset])

    def start_over(self, offset: int, files: ProducerFiles) -> None:
        """Remove all snapshots, and store another replica's snapshot at ``offset``, if there is one.

        Raises ``OSError``, ``MalformedFileError``.
        """
        self.remove_above(-1)
        if files.snapshot:
            decode_snapshot(self._path(offset), files.snapshot)
            self._write(offset, files)

    def load_latest(self, at_most: int) -> ProducerSnapshot | None:
        """The newest readable snapshot up to ``at_most``. Unreadable snapshots are removed."""
        for offset in reversed([known for known in self.offsets if known <= at_most]):
            path = self._path(offset)
            content = self._storage.read_bytes(path)
            try:
                return ProducerSnapshot(offset, decode_snapshot(path, content), self._load_kept(offset, content))
            except MalformedFileError:
                self.remove_at(offset)
        return None

    def _load_kept(self, offset: int, snapshot: bytes) -> Iterator[KeptProducer] | None:
        path = self._path(offset, PRODUCERS_SUFFIX)
        try:
            return decode_kept(path, self._storage.read_bytes(path), snapshot)
        except FileNotFoundError:
            logger.info("log.producers_missing", file=path)  # Kafka wrote the snapshot, or the file was lost
        except MalformedFileError as error:
            logger.warning("log.producers_malformed", error=str(error))
        return None

    def remove_above(self, offset: int) -> None:
        """Remove the snapshots above ``offset``, before the log is truncated to it. Raises ``OSError``."""
        if self._capture is not None and self._capture.offset > offset:
            self.give_up()
        self._remove([known for known in self.offsets if known > offset])

    def remove_at(self, offset: int) -> None:
        """Remove the snapshot at ``offset``, if there is one. If the disk refuses, it is removed later."""
        with contextlib.suppress(OSError):
            self._remove([known for known in self.offsets if known == offset])

    def keep_for(self, segment_bases: Collection[int]) -> None:
        """Remove the snapshots that belong to no segment, except the newest snapshot, which a shutdown took."""
        with contextlib.suppress(OSError):
            self._remove([known for known in self.offsets[:-1] if known not in segment_bases])

    def _remove(self, offsets: list[int]) -> None:
        for offset in reversed(offsets):
            for suffix in (SNAPSHOT_SUFFIX, PRODUCERS_SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    self._storage.remove(self._path(offset, suffix))
            self.offsets.remove(offset)

    def _path(self, offset: int, suffix: str = SNAPSHOT_SUFFIX) -> str:
        return segment_file(self._directory, offset, suffix)


def _offsets_of(names: Iterable[str], suffix: str) -> list[int]:
    found = (offset_of(name) for name in names if name.endswith(suffix))
    return sorted(offset for offset in found if offset is not None)


def restore_producers(
    state: ProducerState, snapshot: ProducerSnapshot | None, log_start_offset: int, now_ms: int
) -> Iterator[None]:
    """Load a snapshot into ``state``; if it is None, begin at the log's start with no producers. Yields at times."""
    if snapshot is None:
        state.clear(log_start_offset)
    else:
        start = max(snapshot.offset, log_start_offset)
        yield from state.restore(snapshot.entries, start, now_ms, snapshot.kept)


def replay_producers(
    state: ProducerState,
    segments: Iterable[LogSegment],
    log_end_offset: int,
    now_ms: int,
    snapshots: SnapshotFiles | None = None,
) -> Iterator[ColdError | None]:
    """Bring ``state`` up to the log's end by reading batch headers. Yields after each header and before slow reads.

    The batches count as appended now, because no file has the times of their appends.

    With ``snapshots``, a snapshot is taken at the start of each segment that is reached. If aborted transactions are
    missing in the segments' transaction indexes, they are added.
    """
    for index, segment in enumerate(segments):
        start = segment.locate(state.map_end_offset) if state.map_end_offset > segment.base_offset else None
        if state.map_end_offset > segment.base_offset and start is None:
            continue
        if snapshots is not None and index and state.map_end_offset <= segment.base_offset:
            state.map_end_offset = segment.base_offset
            with contextlib.suppress(OSError):  # a full disk: a later start reads more of the log
                snapshots.take(state)
        for found in segment.batches_in_steps(start.position if start else 0):
            if isinstance(found, ColdError):
                yield found
                continue
            position, header = found
            if header.base_offset >= log_end_offset:
                break
            if header.producer_id >= 0 and header.base_offset >= state.map_end_offset:
                batch = segment.read_batch(position, header.length) if header.is_control else header
                aborted = state.record(batch, header.base_offset, now_ms)
                if aborted is not None:
                    _index_aborted(segment, aborted)
            yield None
    state.map_end_offset = log_end_offset


def _index_aborted(segment: LogSegment, aborted: AbortedTxn) -> None:
    if all(known.last_offset < aborted.last_offset for known in segment.txn_index.transactions()):
        segment.txn_index.append(aborted)
