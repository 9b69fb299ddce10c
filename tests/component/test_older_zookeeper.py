"""A broker refuses a partition whose log is newer than the znode, and says so; a late request is only refused."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from anabranch.health import check_controller
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrPartitionState
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.controller import encode_controller_epoch
from anabranch.zk_schemas.partition_state import PartitionLayout, PartitionState
from tests.support.broker.broker_harness import BROKER_ID, DEADLINE_S, OneBroker, one_broker

pytestmark = pytest.mark.trio
ID = uuid.UUID(int=3)
PATH = paths.partition_state("t", 0)
NONE, STALE, FENCED = ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH


class Restored:
    """A broker and the state znode of partition ``t-0``."""

    def __init__(self, broker: OneBroker) -> None:
        self.broker = broker
        self.tree = broker.zk.tree

    def store(self, leader_epoch: int, layout_version: int = 0) -> None:
        """Write the state as a controller or an operator does."""
        layout = PartitionLayout(2, layout_version) if layout_version else None
        data = PartitionState(5, BROKER_ID, leader_epoch, [BROKER_ID], layout=layout).encode()
        if self.tree.find(PATH) is None:
            self.tree.create(PATH, data, 0, sequence=False, make_parents=True)
        else:
            self.tree._node(PATH).data = data

    async def ask(self, leader_epoch: int, layout_version: int = 0, incarnation: int = -1) -> tuple[int, str | None]:
        """Make the broker lead the partition by LeaderAndIsr. Returns error and reason."""
        state = LeaderAndIsrPartitionState(
            controller_epoch=5,
            leader=BROKER_ID,
            leader_epoch=leader_epoch,
            isr=[BROKER_ID],
            replicas=[BROKER_ID],
            is_new=True,
            initial_partition_count=1,
            undeleted_partition_count=2 if layout_version else 1,
            layout_version=layout_version,
            incarnation=self.tree.read(PATH).czxid if incarnation < 0 else incarnation,
        )
        answer = await self.broker.leader_and_isr("t", ID, [state])
        if answer.error_code:
            return answer.error_code, None
        ((error,),) = [topic.partition_errors for topic in answer.topics]
        return error.error_code, error.error_message

    async def write(self) -> None:
        """Write a record by layout version 1: an empty log keeps no leader epoch when the broker stops."""
        data = TopicProduceData(
            name="t",
            partition_data=[PartitionProduceData(index=0, records=build_batch([(b"k", b"v", [], 1)]))],
            undeleted_partition_count=2,
            layout_version=1,
        )
        request = ProduceRequest(transactional_id=None, acks=1, timeout_ms=1000, topic_data=[data])
        answer = await self.broker.request(request)
        assert answer.responses[0].partition_responses[0].error_code == NONE

    async def problems(self) -> list[str]:
        """The lines of the broker's health about ZooKeeper."""
        lines = await trio.to_thread.run_sync(check_controller, self.broker.host, self.broker.port, DEADLINE_S)
        return [line for line in lines if "older" in line]


@asynccontextmanager
async def restored(tmp_path: Path) -> AsyncIterator[Restored]:
    async with one_broker(tmp_path) as broker:
        yield Restored(broker)


@pytest.mark.parametrize(
    ("stored", "how"),
    [((3, 0), "leader epoch 5, and ZooKeeper has 3"), ((9, 0), "layout version 1, and ZooKeeper has 0")],
)
@pytest.mark.parametrize("restarts", [False, True])
async def test_an_older_znode_refuses_the_partition(
    tmp_path: Path, stored: tuple[int, int], how: str, restarts: bool
) -> None:
    async with restored(tmp_path) as found:
        found.store(5, 1)
        assert await found.ask(5, 1) == (NONE, None)
        await found.write()
        if not restarts:
            await _refused(found, stored, how)
            return
    async with one_broker(tmp_path, zk=found.broker.zk) as broker:
        await _refused(Restored(broker), stored, how)


async def _refused(found: Restored, stored: tuple[int, int], how: str) -> None:
    found.store(*stored)
    why = f"broker {BROKER_ID} has a newer log, of {how}; ZooKeeper's data are older than the log"
    with structlog.testing.capture_logs() as logs:
        assert await found.ask(*stored) == (FENCED, why)
        assert await found.ask(*stored) == (FENCED, why)
    assert [entry["reason"] for entry in logs if entry["event"] == "replica.newer_than_zookeeper"] == [why]
    assert await found.problems() == [f"zookeeper is older than log t-0: {why}"]
    answer: Any = await found.broker.stop_replica("t", 0, leader_epoch=3, delete=True)
    assert [error.error_code for error in answer.partition_errors] == [FENCED]
    found.store(9, 1)
    assert await found.ask(9, 1) == (NONE, None)
    assert await found.problems() == []


async def test_a_late_request_is_not_taken_for_older_data(tmp_path: Path) -> None:
    async with restored(tmp_path) as found:
        found.store(5)
        assert await found.ask(5) == (NONE, None)
        assert await found.ask(4) == (STALE, None)
        assert await found.problems() == []
        assert await found.ask(5) == (NONE, None)


async def test_a_log_of_a_topic_that_the_data_lack_is_not_deleted_for_a_new_topic(tmp_path: Path) -> None:
    async with restored(tmp_path) as found:
        found.store(5)
        old = found.tree.read(PATH).czxid
        assert await found.ask(5) == (NONE, None)
        for path in (PATH, paths.partition("t", 0)):
            found.tree._delete(path, -1)
        found.store(0)
        code, why = await found.ask(0)
        assert code == FENCED and why is not None and "of an earlier incarnation, and ZooKeeper has 0" in why
        assert found.tree.read(PATH).czxid > old
        found.store(6)
        assert await found.ask(6) == (NONE, None)  # as after a deletion that ZooKeeper knows


async def test_a_controller_epoch_that_went_back_is_named(tmp_path: Path) -> None:
    async with restored(tmp_path) as found:
        found.store(5)
        assert await found.ask(5) == (NONE, None)
        found.broker.controller_epoch = 4
        assert await found.ask(5) == (STALE, None)
        assert await found.problems() == []  # another controller is in office
        found.tree._node(paths.CONTROLLER_EPOCH).data = encode_controller_epoch(3)
        assert await found.ask(5) == (STALE, None)
        epoch = f"controllers had epoch 5, and {paths.CONTROLLER_EPOCH} is 3"
        assert await found.problems() == [f"zookeeper is older than this broker: {epoch}"]
        found.broker.controller_epoch = 6
        assert await found.ask(5) == (NONE, None)
        assert await found.problems() == []
