"""The group coordinator's log: the partitions of ``__consumer_offsets`` that this broker leads."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

import trio

from anabranch.broker.coordinator.broker_services import KeyValue
from anabranch.broker.coordinator.consumer_offsets_records import encode
from anabranch.broker.coordinator.durable import GroupRecord
from anabranch.broker.coordinator.outcome import is_committed
from anabranch.broker.deferred import Deferred
from anabranch.broker.log.load_records import load_records
from anabranch.broker.log.partition_log import AppendOrigin
from anabranch.broker.log.slices import TimeSlice, in_slices
from anabranch.broker.replication.appended import Appended
from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.purgatory import DelayedOperation, Purgatory
from anabranch.broker.replication.replica_manager import ReplicaManager
from anabranch.protocol.batch_builder import RECORDS_AT_ONCE, BatchBuilder
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.errors import ErrorCode, KafkaError, error_for
from anabranch.protocol.records import RecordBatch, iter_batches
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock
from anabranch.runtime.turns import pause
from anabranch.zk_schemas.broker_keys import BrokerKeys

MAX_READ_BYTES = 1 << 20
"""The largest part of a log that is read at once, even if ``offsets.load.buffer.size`` is larger."""
NOOP_RECORD = encode(GroupRecord("", None))
"""A record without effect. It removes the group with the empty name, and no member may join that group."""


class ReplicatedOffsetsLog:
    """``OffsetsLog`` over the replica manager."""

    def __init__(self, replicas: ReplicaManager, purgatory: Purgatory, clock: Clock, values: BrokerKeys) -> None:
        self._replicas = replicas
        self._purgatory = purgatory
        self._clock = clock
        self._values = values

    def append(self, partition: int, leader_epoch: int, records: Sequence[KeyValue]) -> Deferred[KafkaError | None]:
        """Append ``records`` as one batch. Filled with None once the batch is committed, or with an error."""
        try:
            hosted = self._replicas.leader(TopicPartition(OFFSETS_TOPIC, partition), leader_epoch)
            batch = memoryview(self._build(records))
            result = hosted.append(
                batch, all_in_sync=True, origin=AppendOrigin.COORDINATOR, expected_leader_epoch=leader_epoch
            )
        except KafkaError as error:
            refused: Deferred[KafkaError | None] = Deferred()
            refused.fill(error)
            return refused
        return _AwaitedCommit.of(self._purgatory, hosted, result.last_offset + 1).fate

    def confirm_leadership(self, partition: int, leader_epoch: int) -> Deferred[KafkaError | None]:
        """Append a record without effect and wait until it is committed. A deposed leader cannot commit it.

        A leader that is alone in the ISR needs no proof: no other replica may be elected.
        """
        fate: Deferred[KafkaError | None] = Deferred()
        try:
            hosted = self._replicas.leader(TopicPartition(OFFSETS_TOPIC, partition), leader_epoch)
            if tuple(hosted.isr) == (hosted.local_id,) and hosted.pending_isr is None:
                fate.fill(None)
                return fate
            result = hosted.append(
                memoryview(self._build([NOOP_RECORD])), all_in_sync=False, origin=AppendOrigin.COORDINATOR
            )
        except KafkaError as error:
            fate.fill(error)
            return fate
        waiting = _AwaitedCommit.of(self._purgatory, hosted, result.last_offset + 1)
        waiting.fate.then(lambda error: fate.fill(None if error is None or is_committed(error.code) else error))
        return fate

    def _build(self, records: Sequence[KeyValue]) -> bytearray:
        builder = BatchBuilder(CompressionType(self._values.offsets_topic_compression_codec), 2**31 - 1)
        now_ms = self._clock.now_ms()
        for key, value in records:
            builder.append(key, value, (), now_ms)
        return bytearray(builder.build())

    async def wait_until_committed(self, partition: int, leader_epoch: int) -> None:
        """Return when the high watermark reaches the present log end. Raises if this broker does not lead any more."""
        hosted = self._replicas.leader(TopicPartition(OFFSETS_TOPIC, partition), leader_epoch)
        waiting = _AwaitedCommit.of(self._purgatory, hosted, hosted.log.log_end_offset)
        known = trio.Event()
        fates: list[KafkaError | None] = []

        def on_fate(error: KafkaError | None) -> None:
            fates.append(error)
            known.set()

        waiting.fate.then(on_fate)
        try:
            await known.wait()
        finally:
            waiting.give_up()
        (error,) = fates
        if error is not None and not is_committed(error.code):
            raise error

    async def read_all(self, partition: int, leader_epoch: int) -> AsyncIterator[Iterable[KeyValue]]:
        """Yields every record from the log start to the present log end, batch by batch.

        The log is read ``offsets.load.buffer.size`` bytes at a time. If a batch is larger, it is read whole
        (KAFKA-7286).
        """
        log = self._replicas.leader(TopicPartition(OFFSETS_TOPIC, partition), leader_epoch).log
        end_offset = log.log_end_offset
        offset = log.log_start_offset
        work = TimeSlice(self._clock)
        max_bytes = min(MAX_READ_BYTES, self._values.offsets_load_buffer_size)
        while offset < end_offset:
            data = await load_records(log, offset, max_bytes)
            if not data:
                return  # compaction left nothing up to the end
            for batch in iter_batches(data, allow_partial_tail=True):
                if batch.may_be_large:
                    await in_slices(batch.read_in_steps(RECORDS_AT_ONCE), work)
                if not batch.is_control:
                    yield _key_values(batch, offset, end_offset)
                offset = max(offset, batch.next_offset)
            await pause()


def _key_values(batch: RecordBatch, start_offset: int, end_offset: int) -> Iterator[KeyValue]:
    for record in batch.records():
        if record.key is not None and start_offset <= record.offset < end_offset:
            yield record.key, record.value


class _AwaitedCommit(DelayedOperation):
    """Fills ``fate`` once the high watermark of a partition reaches an offset, or once the leadership is over.

    It never expires, so it is kept only by the partition, not by the purgatory.
    """

    __slots__ = ("_appended", "_purgatory", "fate")

    def __init__(self, purgatory: Purgatory, appended: Appended) -> None:
        super().__init__(math.inf)
        self._purgatory = purgatory
        self._appended = appended
        self.fate: Deferred[KafkaError | None] = Deferred()

    @classmethod
    def of(cls, purgatory: Purgatory, partition: Partition, end_offset: int) -> _AwaitedCommit:
        """Wait for ``end_offset`` within the present leadership."""
        waiting = cls(purgatory, Appended(partition, end_offset, all_in_sync=True, awaits_isr=False))
        waiting.try_complete()
        if not waiting.completed:
            partition.watchers[waiting] = None
        return waiting

    def partition_changed(self, _key: TopicPartition) -> None:
        self._purgatory.changed(self)

    def try_complete(self) -> None:
        code = self._appended.outcome()
        if code is not None:
            self.give_up()
            self.fate.fill(None if code is ErrorCode.NONE else error_for(code))

    def give_up(self) -> None:
        """Stop waiting."""
        self.completed = True
        self._appended.partition.watchers.pop(self, None)
