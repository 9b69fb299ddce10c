"""A shrink removes a partition, and a grow recreates it: the new log begins where the old log ended.

If offsets began at 0 again, an old position or commit of a consumer would skip the first records of the new log.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from anabranch.broker.log.partition_log import AppendOrigin
from anabranch.protocol.batch_layout import CONTROL_COMMIT
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrPartitionState
from anabranch.protocol.records import iter_batches
from anabranch.protocol.types import TopicPartition
from sim.zk import FakeZk
from tests.support.broker import requests
from tests.support.broker.broker_harness import BROKER_ID
from tests.support.broker.requests import only
from tests.support.log.batches import build_control_batch
from tests.support.resize.resized_broker import GROWN, Broker, broker_of

pytestmark = pytest.mark.trio
P5 = TopicPartition("t", 5)
BASE = 40
CONSUMER = -1


def created_again(broker: Broker, epoch: int = 2, base: int = BASE) -> LeaderAndIsrPartitionState:
    state = broker.state(5, epoch, GROWN, incarnation=500)
    state.base_offset = base
    return state


async def fetched(broker: Broker, offset: int, replica_id: int = CONSUMER) -> PartitionData:
    asked = FetchPartition(partition=5, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=replica_id,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic="t", partitions=[asked])],
    )
    found: PartitionData = (await broker.harness.request(request)).responses[0].partitions[0]
    return found


async def offsets(broker: Broker, offset: int) -> list[int]:
    """Fetch from ``offset`` as a consumer. Returns the offsets of the records."""
    found = await fetched(broker, offset)
    assert found.error_code == ErrorCode.NONE
    return [record.offset for batch in iter_batches(found.records) for record in batch]


async def listed(broker: Broker, timestamp: int) -> int:
    return int(only(await broker.harness.request(requests.list_offsets(5, timestamp=timestamp))).offset)


async def epoch_end(broker: Broker, epoch: int) -> tuple[int, int]:
    found = only(await broker.harness.request(requests.end_of_epoch(5, epoch)))
    assert found.error_code == ErrorCode.NONE
    return found.leader_epoch, found.end_offset


async def test_a_recreated_log_begins_where_the_old_log_ended(broker: Broker) -> None:
    assert await broker.lead(created_again(broker)) == {0}
    assert (await listed(broker, -2), await listed(broker, -1)) == (BASE, BASE)
    found = await fetched(broker, BASE)
    assert (found.log_start_offset, found.high_watermark, found.last_stable_offset) == (BASE, BASE, BASE)
    assert (await broker.produce(5, GROWN)).base_offset == BASE


async def test_a_consumer_below_the_recreated_log_is_answered_from_its_start(broker: Broker) -> None:
    """An old position stays valid: the offsets up to the new log are a gap as after compaction, not out of range."""
    assert await broker.lead(created_again(broker)) == {0}
    assert await offsets(broker, 12) == []
    for _ in range(3):
        await broker.produce(5, GROWN)
    assert await offsets(broker, 0) == await offsets(broker, 39) == await offsets(broker, BASE) == [40, 41, 42]
    assert await offsets(broker, 41) == [41, 42]
    for outside in (-1, 44):
        assert (await fetched(broker, outside)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await fetched(broker, 12, replica_id=1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE, (
        "a follower starts at the log start"
    )


async def test_a_consumer_below_the_recreated_log_is_out_of_range_once_records_are_deleted(broker: Broker) -> None:
    assert await broker.lead(created_again(broker)) == {0}
    for _ in range(3):
        await broker.produce(5, GROWN)
    partition = broker.node.replicas.hosted(P5)
    assert partition is not None
    partition.log.delete_records_before(41)
    assert (await fetched(broker, 39)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await offsets(broker, 41) == [41, 42]


async def test_epochs_of_the_old_log_end_where_the_recreated_log_begins(broker: Broker) -> None:
    """When a consumer validates its position in a higher leader epoch, no truncation is reported (KIP-320)."""
    assert await broker.lead(created_again(broker)) == {0}
    assert await epoch_end(broker, 1) == (1, BASE)
    assert await epoch_end(broker, 2) == (2, BASE)
    await broker.produce(5, GROWN)
    assert await epoch_end(broker, 1) == (1, BASE)
    assert await epoch_end(broker, 2) == (2, BASE + 1)


async def test_a_recreated_follower_begins_at_the_old_end_too_and_knows_the_ends_of_epochs(broker: Broker) -> None:
    """The first epoch has no records, so the log alone does not show this epoch."""
    follows = created_again(broker)
    follows.leader, follows.isr, follows.replicas = 2, [2, BROKER_ID], [2, BROKER_ID]
    assert await broker.lead(follows) == {0}
    partition = broker.node.replicas.hosted(P5)
    assert partition is not None
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (BASE, BASE)
    assert await broker.lead(created_again(broker, epoch=3)) == {0}
    assert [await epoch_end(broker, epoch) for epoch in (1, 2, 3)] == [(1, BASE), (2, BASE), (3, BASE)]
    assert (await broker.produce(5, GROWN)).base_offset == BASE
    assert await epoch_end(broker, 2) == (2, BASE)
    assert await offsets(broker, 12) == [BASE]


@pytest.mark.parametrize("emptied", [False, True], ids=["", "disk-emptied"])
@pytest.mark.parametrize("records", [0, 2])
async def test_a_recreated_log_begins_at_the_old_end_after_a_restart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int, emptied: bool
) -> None:
    zk = FakeZk()
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        assert await broker.lead(created_again(broker)) == {0}
        for _ in range(records):
            await broker.produce(5, GROWN)
    if emptied:
        shutil.rmtree(tmp_path / "t-5")
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        assert await broker.lead(created_again(broker, epoch=3)) == {0}
        assert await listed(broker, -2) == BASE
        assert await offsets(broker, 7) == ([] if emptied else list(range(BASE, BASE + records)))
        assert (await broker.produce(5, GROWN)).base_offset == BASE + (0 if emptied else records)


async def test_a_recreated_log_whose_segment_is_lost_in_a_crash_begins_at_the_old_end_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zk = FakeZk()
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        assert await broker.lead(created_again(broker)) == {0}
    for file in (tmp_path / "t-5").glob("000*"):
        file.unlink()
    (tmp_path / "log-start-offset-checkpoint").unlink(missing_ok=True)
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        assert await broker.lead(created_again(broker, epoch=3)) == {0}
        assert (await broker.produce(5, GROWN)).base_offset == BASE


async def test_a_log_with_records_is_kept_whatever_base_offset_the_request_names(broker: Broker) -> None:
    assert await broker.lead(created_again(broker, base=0)) == {0}
    await broker.produce(5, GROWN)
    assert await broker.lead(created_again(broker, epoch=3)) == {0}
    assert await offsets(broker, 0) == [0]


async def test_a_deleted_replica_reports_its_end_also_when_it_is_asked_again(broker: Broker) -> None:
    """The end includes transaction markers. The first response may be lost when the controller dies (KIP-570)."""
    await broker.has(GROWN, 5, epoch=1)
    await broker.produce(5, GROWN)
    partition = broker.node.replicas.hosted(P5)
    assert partition is not None
    marker = build_control_batch(CONTROL_COMMIT, 9, 0, 1, 1_000)
    partition.append(marker, all_in_sync=False, origin=AppendOrigin.COORDINATOR)
    ends = []
    for _ in range(2):
        assert await broker.stop(5, leader_epoch=1, incarnation=105) == 0
        ends.append(broker.stopped_at)
    assert await broker.stop(5, leader_epoch=1, incarnation=77) == 0
    assert (ends, broker.stopped_at) == ([2, 2], -1)
