"""A log, topics and a clock for the coordinator's shell."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import trio

from anabranch.broker.coordinator.broker_services import KeyValue
from anabranch.broker.coordinator.outcome import is_committed
from anabranch.broker.deferred import Deferred
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.types import TopicPartition

WALL_START_MS = 1_600_000_000_000


async def pass_time(seconds: float) -> None:
    """Let virtual time pass: tests take ``autojump_clock``, so no real time passes."""
    await trio.sleep(seconds)  # virtual time: see above


class LoopClock:
    """Wall clock and monotonic clock on the event loop's time."""

    def now_ms(self) -> int:
        return WALL_START_MS + int(trio.current_time() * 1000)

    def monotonic(self) -> float:
        return trio.current_time()


class MemoryLog:
    """Partitions of the offsets topic in lists. ``hold`` keeps appends waiting until ``settle``.

    ``epochs`` are the leader epochs of the led partitions; an absent partition is led in any epoch.
    """

    def __init__(self) -> None:
        self.records: dict[int, list[KeyValue]] = {}
        self.hold = False
        self.raises: Exception | None = None
        self.read_errors: list[Exception] = []
        self.before_slice: Callable[[], object] | None = None
        self.gate: trio.Event | None = None
        """The event that reads wait for before their last slice."""
        self.waiting: deque[tuple[int, list[KeyValue], Deferred[KafkaError | None]]] = deque()
        self.reads = 0
        self.epochs: dict[int, int] = {}
        self.is_cut_off = False
        """Whether every attempt to confirm leadership has to wait."""
        self.asked_to_confirm: list[Deferred[KafkaError | None]] = []
        self.watermark: trio.Event | None = None
        """The event that moves the high watermark to the log end."""

    def append(self, partition: int, leader_epoch: int, records: Sequence[KeyValue]) -> Deferred[KafkaError | None]:
        if self.raises is not None:
            raise self.raises
        fate: Deferred[KafkaError | None] = Deferred()
        if leader_epoch != self.epochs.get(partition, leader_epoch):
            fate.fill(KafkaError(ErrorCode.FENCED_LEADER_EPOCH))
            return fate
        self.waiting.append((partition, list(records), fate))
        if not self.hold:
            self.settle()
        return fate

    def settle(self, error: ErrorCode = ErrorCode.NONE, at: int = 0) -> None:
        """Complete an append, by default the oldest."""
        partition, records, fate = self.waiting[at]
        del self.waiting[at]
        if is_committed(error):
            self.records.setdefault(partition, []).extend(records)
        fate.fill(None if error is ErrorCode.NONE else KafkaError(error))

    def confirm_leadership(self, partition: int, leader_epoch: int) -> Deferred[KafkaError | None]:
        fate: Deferred[KafkaError | None] = Deferred()
        self.asked_to_confirm.append(fate)
        if not self.is_cut_off:
            fate.fill(None)
        return fate

    async def wait_until_committed(self, partition: int, leader_epoch: int) -> None:
        if self.watermark is not None:
            await self.watermark.wait()

    async def read_all(self, partition: int, leader_epoch: int) -> AsyncIterator[Sequence[KeyValue]]:
        self.reads += 1
        records = list(self.records.get(partition, []))
        gate = self.gate
        if self.read_errors:
            raise self.read_errors.pop(0)
        half = len(records) // 2
        yield records[:half]
        if gate is not None:
            await gate.wait()
        if self.before_slice is not None:
            self.before_slice()
        yield records[half:]


class EveryTopic:
    """Every partition exists, except partitions of ``missing`` topics and ``merged`` partitions."""

    def __init__(self, offsets_partitions: int | None = 1) -> None:
        self.missing: set[str] = set()
        self.merged: set[tuple[str, int]] = set()
        self.incarnations: dict[tuple[str, int], int] = {}
        self.bases: dict[tuple[str, int], int] = {}
        self.deleted_epoch = -1
        self.offsets_partitions = offsets_partitions
        self.withheld: set[str] = set()
        self.resized: set[str] = set()
        self.unknown: set[tuple[str, int]] = set()
        """Partitions that the broker does not know from metadata yet."""

    def contains(self, topic: str, partition: int) -> bool:
        is_gone = topic in self.missing or self.merged_away(topic, partition)
        return not is_gone and (topic, partition) not in self.unknown

    def merged_away(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self.merged

    def withholds(self, topic: str) -> bool:
        return topic in self.withheld

    def is_resized(self, topic: str) -> bool:
        return topic in self.resized

    def incarnation(self, topic: str, partition: int) -> int:
        return self.incarnations.get((topic, partition), -1)

    def base_offset(self, topic: str, partition: int) -> int:
        return self.bases.get((topic, partition), -1)

    def is_of_deleted_topic(self, key: TopicPartition, leader_epoch: int) -> bool:
        return 0 <= leader_epoch <= self.deleted_epoch

    def partition_count(self, topic: str) -> int | None:
        return self.offsets_partitions
