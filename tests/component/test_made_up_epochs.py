"""A request with a made-up controller epoch or broker epoch, sent by anyone, does not shut out the real controller."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from anabranch.broker.link.confirmed_epochs import MOST_WAITING, SharedRead, WaitingOrders
from anabranch.broker.net import server
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.framing import RequestHeader, encode_request
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrPartitionState, LeaderAndIsrRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.generated.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from anabranch.runtime.channel import Channel
from sim.zk import FakeSession
from tests.support.broker.broker_harness import BROKER_ID, DEADLINE_S, OneBroker, closes, one_broker

pytestmark = pytest.mark.trio
HIGHEST = 2**31 - 1
KINDS = (LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest)
STALE_CONTROLLER, STALE_BROKER = ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH


def led(leader_epoch: int) -> LeaderAndIsrPartitionState:
    return LeaderAndIsrPartitionState(
        leader=BROKER_ID, leader_epoch=leader_epoch, isr=[BROKER_ID], replicas=[BROKER_ID]
    )


def session_of(broker: OneBroker) -> FakeSession:
    assert isinstance(broker.env.zk, FakeSession)
    return broker.env.zk


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
        session = session_of(broker)
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


class Asked:
    """Every request that asked to wait for ZooKeeper, and whether it was admitted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        results, self._results = trio.open_memory_channel[bool](1_000)
        self.waiting: WaitingOrders | None = None
        admit = WaitingOrders.admit

        def noted(waiting: WaitingOrders) -> bool:
            self.waiting = waiting
            is_admitted = admit(waiting)
            results.send_nowait(is_admitted)
            return is_admitted

        monkeypatch.setattr(WaitingOrders, "admit", noted)

    async def next(self) -> bool:
        with trio.fail_after(DEADLINE_S):
            return await self._results.receive()

    @property
    def not_expected(self) -> int:
        return self._results.statistics().current_buffer_used

    async def until_none_waits(self) -> None:
        assert self.waiting is not None
        with trio.fail_after(DEADLINE_S):
            while self.waiting._count:
                await trio.sleep(0.01)  # pause: between two looks


def described(controller_epoch: int, partitions: int) -> UpdateMetadataRequest:
    states = [
        UpdateMetadataPartitionState(
            partition_index=index,
            controller_epoch=controller_epoch,
            leader=BROKER_ID,
            isr=[BROKER_ID],
            replicas=[BROKER_ID],
        )
        for index in range(partitions)
    ]
    topic = UpdateMetadataTopicState(topic_name="described", partition_states=states)
    return UpdateMetadataRequest(controller_id=7, controller_epoch=controller_epoch, topic_states=[topic])


def framed(request: UpdateMetadataRequest) -> bytes:
    header = RequestHeader(request.API_KEY, API[ApiKey.UPDATE_METADATA].max_version, 1, "anyone")
    return b"".join(bytes(part) for part in encode_request(header, request))  # type: ignore[arg-type]


async def test_large_made_up_requests_take_no_room_from_the_known_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_broker(tmp_path, {"decoded.requests.max.bytes": "1000000"}) as broker:
        await broker.create_topic("t")
        asked = Asked(monkeypatch)
        session_of(broker).disconnect(server_down=True)
        made_up = framed(described(HIGHEST, 3_000))
        async with await broker.raw() as first, await broker.raw() as second:
            await first.send_all(made_up)
            assert await asked.next()
            assert (await broker.request(described(broker.controller_epoch, 3_000))).error_code == ErrorCode.NONE
            await second.send_all(made_up)
            assert not await asked.next(), "they have bounded memory"
            assert await closes(second)


async def test_requests_that_wait_for_zookeeper_are_bounded_and_end_with_their_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_SWEEP_S", 0.05)
    made_up = framed(described(HIGHEST, 1))
    async with one_broker(tmp_path) as broker, AsyncExitStack() as clients, trio.open_nursery() as nursery:
        topic_id = await broker.create_topic("t")
        asked = Asked(monkeypatch)
        session_of(broker).disconnect(server_down=True)
        for _ in range(MOST_WAITING):
            client = await clients.enter_async_context(await broker.raw())
            await client.send_all(made_up * 3)
            assert await asked.next()
        async with await broker.raw() as late:
            with structlog.testing.capture_logs() as logs:
                await late.send_all(made_up)
                assert not await asked.next()
                assert await closes(late)
        assert ["not confirmed" in log["reason"] for log in logs if log["event"] == "connection.rejected"] == [True]
        await check_obeys(broker, topic_id, leader_epoch=1)
        assert asked.not_expected == 0, "a connection has one that waits"

        await clients.aclose()
        await asked.until_none_waits()
        next_epoch, answers = broker.controller_epoch + 1, []

        async def follow() -> None:
            async with Channel.open(broker.env.network, broker.host, broker.port, client_id="next") as following:
                answers.append(await following.request(described(next_epoch, 1), timeout_s=DEADLINE_S))
            nursery.cancel_scope.cancel()

        nursery.start_soon(follow)
        assert await asked.next()
        broker.controller_epoch = next_epoch
        session_of(broker).reconnect()
        await trio.sleep_forever()
    assert [answer.error_code for answer in answers] == [ErrorCode.NONE]


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

    async def call(wanted: int) -> None:
        found.append(await shared(wanted))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, 0)
        await trio.testing.wait_all_tasks_blocked()
        value = 1
        for _ in range(50):
            nursery.start_soon(call, 1)
        await trio.testing.wait_all_tasks_blocked()
        may_end.set()
    assert (begun, sorted(found)) == ([0, 1], [0] + [1] * 50)


async def test_a_read_that_finds_the_number_a_caller_wants_is_enough_for_it() -> None:
    begun: list[int] = []
    may_end = trio.Event()

    async def read() -> int:
        begun.append(7)
        await may_end.wait()
        return 7

    shared = SharedRead(read)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shared, 7)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(shared, 7)
        await trio.testing.wait_all_tasks_blocked()
        may_end.set()
    assert begun == [7]
