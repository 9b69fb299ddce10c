"""A request with a made-up controller epoch or broker epoch, sent by anyone, does not shut out the real controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from anabranch.broker.link.confirmed_epochs import SharedRead
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrPartitionState, LeaderAndIsrRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.runtime.channel import Channel
from sim.zk import FakeSession
from tests.support.broker.broker_harness import BROKER_ID, DEADLINE_S, OneBroker, one_broker

pytestmark = pytest.mark.trio
HIGHEST = 2**31 - 1
KINDS = (LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest)
STALE_CONTROLLER, STALE_BROKER = ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH


def led(leader_epoch: int) -> LeaderAndIsrPartitionState:
    return LeaderAndIsrPartitionState(
        leader=BROKER_ID, leader_epoch=leader_epoch, isr=[BROKER_ID], replicas=[BROKER_ID]
    )


async def check_obeys(broker: OneBroker, topic_id: Any, leader_epoch: int) -> None:
    """The controller in office may change the role of ``t-0``, describe the topic and stop replicas."""
    answer = await broker.leader_and_isr("t", topic_id, [led(leader_epoch)])
    assert [error.error_code for topic in answer.topics for error in topic.partition_errors] == [ErrorCode.NONE]
    assert (await broker.update_metadata("t", topic_id, 1, leader_epoch=leader_epoch)).error_code == ErrorCode.NONE
    stopped = await broker.stop_replica("no-topic", 0, leader_epoch=0, delete=False)
    assert stopped.error_code == ErrorCode.NONE


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_made_up_epoch_is_refused_and_the_controller_is_obeyed(tmp_path: Path, kind: Any) -> None:
    async with one_broker(tmp_path) as broker:
        topic_id = await broker.create_topic("t")
        with structlog.testing.capture_logs() as logs:
            for controller_epoch, broker_epoch, code in (
                (HIGHEST, -1, STALE_CONTROLLER),
                (broker.controller_epoch + 1, -1, STALE_CONTROLLER),
                (broker.controller_epoch, 2**62, STALE_BROKER),
            ):
                made_up = kind(controller_id=7, controller_epoch=controller_epoch, broker_epoch=broker_epoch)
                assert (await broker.request(made_up)).error_code == code
        assert [log["stored"] for log in logs if log["event"] == "controller.not_confirmed"] == [
            broker.controller_epoch
        ]
        await check_obeys(broker, topic_id, leader_epoch=1)
        broker.controller_epoch += 1
        await check_obeys(broker, topic_id, leader_epoch=2)


async def test_a_newer_controller_waits_while_zookeeper_cannot_be_asked_and_the_known_one_does_not(
    tmp_path: Path,
) -> None:
    async with (
        one_broker(tmp_path) as broker,
        Channel.open(broker.env.network, broker.host, broker.port, client_id="next") as following,
    ):
        topic_id = await broker.create_topic("t")
        session = broker.env.zk
        assert isinstance(session, FakeSession)
        session.disconnect(server_down=True)
        answers: list[Any] = []

        async def ask(kind: Any) -> None:
            request = kind(controller_id=7, controller_epoch=broker.controller_epoch + 1)
            answers.append(await following.request(request, timeout_s=DEADLINE_S))

        async with trio.open_nursery() as nursery:
            for kind in KINDS:
                nursery.start_soon(ask, kind)
            await check_obeys(broker, topic_id, leader_epoch=1)
            assert answers == []
            broker.zk.tree._node("/controller_epoch").data = b"%d" % (broker.controller_epoch + 1)
            session.reconnect()
        assert [answer.error_code for answer in answers] == [ErrorCode.NONE] * 3
        assert (await broker.leader_and_isr("t", topic_id, [led(2)])).error_code == STALE_CONTROLLER


async def test_many_callers_share_a_read_that_begins_after_their_calls() -> None:
    begun: list[int] = []
    may_end = trio.Event()
    value = 0

    async def read() -> int:
        begun.append(value)
        found = value
        await may_end.wait()
        return found

    shared = SharedRead(read)
    found: list[int] = []

    async def call() -> None:
        found.append(await shared())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        value = 1
        for _ in range(50):
            nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        may_end.set()
    assert (begun, sorted(found)) == ([0, 1], [0] + [1] * 50)
