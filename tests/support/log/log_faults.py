"""Runs a broker's logs on a simulated disk that fails at one file operation, and checks the promises to clients.

``Machine`` runs a scenario, which continues after a failure, and remembers the acknowledged records of each partition.
``Machine.check`` compares the acknowledged records with the records that a reader finds.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias
from unittest.mock import patch

from anabranch.broker.log.checkpoint_files import LogIdentity
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_manager import LogDirError, LogManager, LogManagerConfig
from anabranch.broker.log.partition_log import AppendOrigin, PartitionLog
from anabranch.broker.log.producer_rebuild import catch_up
from anabranch.protocol.batch_layout import CONTROL_ABORT
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.records import iter_batches, set_base_offset
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from sim.storage import ALL_OPERATIONS, OPENING, WRITING, FailingCalls, SimDisk
from tests.support.log.batches import build_control_batch
from tests.support.log.log_fixture import START_MS, TOPIC_ID, ManualClock, batch, values

KINDS = {errno.EIO: ALL_OPERATIONS, errno.EMFILE: OPENING, errno.ENOSPC: WRITING}
PLAIN, COMPACTED = TopicPartition("plain", 0), TopicPartition("compacted", 0)
FOLLOWER, MOVED = TopicPartition("follower", 0), TopicPartition("moved", 0)
DELETED, TRANSACTIONS = TopicPartition("deleted", 0), TopicPartition("transactions", 0)
PARTITIONS = (PLAIN, COMPACTED, FOLLOWER, MOVED, DELETED, TRANSACTIONS)
DIRS = ("/d", "/e")
_SMALL = LogConfig(segment_bytes=300, index_interval_bytes=50, retention_ms=-1, file_delete_delay_ms=0)
CONFIGS = {partition.topic: _SMALL for partition in PARTITIONS} | {
    "compacted": LogConfig(
        segment_bytes=300,
        index_interval_bytes=50,
        cleanup_policy=("compact",),
        min_cleanable_dirty_ratio=0.0,
        file_delete_delay_ms=0,
    ),
    "plain": LogConfig(segment_bytes=300, index_interval_bytes=50, retention_bytes=900, file_delete_delay_ms=0),
}
PRODUCER_ID = 9
_REFUSALS = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REPLICA_NOT_AVAILABLE)


@dataclass
class Promise:
    """The promise of a partition's log to its clients."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    maybe: dict[int, set[bytes]] = field(default_factory=dict)
    """Values that may be in the log: those of refused appends and of failed truncations."""
    durable: int = 0
    """Acknowledged records below this offset survive a power failure."""
    start: int = 0
    """Records below this offset may be removed."""
    aborted: list[int] = field(default_factory=list)
    """The offsets of abort markers."""


class Machine:
    """One broker's logs, over its restarts."""

    def __init__(self, failing: FailingCalls | None = None) -> None:
        self.clock = ManualClock()
        self.disk = SimDisk(random.Random(3), clock=self.clock)
        self.disk.failing = failing
        self.promises: dict[TopicPartition, Promise] = {}
        self.log_dirs = DIRS
        self.counter = 0
        self.refused: list[str] = []
        """The failed steps, in order."""

    # ------------------------------------------------------------ start and stop

    async def begin(self, partition: TopicPartition) -> None:
        """Start the first process, and create the scenario's log."""
        self.log_dirs = DIRS if partition == MOVED else DIRS[:1]
        self.promises[partition] = Promise()
        failing = self.disk.failing
        if partition != PLAIN:  # one scenario is enough for faults of a first start
            self.disk.failing = None
        await self.restart()
        self.disk.failing = failing
        self.create(partition)
        self.create(partition)  # an incomplete directory must not block the next attempt

    async def restart(self) -> None:
        """Start a process. If the disk refuses an operation, end the fault and start again."""
        try:
            await self.start()
        except (LogDirError, OSError):
            self.disk.failing = None
            await self.start()

    async def start(self) -> None:
        """Start a new process on the disk. Raises ``LogDirError`` after the process has ended."""
        self.storage = self.disk.mount()
        env = Env(self.clock, None, random.Random(1), self.storage)  # type: ignore[arg-type]
        self.manager = LogManager(LogManagerConfig(1, "c", self.log_dirs), env)
        try:
            await self.manager.start(CONFIGS.__getitem__)
        except (LogDirError, OSError) as error:
            self.refused.append(f"start: {error}")
            self.disk.kill(self.storage)
            raise
        for log in self.manager.logs():
            if not log.is_broken:
                log.advance_high_watermark(log.log_end_offset)

    async def stop(self) -> None:
        """Stop cleanly. The next start repairs what the stop could not write."""
        await self.manager.shutdown()
        for partition, promise in self.promises.items():
            log = self.manager.get(partition)
            if log is not None and log.is_synced:
                promise.durable = max(promise.durable, log.log_end_offset)
        self.disk.kill(self.storage)

    def kill(self) -> None:
        """Kill the process; all bytes that it wrote are kept."""
        self.disk.kill(self.storage)

    def cut_power(self) -> None:
        """Cut the power; unsynced bytes are lost."""
        self.disk.crash(self.storage)
        for promise in self.promises.values():
            for offset in [offset for offset in promise.acknowledged if offset >= promise.durable]:
                promise.maybe.setdefault(offset, set()).add(promise.acknowledged.pop(offset))
            promise.aborted = [marker for marker in promise.aborted if marker < promise.durable]

    # ------------------------------------------------------------ steps

    def attempt(self, what: str, work: Callable[[], object]) -> bool:
        """Do ``work``. Return False when the disk refuses it. Any other error is a defect of the log."""
        try:
            work()
        except KafkaError as error:
            if error.code not in _REFUSALS:
                raise
            self.refused.append(f"{what}: {error}")
            return False
        return True

    async def attempt_later(self, what: str, work: Callable[[], object]) -> bool:
        """``attempt`` for asynchronous work."""
        try:
            await work()  # type: ignore[misc]
        except (KafkaError, OSError) as error:
            self.refused.append(f"{what}: {error}")
            return False
        return True

    def create(self, partition: TopicPartition, incarnation: int = 1) -> None:
        if self.manager.get(partition) is None and self.attempt(
            f"create {partition}",
            lambda: self.manager.create(partition, TOPIC_ID, incarnation, CONFIGS[partition.topic]),
        ):
            self.promises[partition] = Promise()

    def append(self, partition: TopicPartition, count: int = 1, size: int = 8) -> None:
        """Append unique values, as the leader or as a follower."""
        for _ in range(count):
            log = self.manager.get(partition)
            if log is not None:
                self._append_one(log, size)

    def _append_one(self, log: PartitionLog, size: int) -> None:
        self.counter += 1
        value = b"%06d" % self.counter + b"x" * size
        promise, offset = self.promises[log.partition], log.log_end_offset
        data = batch(value, key=b"k%d" % (self.counter % 3), timestamp=START_MS + self.counter)
        epoch = max(log.leader_epoch_cache.latest_epoch + (self.counter % 4 == 0), 0)
        if log.partition == FOLLOWER:
            set_base_offset(data, offset, epoch)
            done = self.attempt("append as follower", lambda: log.append_as_follower(bytes(data)))
        else:
            done = self.attempt("append", lambda: log.append_as_leader(data, epoch))
        if done:
            assert log.log_end_offset == offset + 1
            promise.acknowledged[offset] = value
            log.advance_high_watermark(log.log_end_offset)
        else:
            assert log.log_end_offset == offset
            promise.maybe.setdefault(offset, set()).add(value)

    def abort_transaction(self) -> None:
        """Append two records of a transaction, and its abort marker."""
        log = self.manager.get(TRANSACTIONS)
        if log is None:
            return
        promise, first = self.promises[TRANSACTIONS], log.log_end_offset
        known = log.producers.producers.get(PRODUCER_ID)
        sequence = 0 if known is None else known.last_sequence + 1
        records = batch(
            b"t%d" % self.counter,
            b"u%d" % self.counter,
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        marker = build_control_batch(CONTROL_ABORT, PRODUCER_ID, 0, 1, START_MS)
        values_of = {first: b"t%d" % self.counter, first + 1: b"u%d" % self.counter}
        if self.attempt("append to a transaction", lambda: log.append_as_leader(records, 0)):
            promise.acknowledged |= values_of
            if self.attempt("abort", lambda: log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)):
                promise.aborted.append(first + 2)
                promise.acknowledged[first + 2] = b""
            else:
                promise.maybe.setdefault(first + 2, set()).add(b"")
        else:
            for offset, value in values_of.items():
                promise.maybe.setdefault(offset, set()).add(value)
        log.advance_high_watermark(log.log_end_offset)

    async def flush(self, partition: TopicPartition) -> None:
        log = self.manager.get(partition)
        if log is not None and await self.attempt_later(f"flush {partition}", log.flush):
            self.promises[partition].durable = log.log_end_offset

    def truncate(self, partition: TopicPartition, offset: int, *, fully: bool = False) -> None:
        log = self.manager.get(partition)
        if log is None:
            return
        promise = self.promises[partition]
        cut = {known: value for known, value in promise.acknowledged.items() if fully or known >= offset}
        for known, value in cut.items():  # clients do not rely on these records any more, even if the truncation fails
            del promise.acknowledged[known]
            promise.maybe.setdefault(known, set()).add(value)
        promise.durable = min(promise.durable, offset)
        if fully:
            self.attempt(f"truncate {partition} fully", lambda: log.truncate_fully_and_start_at(offset))
        elif self.attempt(f"truncate {partition}", lambda: log.truncate_to(offset)):
            assert log.log_end_offset <= max(offset, log.log_start_offset)
        promise.start = max(promise.start, log.log_start_offset)

    async def finish_truncation(self, partition: TopicPartition) -> None:
        log = self.manager.get(partition)
        if log is not None:
            await self.attempt_later(f"finish the truncation of {partition}", partial(catch_up, log))

    async def retain(self) -> None:
        await self.manager.maintenance.apply_retention()
        self._starts_may_have_moved()

    def delete_records(self, partition: TopicPartition, offset: int) -> None:
        log = self.manager.get(partition)
        if log is not None and not log.is_broken and offset <= log.high_watermark:
            self.attempt(f"delete records of {partition}", lambda: log.delete_records_before(offset))
            self._starts_may_have_moved()

    def _starts_may_have_moved(self) -> None:
        for partition, promise in self.promises.items():
            log = self.manager.get(partition)
            if log is not None:
                promise.start = max(promise.start, log.log_start_offset)

    def delete(self, partition: TopicPartition) -> None:
        self.attempt(f"delete {partition}", lambda: self.manager.delete(partition))
        if self.manager.get(partition) is None:
            self.promises[partition] = Promise()

    async def move(self, partition: TopicPartition, path: str) -> None:
        """Copy the log to another log dir, and switch to the copy."""
        target = self.manager.directories.get(path)
        log = self.manager.get(partition)
        if target is None or log is None:
            return
        moves = self.manager.moves
        try:
            await moves._copy(partition, target)
        except (KafkaError, OSError) as error:
            self.refused.append(f"move {partition}: {error}")
            moves._discard(partition)
        promise, now = self.promises[partition], self.manager.get(partition)
        if now is not None and now is not log:
            promise.durable = max(promise.durable, min(now.recovery_point, now.log_end_offset))

    async def move_in_part(self, partition: TopicPartition) -> None:
        """Begin a copy, with only the first batches of the log."""
        log = self.manager.get(partition)
        target = self.manager.directories.get("/d" if log is not None and log.directory.startswith("/e") else "/e")
        if log is None or log.is_broken or target is None:
            return
        try:
            copy = await self.manager.moves._create(log, target)
            copy.append_as_follower(log.read(log.log_start_offset, 1, upper_bound=log.log_end_offset).records.read())  # type: ignore[union-attr]
        except (KafkaError, OSError) as error:
            self.refused.append(f"begin a move of {partition}: {error}")

    async def housekeeping(self) -> None:
        """Run the background tasks once."""
        self.manager.checkpoints.write_recovery_points()
        self.manager.checkpoints.write_log_starts()
        self.manager.checkpoints.write_high_watermarks()
        await self.manager.maintenance.remove_deleted()

    def replace_identity(self, partition: TopicPartition) -> None:
        log = self.manager.get(partition)
        if log is not None:
            try:
                log.identity.replace(LogIdentity(TOPIC_ID, log.identity.incarnation + 1))
            except OSError as error:
                self.refused.append(f"identify {partition}: {error}")

    # ------------------------------------------------------------ promises

    def check(self, *, serving: bool = False) -> None:
        """Check every log against its promise. ``serving``: all created logs must exist and serve."""
        failing, self.disk.failing = self.disk.failing, None
        for partition, promise in self.promises.items():
            log = self.manager.get(partition)
            if log is None:
                is_offline = self.manager.directories.lost or self.manager.unreadable.get(partition)
                assert not promise.acknowledged or (is_offline and not serving), (
                    f"{partition} has acknowledged records and no log"
                )
            elif not log.is_broken:
                self._check_log(log, promise)
            else:
                assert not serving, f"{partition}: {log.failure or 'broken'}"
        self.disk.failing = failing

    def _check_log(self, log: PartitionLog, promise: Promise) -> None:
        key = log.partition
        start, end = log.log_start_offset, log.log_end_offset
        assert start <= max(promise.start, 0), (
            f"{key} starts at {start}, but only records below {promise.start} were deleted"
        )
        found = {offset: value for offset, _, value in values(log)}
        latest = max(promise.acknowledged, default=-1)
        assert end > latest, f"{key} ends at {end}, but offset {latest} was acknowledged"
        if key != COMPACTED:
            assert sorted(found) == list(range(start, end)), (
                f"{key} has the offsets {sorted(found)}, not all from {start} to {end - 1}"
            )
        self._check_values(key, promise, found, start)
        if key == TRANSACTIONS and promise.aborted:
            self._check_aborted(log, promise)
        for offset in found:
            records = log.read(offset, 1, upper_bound=end).records
            first = next(iter_batches(records if isinstance(records, bytes) else records.read()))
            assert first.base_offset <= offset <= first.last_offset, f"{key}: a fetch at {offset} skips over it"

    def _check_values(self, key: TopicPartition, promise: Promise, found: dict[int, bytes | None], start: int) -> None:
        kept = set(found)
        for offset, value in promise.acknowledged.items():
            if offset < max(start, promise.start) and offset not in found:
                continue
            if key == COMPACTED and offset not in found:
                newer = [other for other in kept if other > offset and _key_of(found[other]) == _key_of(value)]
                assert newer, f"{key}: offset {offset} is missing, and no later record has its key"
                continue
            assert offset in found, f"{key}: offset {offset} was acknowledged and is missing"
            assert (found[offset] or b"").startswith(value) or not value, f"{key}: offset {offset} is another record"
        for offset in kept - set(promise.acknowledged):
            assert found[offset] in promise.maybe.get(offset, ()) or b"" in promise.maybe.get(offset, ()), (
                f"{key}: no client sent the record at offset {offset}"
            )

    def _check_aborted(self, log: PartitionLog, promise: Promise) -> None:
        read = log.read(log.log_start_offset, 1 << 20, upper_bound=log.log_end_offset, include_aborted=True)
        listed: set[int] = set()
        for segment in log.segments:
            listed |= {txn.last_offset for txn in segment.txn_index.transactions()}
        listed |= {txn.last_offset for txn in read.aborted_transactions or []}
        missing = [marker for marker in promise.aborted if marker >= log.log_start_offset and marker not in listed]
        assert not missing, f"{log.partition}: the aborted transactions at {missing} would be delivered"


def _key_of(value: bytes | None) -> int:
    return int((value or b"0")[:6]) % 3


async def rolls_and_retention(machine: Machine) -> None:
    """A log whose records are deleted by size and by a client."""
    await machine.begin(PLAIN)
    machine.append(PLAIN, 5)
    machine.append(PLAIN, 1, size=120)
    await machine.flush(PLAIN)
    machine.append(PLAIN, 8)
    await machine.retain()
    machine.delete_records(PLAIN, 7)
    await machine.retain()
    await machine.housekeeping()
    machine.append(PLAIN, 3)


async def recovery(machine: Machine) -> None:
    """A kill, and a clean stop."""
    await machine.begin(PLAIN)
    machine.append(PLAIN, 5)
    await machine.flush(PLAIN)
    machine.append(PLAIN, 4)
    await machine.housekeeping()
    machine.kill()
    await machine.restart()
    machine.append(PLAIN, 3)
    await machine.stop()
    await machine.restart()
    machine.append(PLAIN, 4)


async def truncation(machine: Machine) -> None:
    """A follower that truncates the end of its log, and later the whole log."""
    await machine.begin(FOLLOWER)
    machine.append(FOLLOWER, 11)
    await machine.flush(FOLLOWER)
    await machine.housekeeping()
    machine.truncate(FOLLOWER, 4)
    machine.append(FOLLOWER, 5)
    await machine.flush(FOLLOWER)
    machine.truncate(FOLLOWER, 8)
    machine.truncate(FOLLOWER, 20, fully=True)
    machine.append(FOLLOWER, 3)
    machine.truncate(FOLLOWER, 15)
    machine.append(FOLLOWER, 4)


async def large_truncations(machine: Machine) -> None:
    """Truncations in threads. One process is killed before such a thread ends, and the next process stops cleanly."""
    await machine.begin(FOLLOWER)
    with patch("anabranch.broker.log.segment.CUT_AT_ONCE_BYTES", 0):
        machine.append(FOLLOWER, 11)
        await machine.flush(FOLLOWER)
        machine.truncate(FOLLOWER, 9)
        await machine.finish_truncation(FOLLOWER)
        machine.append(FOLLOWER, 3)
        machine.truncate(FOLLOWER, 7)
        await machine.flush(FOLLOWER)
        machine.append(FOLLOWER, 3)
        machine.truncate(FOLLOWER, 5)
        machine.kill()
        await machine.restart()
        machine.truncate(FOLLOWER, 3)
        await machine.stop()
        await machine.restart()
        machine.append(FOLLOWER, 4)


async def compaction(machine: Machine) -> None:
    """Two rounds of compaction, the second over the result of the first."""
    await machine.begin(COMPACTED)
    machine.append(COMPACTED, 8)
    await machine.manager.cleaner.clean_dirtiest()
    machine.append(COMPACTED, 4)
    await machine.flush(COMPACTED)
    await machine.manager.cleaner.clean_dirtiest()
    await machine.housekeeping()
    machine.append(COMPACTED, 2)


async def transactions(machine: Machine) -> None:
    """Aborted transactions with a kill in between. Only the transaction index lists aborted transactions."""
    await machine.begin(TRANSACTIONS)
    machine.abort_transaction()
    machine.append(TRANSACTIONS, 3)
    machine.abort_transaction()
    machine.append(TRANSACTIONS, 2)
    machine.kill()
    await machine.restart()
    await machine.flush(TRANSACTIONS)
    machine.abort_transaction()
    machine.append(TRANSACTIONS, 4)


async def log_dirs(machine: Machine) -> None:
    """A move to the other log dir, with appends meanwhile."""
    await machine.begin(MOVED)
    machine.append(MOVED, 5)
    await machine.move(MOVED, "/e")
    machine.append(MOVED, 2)
    machine.replace_identity(MOVED)
    await machine.housekeeping()
    await machine.move(MOVED, "/d")
    machine.append(MOVED, 1)
    await machine.move_in_part(MOVED)
    machine.kill()
    await machine.restart()
    machine.append(MOVED, 2)


async def deletion(machine: Machine) -> None:
    """A log that is deleted and created again."""
    await machine.begin(DELETED)
    machine.append(DELETED, 5)
    machine.delete(DELETED)
    await machine.housekeeping()
    machine.create(DELETED, 2)
    machine.append(DELETED, 2)
    await machine.flush(DELETED)
    machine.delete(DELETED)
    machine.create(DELETED, 3)
    machine.append(DELETED, 2)
    await machine.flush(DELETED)
    await machine.housekeeping()


Scenario: TypeAlias = Callable[[Machine], Awaitable[None]]
SCENARIOS: tuple[Scenario, ...] = (
    rolls_and_retention,
    recovery,
    truncation,
    large_truncations,
    compaction,
    transactions,
    log_dirs,
    deletion,
)


async def after_the_fault(machine: Machine) -> None:
    """Restart after the end of the fault: the logs must keep their promises, and take further records."""
    await machine.start()
    machine.check(serving=True)
    for partition in machine.promises:
        machine.create(partition)
        machine.append(partition, 3)
        await machine.flush(partition)
    machine.check(serving=True)
    machine.cut_power()
    await machine.start()
    machine.check(serving=True)
    machine.kill()
