"""The group coordinator's log: the partitions of ``__consumer_offsets`` that this broker leads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import trio

from broker.coordinator.offsets_log import KeyValue
from broker.deferred import Deferred
from broker.log.partition_log import AppendOrigin
from broker.replication.delayed_produce import AwaitedAppend, DelayedProduce
from broker.replication.purgatory import Purgatory
from broker.replication.replica_manager import ReplicaManager
from broker.topic_names import OFFSETS_TOPIC
from protocol.batch_builder import BatchBuilder
from protocol.compression import CompressionType
from protocol.errors import KafkaError, error_for
from protocol.generated.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from protocol.records import iter_batches
from protocol.types import TopicPartition
from runtime.env import Clock


class ReplicatedOffsetsLog:
    """``OffsetsLog`` over the replica manager."""

    def __init__(self, replicas: ReplicaManager, purgatory: Purgatory, clock: Clock, values: Any) -> None:
        self._replicas = replicas
        self._purgatory = purgatory
        self._clock = clock
        self._values = values

    def append(self, partition: int, records: Sequence[KeyValue]) -> Deferred[KafkaError | None]:
        """Append ``records`` as one batch; filled once it is committed, or with the error."""
        outcome: Deferred[KafkaError | None] = Deferred()
        try:
            hosted = self._replicas.leader(TopicPartition(OFFSETS_TOPIC, partition))
            batch = self._build(records, hosted.log.config.max_message_bytes)
            result = hosted.append(memoryview(batch), all_in_sync=True, origin=AppendOrigin.COORDINATOR)
        except KafkaError as error:
            outcome.fill(error)
            return outcome
        answer = PartitionProduceResponse(index=partition)
        awaited = AwaitedAppend(hosted, result.last_offset + 1, answer, all_in_sync=True)
        if awaited.is_done():
            outcome.fill(_error_in(answer))
            return outcome
        response = ProduceResponse(responses=[TopicProduceResponse(name=OFFSETS_TOPIC, partition_responses=[answer])])
        deadline = self._clock.monotonic() + self._values["offsets.commit.timeout.ms"] / 1000
        parked = DelayedProduce.park(self._purgatory, deadline, [awaited], response)
        parked.then(lambda _: outcome.fill(_error_in(answer)))
        return outcome

    def _build(self, records: Sequence[KeyValue], max_bytes: int) -> bytearray:
        builder = BatchBuilder(CompressionType(self._values["offsets.topic.compression.codec"]), 2**31 - 1)
        now_ms = self._clock.now_ms()
        for key, value in records:
            builder.append(key, value, (), now_ms)
        return bytearray(builder.build())

    async def read_all(self, partition: int) -> AsyncIterator[Sequence[KeyValue]]:
        """Every record from log start to the log end as of now, ``offsets.load.buffer.size`` bytes at a time."""
        hosted = self._replicas.leader(TopicPartition(OFFSETS_TOPIC, partition))
        log = hosted.log
        end_offset = log.log_end_offset
        offset = log.log_start_offset
        slice_bytes = min(1 << 20, self._values["offsets.load.buffer.size"])
        while offset < end_offset:
            read = log.read(offset, slice_bytes, upper_bound=end_offset)
            data = read.records if isinstance(read.records, bytes) else read.records.read()
            if not data:
                return
            records: list[KeyValue] = []
            for batch in iter_batches(data, allow_partial_tail=True):
                if not batch.is_control:
                    records += [
                        (record.key, record.value)
                        for record in batch.records()
                        if record.key is not None and offset <= record.offset < end_offset
                    ]
                offset = max(offset, batch.next_offset)
            yield records
            await trio.lowlevel.checkpoint()


def _error_in(answer: PartitionProduceResponse) -> KafkaError | None:
    return error_for(answer.error_code) if answer.error_code else None
