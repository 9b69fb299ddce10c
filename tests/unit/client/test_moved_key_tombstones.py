"""Hole 24: a moved key of a compacted topic leaves a marked tombstone in the key's old partition.

The tombstone is sent when the key's record is in the new partition.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import anyio
import pytest

from anabranch import Producer
from anabranch.client.errors import ErrorCode
from anabranch.client.producer.moved_key_tombstones import MovedKeys
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.generated.describe_configs import DescribeConfigsResponse
from anabranch.protocol.generated.offset_for_leader_epoch import OffsetForLeaderEpochResponse
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponse,
)
from anabranch.protocol.key_placement import MOVED_HEADER, parent
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition
from tests.support.protocol.messages import answered, message
from tests.unit.client.fake_broker import FakeBroker, Fault
from tests.unit.client.test_resize_producer import FAST, by_key, key_in, ordered

END_OF_EPOCH = 10


def compacted_broker(policy: str = "compact") -> FakeBroker:
    """Return a broker with two partitions to be split; records below offset 10 are older than the split."""

    def configs(body: Any) -> DescribeConfigsResponse:
        found = {"resource_type": 2, "resource_name": "t", "configs": [{"name": "cleanup.policy", "value": policy}]}
        return message(DescribeConfigsResponse, results=[found])

    def origin(_topic: str, p: int, _asked: object) -> dict[str, Any]:
        return {"as_of": 0, "lineage": [{"epoch": 0, "losers": [{"partition_index": parent(p, 2), "leader_epoch": 0}]}]}

    def origins(body: Any) -> PartitionLeaderEpochsForPartitionsResponse:
        return answered(PartitionLeaderEpochsForPartitionsResponse, body, origin)

    def ends(body: Any) -> OffsetForLeaderEpochResponse:
        end = {"leader_epoch": 0, "end_offset": END_OF_EPOCH}
        return answered(OffsetForLeaderEpochResponse, body, lambda *_: end)

    broker = ordered(2)
    broker.answers = {
        ApiKey.DESCRIBE_CONFIGS: configs,
        ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS: origins,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: ends,
    }
    return broker


def tombstones(broker: FakeBroker) -> list[tuple[int, bytes | None]]:
    """Return (partition, key) of each marked tombstone."""
    return [
        (tp.partition, record.key)
        for tp, log in sorted(broker.logs.items())
        for data in log.batches
        for record in RecordBatch(data)
        if record.value is None and record.headers == [(MOVED_HEADER, b"")]
    ]


async def test_a_key_that_moved_leaves_one_tombstone_at_the_ancestor() -> None:
    broker = compacted_broker()
    broker.resize("t", (2, 4, 1))
    async with broker.client(Producer, **FAST) as producer:
        moved, stays = key_in(3, 2, 4), key_in(1, 2, 4)
        for number in range(3):
            await producer.send_and_wait("t", key=moved, value=b"%d" % number)
            await producer.send_and_wait("t", key=stays, value=b"%d" % number)
        await producer.send_and_wait("t", value=b"no key")
    assert tombstones(broker) == [(1, moved)]


async def test_records_that_were_placed_again_leave_a_tombstone_too() -> None:
    broker = compacted_broker()
    async with broker.client(Producer, **FAST) as producer:
        await producer.partitions_for("t")
        broker.resize("t", (2, 4, 1))
        await producer.send_and_wait("t", key=key_in(2, 2, 4), value=b"1")
    assert tombstones(broker) == [(0, key_in(2, 2, 4))]


@pytest.mark.parametrize("why", ["not compacted", "nothing older is left", "not acknowledged"])
async def test_no_tombstone_is_sent_where_none_is_needed(why: str) -> None:
    """A tombstone is needed while the ancestor's log starts below the recorded end. KIP-253 states the opposite."""
    broker = compacted_broker("delete" if why == "not compacted" else "compact,delete")
    broker.resize("t", (2, 4, 1))
    ancestor = broker.logs[TopicPartition("t", 1)]
    if why == "nothing older is left":
        ancestor.start_offset = ancestor.end_offset = END_OF_EPOCH
    key = key_in(3, 2, 4)
    async with broker.client(Producer, **FAST) as producer:
        if why == "not acknowledged":
            broker.faults[TopicPartition("t", 3)] = deque([Fault(ErrorCode.INVALID_RECORD)])
            handle = await producer.send("t", key=key, value=b"1")
            while not handle.done():
                await producer.flush()
        else:
            await producer.send_and_wait("t", key=key, value=b"1")
    assert tombstones(broker) == []
    assert len(by_key(broker)) == (why != "not acknowledged")


async def answer_late(producer: Producer, broker: FakeBroker, key: bytes, is_answered: anyio.Event) -> None:
    """Answer the lineage request for the key's partition only after the topic shrank to 2 and grew to 4 partitions.

    The key's record is acknowledged in partition 3. Another producer writes the key to partition 1 in between.
    """
    await producer.send_and_wait("t", key=key, value=b"1")
    await key_comes_home(broker, key)
    broker.resize("t", (2, 4, 3))
    await producer.send_and_wait("t", key=key_in(0, 2, 4), value=b"by the layout there is")
    is_answered.set()
    await producer._moved_keys.settled()
    await producer.flush()


async def key_comes_home(broker: FakeBroker, key: bytes) -> None:
    broker.resize("t", (2, 2, 2))
    async with Producer(bootstrap_servers=broker.address, **FAST) as other:
        await other.send_and_wait("t", key=key, value=b"2")
    assert by_key(broker)[key] == [(1, b"2"), (3, b"1")]


async def test_a_lineage_that_arrives_late_leaves_no_tombstone_in_another_layout() -> None:
    """4 -> 2 -> 4: a tombstone would delete the record that another producer wrote to the ancestor in between."""
    broker, is_answered = compacted_broker(), anyio.Event()
    origins = broker.answers[ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS]

    def origins_once_answered(body: Any) -> PartitionLeaderEpochsForPartitionsResponse:
        found = origins(body)
        for partition in found.topics[0].partitions:
            partition.error_code = 0 if is_answered.is_set() else ErrorCode.LEADER_NOT_AVAILABLE
        return found

    broker.answers[ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS] = origins_once_answered
    broker.resize("t", (2, 4, 1))
    key = key_in(3, 2, 4)
    async with broker.client(Producer, **FAST) as producer:
        await answer_late(producer, broker, key, is_answered)
        assert tombstones(broker) == []
        await producer.send_and_wait("t", key=key, value=b"3")
    assert tombstones(broker) == [(1, key)], "a record of the current layout leaves a tombstone"


async def test_a_record_sent_to_a_chosen_partition_leaves_no_tombstone() -> None:
    broker = compacted_broker()
    broker.resize("t", (2, 4, 1))
    async with broker.client(Producer, **FAST) as producer:
        await producer.send_and_wait("t", key=key_in(1, 2, 4), value=b"1", partition=3)
    assert tombstones(broker) == []


@pytest.mark.parametrize("count", [2, 4])
async def test_a_tombstone_is_dropped_when_the_layout_changes_before_it_is_sent(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 -> 2, and 4 -> 2 -> 4: a late tombstone would delete newer values of the key in its old partition."""
    broker = compacted_broker()
    broker.resize("t", (2, 4, 1))
    key = key_in(3, 2, 4)
    async with broker.client(Producer, linger_ms=60_000, **FAST) as producer:
        appended: list[Any] = []
        monkeypatch.setattr(MovedKeys, "append_tombstone", lambda _keys, *args: appended.append(args))
        handle = await producer.send("t", key=key, value=b"1")
        await producer.flush()
        await handle
        await producer._moved_keys.settled()
        assert appended == [("t", 1, key)]
        monkeypatch.undo()
        producer._moved_keys.append_tombstone(*appended[0])
        await key_comes_home(broker, key)
        if count == 4:
            broker.resize("t", (2, 4, 3))
        await producer.send("t", key=key_in(0, 2, 4), value=b"by the layout there is")
    assert tombstones(broker) == []
