"""A partition that was marked for deletion is revived before it is drained (KIP-253): 4 -> 6 -> 4 -> 8."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from anabranch.broker.log.partition_log import AppendOrigin
from anabranch.broker.replication.isr import ReplicaProgress
from anabranch.broker.replication.partition import Partition
from anabranch.protocol.batch_layout import CONTROL_COMMIT
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.records import iter_batches
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel
from sim.zk import FakeZk
from tests.support.broker import requests
from tests.support.broker.broker_harness import BROKER_ID, DEADLINE_S
from tests.support.broker.requests import only
from tests.support.log.batches import build_control_batch
from tests.support.resize.resized_broker import (
    FIRST,
    GROWN,
    GROWN_AGAIN,
    NEVER_ANSWERED_MS,
    SHRUNK,
    UNTAGGED,
    Broker,
    broker_of,
    key_of,
    keyed,
    of_producer,
    produce_request,
)

pytestmark = pytest.mark.trio

P5 = TopicPartition("t", 5)
OTHER_BROKER = 2
MISMATCH, FENCED, NOT_KNOWN = ErrorCode.INVALID_PARTITION_METADATA, ErrorCode.FENCED_LEADER_EPOCH, (-1, -1)


async def closed(broker: Broker, records: int = 2) -> Partition:
    """Partition 5, with records of leader epoch 0, marked for deletion in epoch 1."""
    await broker.has(GROWN, 5, epoch=0)
    for sequence in range(records):
        assert (await broker.produce(5, GROWN, of_producer(sequence))).base_offset == sequence
    await broker.has(SHRUNK, 5, epoch=1)
    return broker.node.replicas.leader(P5)


async def epoch_end(broker: Broker, epoch: int, current_leader_epoch: int = -1) -> tuple[int, int] | ErrorCode:
    """The end of an epoch in partition 5 as (epoch, end offset), or the error."""
    request = requests.end_of_epoch(5, epoch, current_leader_epoch=current_leader_epoch)
    end = only(await broker.harness.request(request))
    return (end.leader_epoch, end.end_offset) if end.error_code == 0 else ErrorCode.of(end.error_code)


# ---------------------------------------------------------------- Produce


async def test_a_closed_partition_takes_no_records_and_a_revived_one_those_of_its_new_layout(
    broker: Broker,
) -> None:
    await closed(broker)
    for layout in (GROWN, SHRUNK, GROWN_AGAIN, FIRST):
        assert (await broker.produce(5, layout)).error_code == MISMATCH
    assert (await broker.produce(5, UNTAGGED)).error_code == ErrorCode.POLICY_VIOLATION
    await broker.has(GROWN_AGAIN, 5, epoch=2)
    for layout in (GROWN, SHRUNK, FIRST, (8, 1)):
        assert (await broker.produce(5, layout)).error_code == MISMATCH
    assert (await broker.produce(5, GROWN_AGAIN)).base_offset == 2
    assert (await broker.produce(5, UNTAGGED, keyed(key_of(5, 8)))).base_offset == 3
    misplaced = keyed(key_of(1, 8))
    assert (await broker.produce(5, UNTAGGED, misplaced)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, (
        "the producer has to refresh its metadata first"
    )
    assert (await broker.produce(5, UNTAGGED, misplaced)).error_code == ErrorCode.POLICY_VIOLATION


async def test_producers_of_a_revived_partition_continue_their_sequences(broker: Broker) -> None:
    """The log is kept: a retry after a lost response is a duplicate, and the next batch continues the sequence."""
    await closed(broker)
    assert (await broker.produce(5, GROWN, of_producer(2))).error_code == MISMATCH
    await broker.has(GROWN_AGAIN, 5, epoch=2)
    for layout in (GROWN, GROWN_AGAIN, UNTAGGED):
        again = await broker.produce(5, layout, of_producer(1))
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 1)
    assert (await broker.produce(5, GROWN_AGAIN, of_producer(3))).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await broker.produce(5, GROWN_AGAIN, of_producer(2))).base_offset == 2


async def test_records_of_a_revived_partition_carry_the_epoch_of_their_append(broker: Broker) -> None:
    """The epoch shows a consumer which records it has to wait for."""
    partition = await closed(broker, records=1)
    marker = build_control_batch(CONTROL_COMMIT, 9, 0, 0, 1_000)
    partition.append(marker, all_in_sync=True, origin=AppendOrigin.COORDINATOR)
    await broker.has(GROWN_AGAIN, 5, epoch=2)
    await broker.produce(5, GROWN_AGAIN)
    records = (await broker.fetch(5)).responses[0].partitions[0].records
    assert [batch.partition_leader_epoch for batch in iter_batches(records)] == [0, 1, 2]


async def test_a_follower_is_closed_and_revived_like_its_leader(broker: Broker) -> None:
    """A follower that leads next uses the layout that it got as a follower. It keeps each layout on disk."""
    for epoch, layout in enumerate((GROWN, SHRUNK, GROWN_AGAIN)):
        state = broker.state(5, epoch, layout)
        state.leader, state.replicas, state.isr = OTHER_BROKER, [OTHER_BROKER, BROKER_ID], [OTHER_BROKER, BROKER_ID]
        assert await broker.lead(state) == {ErrorCode.NONE}
        assert (await broker.produce(5, layout)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await broker.lead(broker.state(5, 3, GROWN_AGAIN)) == {ErrorCode.NONE}
    assert (await broker.produce(5, SHRUNK)).error_code == MISMATCH
    assert (await broker.produce(5, GROWN_AGAIN)).error_code == ErrorCode.NONE
    assert [entry[0] for entry in broker.history(5)] == [0, 1, 2]


async def test_each_layout_of_a_revived_partition_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zk = FakeZk()
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        await closed(broker)
        await broker.has(GROWN_AGAIN, 5, epoch=2)
    checkpoint = tmp_path / "t-5" / "partition-count-checkpoint"
    assert checkpoint.read_text() == "0\n3\n0 4 6 1\n1 4 4 2\n2 4 8 3\n"
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        await broker.has(GROWN_AGAIN, 5, epoch=4)
        assert len(broker.history(5)) == 3
        assert (await broker.produce(5, SHRUNK)).error_code == MISMATCH
        assert (await broker.produce(5, GROWN_AGAIN, of_producer(2))).base_offset == 2


async def test_a_produce_that_waits_for_replicas_is_answered_after_closing_and_revival(broker: Broker) -> None:
    """A batch that was appended before the closing is acknowledged.

    A batch that was refused while the partition was closed stays refused. Its producer chooses the partition again.
    """
    await broker.has(GROWN, 5, epoch=0)
    partition = broker.node.replicas.leader(P5)
    partition.isr, partition.progress = (1, OTHER_BROKER), {OTHER_BROKER: ReplicaProgress()}
    answers: list[tuple[int, int]] = []

    async def send(sequence: int) -> None:
        request = produce_request(5, GROWN, of_producer(sequence), timeout_ms=NEVER_ANSWERED_MS)
        at = broker.harness
        async with Channel.open(at.env.network, at.host, at.port, client_id="producer") as channel:
            response = await channel.request(request, timeout_s=DEADLINE_S)
        found = response.responses[0].partition_responses[0]
        answers.append((found.error_code, found.base_offset))

    async def closes_and_comes_again(epoch: int, layout: tuple[int, int]) -> None:
        state = broker.state(5, epoch, layout)
        state.isr = state.replicas = [BROKER_ID, OTHER_BROKER]
        assert await broker.lead(state) == {ErrorCode.NONE}

    async def waiting(count: int) -> None:
        while len(partition.watchers) < count:
            await trio.sleep(0.005)  # polls: the request came in

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, 0)
            await waiting(1)
            await closes_and_comes_again(1, SHRUNK)
            partition.progress = {OTHER_BROKER: ReplicaProgress()}
            nursery.start_soon(send, 1)
            await waiting(2)
            await closes_and_comes_again(2, GROWN_AGAIN)
            assert answers == []
            partition.follower_fetched(OTHER_BROKER, 0, 1, 0)
    assert sorted(answers) == [(0, 0), (MISMATCH, -1)]
    assert partition.log.log_end_offset == 1


# ---------------------------------------------------------------- OffsetForLeaderEpoch


async def test_the_end_of_an_epoch_does_not_move_when_the_partition_is_closed_and_revived(broker: Broker) -> None:
    partition = await closed(broker)
    assert await epoch_end(broker, 0) == (0, 2)
    partition.append(
        build_control_batch(CONTROL_COMMIT, 9, 0, 0, 1_000), all_in_sync=True, origin=AppendOrigin.COORDINATOR
    )
    assert await epoch_end(broker, 0) == (0, 2), "markers follow its end"
    await broker.has(GROWN_AGAIN, 5, epoch=2)
    await broker.produce(5, GROWN_AGAIN)
    assert [await epoch_end(broker, epoch) for epoch in (0, 1, 2)] == [(0, 2), (1, 3), (2, 4)]


async def test_an_epoch_without_records_ends_where_the_next_begins(broker: Broker) -> None:
    await closed(broker)
    await broker.has(GROWN_AGAIN, 5, epoch=4)
    assert [await epoch_end(broker, epoch) for epoch in (1, 2, 3)] == [(0, 2)] * 3, (
        "the partition was closed in epoch 1, and 2 and 3 are unknown here"
    )
    await broker.produce(5, GROWN_AGAIN)
    assert [await epoch_end(broker, epoch) for epoch in (1, 3)] == [(0, 2)] * 2
    assert await epoch_end(broker, 4) == (4, 3)


async def test_a_new_partition_knows_its_first_epoch_at_once(broker: Broker) -> None:
    assert await broker.lead(broker.state(5, 3, GROWN)) == {ErrorCode.NONE}
    assert await epoch_end(broker, 3) == (3, 0), "not final: it is the leader's present epoch"
    assert await broker.lead(broker.state(5, 4, SHRUNK)) == {ErrorCode.NONE}
    assert await epoch_end(broker, 3) == (3, 0)


async def test_only_a_leader_in_a_higher_epoch_answers_the_end_of_an_epoch(broker: Broker) -> None:
    """A deposed or older leader would return its own log end. So each request names a higher leader epoch."""
    await closed(broker)
    assert await epoch_end(broker, 2) == NOT_KNOWN
    assert await epoch_end(broker, 1, current_leader_epoch=2) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert await epoch_end(broker, 0, current_leader_epoch=1) == (0, 2)
    await broker.has(GROWN_AGAIN, 5, epoch=2)
    assert await epoch_end(broker, 0, current_leader_epoch=1) == FENCED


# ---------------------------------------------------------------- DeleteRecords


@pytest.mark.parametrize(
    ("layout", "epoch", "named", "code"),
    [
        (SHRUNK, 1, 1, ErrorCode.NONE),
        (SHRUNK, 2, 1, FENCED),
        (SHRUNK, 1, 2, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (GROWN_AGAIN, 2, 1, FENCED),
        (GROWN_AGAIN, 2, 2, FENCED),
        (GROWN_AGAIN, 2, -1, ErrorCode.NONE),
    ],
    ids=["its epoch", "after an election", "a later epoch", "revived", "revived, its epoch", "an administrator"],
)
async def test_a_drain_deletes_only_in_the_leader_epoch_of_the_closed_partition(
    broker: Broker, layout: tuple[int, int], epoch: int, named: int, code: ErrorCode
) -> None:
    """A late request would delete records of a revived partition that new readers still need."""
    partition = await closed(broker)
    if epoch > 1:
        await broker.has(layout, 5, epoch=epoch)
    assert only(await broker.harness.request(requests.delete_records(5, 2, leader_epoch=named))).error_code == code
    assert partition.log.log_start_offset == (2 if code is ErrorCode.NONE else 0)
