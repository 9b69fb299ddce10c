"""A leader's response about the past is final: it waits until all replicas in sync have followed the leader (KIP-253).

An earlier leader that was cut off may still be in sync. If it leads next, it brings back records that only it appended.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.log import producer_rebuild
from anabranch.broker.log.producer_rebuild import ProducerRebuild
from anabranch.broker.replication.isr import ReplicaProgress
from anabranch.broker.replication.partition import Partition
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.produce import ProduceRequest
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel
from tests.support.broker import requests
from tests.support.broker.broker_harness import DEADLINE_S
from tests.support.broker.requests import only
from tests.support.resize.resized_broker import (
    FIRST,
    GROWN,
    NEVER_ANSWERED_MS,
    SHRUNK,
    Broker,
    of_producer,
    produce_request,
)

pytestmark = pytest.mark.trio


@asynccontextmanager
async def held(broker: Broker, partition: Partition, request: ProduceRequest) -> AsyncIterator[list[Any]]:
    """Send a produce request that waits for the replicas. The yielded list gets the result after the block."""
    answers: list[Any] = []

    async def send() -> None:
        response = await broker.harness.request(request)
        answers.append(response.responses[0].partition_responses[0])

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while not partition.watchers:
                await trio.sleep(0.005)  # polls: the request came in
            assert answers == []
            yield answers


async def test_the_controller_learns_the_end_of_a_closed_partition(broker: Broker) -> None:
    """Hole 7: whatever the high watermark is, a broker or controller gets the log end. Old epochs are fenced."""
    await broker.has(GROWN, 5, epoch=0)
    await broker.produce(5, GROWN)
    await broker.has(SHRUNK, 5, epoch=1)
    log = broker.node.logs.get(TopicPartition("t", 5))
    assert log is not None
    log.high_watermark = 0  # the followers have not fetched it yet

    async def offset(replica_id: int, timestamp: int, epoch: int = 1) -> tuple[int, int]:
        asked = requests.list_offsets(5, timestamp=timestamp, replica_id=replica_id, leader_epoch=epoch)
        found = only(await broker.harness.request(asked))
        return found.error_code, found.offset

    assert await offset(1000, -1) == (0, 1)
    assert await offset(1000, -2) == (0, 0)
    assert await offset(1000, -1, epoch=0) == (ErrorCode.FENCED_LEADER_EPOCH, -1)
    assert await offset(1000, -1, epoch=2) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1)
    assert await offset(-1, -1) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    log.high_watermark = 1
    assert await offset(-1, -1) == (0, 1)


async def test_the_end_of_a_closed_partition_is_not_available_until_the_isr_has_followed(broker: Broker) -> None:
    """An earlier leader that was cut off and has not followed yet would bring back records that only it appended."""
    await broker.has(GROWN, 5, epoch=0)
    await broker.produce(5, GROWN)
    await broker.has(SHRUNK, 5, epoch=1)
    partition = broker.node.replicas.leader(TopicPartition("t", 5), 1)
    partition.isr, partition.progress = (1, 2), {2: ReplicaProgress()}

    async def end() -> tuple[int, int]:
        found = only(await broker.harness.request(requests.list_offsets(5)))
        return found.error_code, found.offset

    assert await end() == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    partition.follower_fetched(2, 0, 0, 0)
    assert await end() == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    partition.follower_fetched(2, 0, 1, 0)
    assert await end() == (ErrorCode.NONE, 1)


@pytest.mark.parametrize(
    ("number", "layout", "old", "sequence", "code"),
    [
        (5, SHRUNK, GROWN, None, ErrorCode.INVALID_PARTITION_METADATA),
        (1, GROWN, FIRST, None, ErrorCode.INVALID_PARTITION_METADATA),
        (1, FIRST, FIRST, 7, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
    ids=["closed", "of another layout", "after a gap"],
)
@pytest.mark.parametrize("follows", [True, False], ids=["the replica follows", "the replica leaves the ISR"])
async def test_a_refusal_waits_until_no_replica_in_sync_can_have_the_batch(
    broker: Broker,
    number: int,
    layout: tuple[int, int],
    old: tuple[int, int],
    sequence: int | None,
    code: ErrorCode,
    follows: bool,
) -> None:
    """An earlier leader that was cut off could bring the batch back when the producer has sent it elsewhere."""
    await broker.has(layout, number, epoch=1)
    if sequence is not None:
        await broker.produce(number, layout, of_producer(0))
    partition = broker.node.replicas.leader(TopicPartition("t", number), 1)
    partition.isr, partition.progress = (1, 2), {2: ReplicaProgress()}
    batch = None if sequence is None else of_producer(sequence)
    async with held(broker, partition, produce_request(number, old, batch, timeout_ms=NEVER_ANSWERED_MS)) as answers:
        if follows:
            partition.follower_fetched(2, 0, 0, 0)
        else:
            partition.isr_committed((1,), partition.partition_epoch + 1)
    assert [found.error_code for found in answers] == [code]
    assert not partition.watchers


async def test_a_produce_with_acks_1_is_refused_at_once(broker: Broker) -> None:
    await broker.has(GROWN, 1, epoch=1)
    partition = broker.node.replicas.leader(TopicPartition("t", 1), 1)
    partition.isr, partition.progress = (1, 2), {2: ReplicaProgress()}
    with trio.fail_after(DEADLINE_S):
        response = await broker.harness.request(produce_request(1, FIRST, acks=1, timeout_ms=NEVER_ANSWERED_MS))
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_PARTITION_METADATA


async def test_the_end_of_an_epoch_is_not_available_until_the_isr_has_followed(broker: Broker) -> None:
    """A too early end would let records of an earlier leader be delivered after records of a later epoch (KIP-253)."""
    await broker.has(GROWN, 1, epoch=2)
    await broker.has(GROWN, 1, epoch=3)
    partition = broker.node.replicas.leader(TopicPartition("t", 1), 3)
    partition.isr, partition.progress = (1, 2), {2: ReplicaProgress()}

    async def code(epoch: int, replica_id: int = -1) -> int:
        return int(
            only(await broker.harness.request(requests.end_of_epoch(1, epoch, replica_id=replica_id))).error_code
        )

    assert await code(0) == ErrorCode.OFFSET_NOT_AVAILABLE
    assert await code(0, replica_id=2) == 0, "a follower has to know where to truncate before it can follow"
    assert await code(2) == 0, "no other partition waits for an epoch of this layout"
    partition.follower_fetched(2, 0, 0, 0)
    assert await code(0) == 0


async def test_a_topic_that_was_never_resized_answers_the_ends_of_epochs_at_once(broker: Broker) -> None:
    await broker.has(FIRST, 1, epoch=1)
    partition = broker.node.replicas.leader(TopicPartition("t", 1), 1)
    partition.isr, partition.progress = (1, 2), {2: ReplicaProgress()}
    assert only(await broker.harness.request(requests.end_of_epoch(1, 0))).error_code == 0


async def test_a_refusal_that_is_not_final_in_time_is_answered_as_a_timeout(broker: Broker) -> None:
    await broker.has(GROWN, 1, epoch=1)
    partition = broker.node.replicas.leader(TopicPartition("t", 1), 1)
    partition.isr, partition.progress = (1, 2), {2: ReplicaProgress()}
    response = await broker.harness.request(produce_request(1, FIRST, timeout_ms=1))
    found = response.responses[0].partition_responses[0]
    assert (found.error_code, found.error_message) == (ErrorCode.REQUEST_TIMED_OUT, None)
    assert broker.end_offset(1) == 0


async def test_a_retry_of_a_batch_too_old_to_be_remembered_is_answered_as_a_duplicate(broker: Broker) -> None:
    """Hole 17: after a refusal by the layout the batch would be written twice. The response waits for replication."""
    await broker.has(FIRST, 1, epoch=1)
    partition = broker.node.replicas.leader(TopicPartition("t", 1), 1)
    for sequence in range(6):
        assert (await broker.produce(1, FIRST, of_producer(sequence))).base_offset == sequence
    await broker.has(GROWN, 1, epoch=2)
    partition.isr, partition.progress = (1, 2), {2: ReplicaProgress()}
    partition.log.high_watermark = 5
    retry = produce_request(1, FIRST, of_producer(0), timeout_ms=NEVER_ANSWERED_MS)
    async with held(broker, partition, retry) as answers:
        partition.follower_fetched(2, 0, 6, 0)
    assert [(found.error_code, found.base_offset) for found in answers] == [(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1)]
    assert broker.end_offset(1) == 6


async def test_a_duplicate_with_acks_0_does_not_close_the_connection(broker: Broker) -> None:
    """With acks=0 there is no response: the connection is closed for an error, but not for a duplicate."""
    harness = broker.harness
    await broker.has(FIRST, 1, epoch=1)
    for sequence in range(6):
        await broker.produce(1, FIRST, of_producer(sequence))
    with trio.fail_after(DEADLINE_S):
        async with (
            Channel.open(harness.env.network, harness.host, harness.port, client_id="acks-0") as channel,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(channel.request, produce_request(1, FIRST, of_producer(0), acks=0))
            await trio.testing.wait_all_tasks_blocked()
            response = await channel.request(produce_request(1, FIRST, of_producer(6)))
            nursery.cancel_scope.cancel()
    assert response.responses[0].partition_responses[0].base_offset == 6


async def test_a_replica_that_cannot_read_its_producer_state_does_not_lead(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica has no file descriptors to read its producer state. The controller sends the request again."""
    await broker.has(FIRST, 1, epoch=0)
    await broker.produce(1, FIRST)
    log = broker.node.logs.get(TopicPartition("t", 1))
    assert log is not None

    def refuse(*_: object) -> Iterator[None]:
        raise OSError(errno.EMFILE, "Too many open files")

    log.rebuild = ProducerRebuild(log, None, broker.node.env.clock)
    with monkeypatch.context() as patch:
        patch.setattr(producer_rebuild, "replay_producers", refuse)
        assert await broker.lead(broker.state(1, 1, FIRST)) == {ErrorCode.REPLICA_NOT_AVAILABLE}
    assert not log.is_broken and log.leader_epoch_cache.latest_epoch == 0
    await broker.has(FIRST, 1, epoch=1)
    assert log.rebuild is None and log.leader_epoch_cache.latest_epoch == 1
