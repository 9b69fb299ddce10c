"""The cost of many partitions on a broker: what is idle does no work, and what changes costs once."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from anabranch.broker.stock_consumer_facts import StockConsumerFacts
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrPartitionState
from tests.support.broker.broker_harness import BROKER_ID, OneBroker, one_broker

pytestmark = pytest.mark.trio

COUNT = 50
TOPIC_ID = uuid.UUID(int=7)


async def lead(broker: OneBroker, leader_epoch: int, layout_version: int = 0) -> None:
    states = [
        LeaderAndIsrPartitionState(
            partition_index=index,
            controller_epoch=broker.controller_epoch,
            leader=BROKER_ID,
            leader_epoch=leader_epoch,
            isr=[BROKER_ID],
            replicas=[BROKER_ID],
            incarnation=index,
            initial_partition_count=COUNT,
            undeleted_partition_count=COUNT,
            layout_version=layout_version,
            ordered_delivery=1,
        )
        for index in range(COUNT)
    ]
    response = await broker.leader_and_isr("t", TOPIC_ID, states)
    assert {error.error_code for topic in response.topics for error in topic.partition_errors} == {0}


async def test_only_partitions_that_withhold_records_make_the_broker_list_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each list takes all partitions: one for each new leader would cost the square of their number."""
    woken = []
    original = StockConsumerFacts.wake

    def wake(facts: StockConsumerFacts) -> None:
        woken.append(facts)
        original(facts)

    monkeypatch.setattr(StockConsumerFacts, "wake", wake)
    async with one_broker(tmp_path, {"ordered.delivery.stock.consumers": "withhold"}) as broker:
        woken.clear()
        await lead(broker, 0)
        assert len(woken) == 0
        await lead(broker, 1, layout_version=1)
        assert len(woken) == COUNT


async def test_a_new_leader_without_records_writes_nothing(tmp_path: Path) -> None:
    """On ext4 each replaced file waits for the disk, so 10,000 new leaders would take more than 20 s."""
    async with one_broker(tmp_path) as broker:
        await lead(broker, 0)
        folders = [tmp_path / f"t-{index}" for index in range(COUNT)]
        created = {path: path.stat().st_mtime_ns for folder in folders for path in (folder, *folder.iterdir())}
        assert not any(path.name.endswith("checkpoint") for path in created)
        await lead(broker, 1)
        assert {path: path.stat().st_mtime_ns for path in created} == created
