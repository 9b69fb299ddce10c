"""Rebuilds a log's producers after a truncation, from the newest snapshot and the batch headers after that snapshot.

A whole segment of batch headers may have to be read, so the work is done in steps, with other tasks running in between.
Meanwhile the state of the producers is older than the log. A follower may append, which only adds headers to read.
Operations that need the producers do not run (appends of a leader, snapshots, compaction), and no segment is deleted.
If the truncation itself takes long, a thread does it first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Protocol, Self

from anabranch.broker.log.cold_reads import ColdError
from anabranch.broker.log.disk_errors import passes
from anabranch.broker.log.producer_state import ProducerState
from anabranch.broker.log.segment import LogSegment
from anabranch.broker.log.snapshot_files import ProducerSnapshot, SnapshotFiles, replay_producers, restore_producers
from anabranch.protocol.compression import CorruptRecordError
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock
from anabranch.runtime.turns import pause

STEPS_AT_ONCE = 256
"""The number of batch headers and snapshot entries that are read before other tasks run.
A truncation that needs no more than these steps is finished at once."""


class TruncatedLog(Protocol):
    """The parts of a log that a rebuild reads and writes."""

    rebuild: ProducerRebuild | None
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    snapshots: SnapshotFiles
    producers: ProducerState
    partition: TopicPartition
    on_producers_behind: Callable[[Self], None]

    @property
    def segments(self) -> Sequence[LogSegment]: ...

    @property
    def is_broken(self) -> bool: ...

    @property
    def failure(self) -> str: ...

    @property
    def awaits_cut(self) -> bool: ...

    async def finish_truncation(self) -> None: ...

    def release_caches(self) -> None: ...

    def fail(self, reason: str) -> None: ...


class ProducerRebuild:
    """One rebuild of a truncated log's producers. It starts from the newest snapshot that is left.

    A further truncation replaces this rebuild by a new one. After a transient error, such as a lack of descriptors,
    this rebuild begins again. Any other error breaks the log, and the rebuild never ends.
    """

    __slots__ = ("_clock", "_log", "_steps", "cold")

    def __init__(self, log: TruncatedLog, snapshot: ProducerSnapshot | None, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._steps = self._rebuild(snapshot)
        self.cold: ColdError | None = None
        """The read that the next step would wait for."""

    def begin(self) -> None:
        """Do the first steps, and leave the rest for later. Raises like ``advance``, but no transient errors."""
        try:
            self.advance(STEPS_AT_ONCE)
        except OSError:
            if self._log.is_broken:
                raise
        if self._log.rebuild is self:
            self._log.on_producers_behind(self._log)

    def advance(self, steps: int | None = None) -> None:
        """Do up to ``steps`` steps (None: all), or fewer if a step would have to wait for the disk.

        Raises ``OSError``, ``CorruptRecordError``. Unless the error is transient, the log is broken then.
        """
        self.cold = None
        try:
            for number, cold in enumerate(self._steps, 1):
                if steps is not None and (number == steps or cold is not None):
                    self.cold = cold
                    return
        except (OSError, CorruptRecordError) as error:
            if isinstance(error, OSError) and passes(error):
                self._steps = self._rebuild_again()
            else:
                self._log.fail(f"the producer state cannot be rebuilt: {error}")
            raise
        self._log.rebuild = None
        self._log.release_caches()

    def advance_or_refuse(self, steps: int | None = None) -> None:
        """As ``advance``, but raises KAFKA_STORAGE_ERROR instead of ``OSError``."""
        try:
            self.advance(steps)
        except OSError as error:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self._log.partition}: the producer state cannot be rebuilt: {error}"
            ) from error

    def _rebuild_again(self) -> Iterator[ColdError | None]:
        yield from self._rebuild(self._log.snapshots.load_latest(self._log.log_end_offset))

    def _rebuild(self, snapshot: ProducerSnapshot | None) -> Iterator[ColdError | None]:
        log = self._log
        if log.awaits_cut:  # the cut comes first: nothing can be appended before
            yield ColdError(log.finish_truncation)
        producers = log.producers
        now_ms = self._clock.now_ms()
        yield from restore_producers(producers, snapshot, log.log_start_offset, now_ms)
        while producers.map_end_offset != log.log_end_offset:  # a follower may have appended
            first = bisect_right(log.segments, producers.map_end_offset, key=attrgetter("base_offset")) - 1
            yield from replay_producers(producers, log.segments[max(first, 0) :], log.log_end_offset, now_ms)
        producers.on_high_watermark(log.high_watermark)


async def catch_up(log: TruncatedLog) -> None:
    """Return when the producers are up to the log's end, in slices.

    Raises KAFKA_STORAGE_ERROR if the log is broken, and after a transient error; in the second case a later call
    continues.
    """
    while (rebuild := log.rebuild) is not None:
        if log.is_broken:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{log.partition}: the log is broken: {log.failure or 'the disk failed'}",
            )
        if rebuild.cold is not None:
            await rebuild.cold.warm()
            if log.rebuild is not rebuild:
                continue
        rebuild.advance_or_refuse(STEPS_AT_ONCE)
        await pause()
