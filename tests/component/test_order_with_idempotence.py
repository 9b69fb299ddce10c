"""A batch that was sent after a refused batch is not written before the refused batch (``order_with_idempotence``)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from anabranch.broker.replication.isr import ReplicaProgress
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel, ChannelClosedError
from anabranch.runtime.real_trio import TrioNetwork
from tests.support.broker.broker_harness import DEADLINE_S, set_keys
from tests.support.resize.resized_broker import FIRST, GROWN, UNTAGGED, Broker, of_producer, produce_request

pytestmark = pytest.mark.trio
WRITTEN, AGAIN = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_partition_that_gets_its_leader_between_two_batches_takes_them_in_order(broker: Broker) -> None:
    async def send(sequence: int) -> int:
        return (await broker.produce(5, UNTAGGED, of_producer(sequence))).error_code

    assert await send(0) == AGAIN
    await broker.has(GROWN, 5, epoch=0)
    assert [await send(1), await send(2)] == [AGAIN, AGAIN]
    assert broker.end_offset(5) == 0
    assert [await send(sequence) for sequence in range(3)] == [WRITTEN] * 3


async def test_a_batch_that_was_written_and_truncated_is_awaited_too(broker: Broker) -> None:
    partition = broker.node.replicas.leader(TopicPartition("t", 1), 0)
    partition.isr, partition.progress = (1, 2), {2: ReplicaProgress()}
    late = await broker.harness.request(produce_request(1, FIRST, of_producer(0), timeout_ms=1))
    assert late.responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert broker.end_offset(1) == 1
    partition.log.truncate_to(0)  # a follower does this when its leader does not have the batch
    partition.isr_committed((1,), partition.partition_epoch + 1)
    assert [(await broker.produce(1, FIRST, of_producer(sequence))).error_code for sequence in (1, 0, 1)] == [
        AGAIN,
        WRITTEN,
        WRITTEN,
    ]


async def test_a_batch_on_another_connection_does_not_wait_for_the_refused_one(broker: Broker) -> None:
    assert (await broker.produce(5, UNTAGGED, of_producer(0))).error_code == AGAIN
    await broker.has(GROWN, 5, epoch=0)
    async with Channel.open(TrioNetwork(), broker.harness.host, broker.harness.port, "another") as another:
        response = await another.request(produce_request(5, UNTAGGED, of_producer(1)))
    assert response.responses[0].partition_responses[0].error_code == WRITTEN


async def test_a_connection_with_refused_batches_of_too_many_partitions_is_closed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_keys(monkeypatch, broker.node, max_retried_partitions_per_connection=2)
    async with Channel.open(TrioNetwork(), broker.harness.host, broker.harness.port, "another") as another:
        for number in (5, 6):
            await another.request(produce_request(number, UNTAGGED, of_producer(0)))
        with trio.fail_after(DEADLINE_S), pytest.raises(ChannelClosedError):
            await another.request(produce_request(7, UNTAGGED, of_producer(0)))


async def test_a_batch_that_is_sent_again_after_it_was_written_counts_once_in_the_appended_bytes(
    broker: Broker,
) -> None:
    first, second = of_producer(0), of_producer(1)
    for records in (first, first, second, first):
        assert (await broker.produce(1, UNTAGGED, records)).error_code == WRITTEN
    assert broker.end_offset(1) == 2
    assert broker.node.metrics.appended_bytes.get("t") == len(first) + len(second)
