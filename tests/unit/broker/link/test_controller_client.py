"""Requests to the controller: when one is sent again, and when its connection counts as dead."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from anabranch.broker.link.controller_client import SILENCE_S, ControllerClient, backoff_s
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.framing import encode_response
from anabranch.protocol.generated.api_versions import ApiVersionsResponse
from anabranch.protocol.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from anabranch.runtime.env import Env
from anabranch.zk_schemas.controller import ControllerZnode
from sim.clock import SimClock
from sim.network import SimFabric
from sim.zk import FakeZk

TIMEOUT_S = 30.0
REQUEST = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


class Controller:
    """Accepts and counts requests, and answers each request on command."""

    def __init__(self, fabric: SimFabric, name: str) -> None:
        self._network = fabric.node(name)
        self.may_answer = trio.Event()
        self.asked = 0
        self.connections = 0
        self.is_gone = False
        """Whether connections made now go silent, as behind a firewall that forgot them."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listener = await self._network.listen("0.0.0.0", 1)
        task_status.started()
        async with trio.open_nursery() as nursery:
            while True:
                stream = await listener.accept()
                self.connections += 1
                nursery.start_soon(self._serve, stream, nursery)

    async def _serve(self, stream: Any, nursery: trio.Nursery) -> None:
        """Answer each request when it is done; ApiVersions at once, as a controller does."""
        is_gone, buffer = self.is_gone, memoryview(bytearray(1_000))
        with suppress(OSError):
            while length := await stream.receive_into(buffer):
                assert length == 4 + int.from_bytes(buffer[:4], "big"), "one whole request"
                correlation_id = int.from_bytes(buffer[8:12], "big")
                if is_gone:
                    continue
                if int.from_bytes(buffer[4:6], "big") == ApiKey.API_VERSIONS:
                    await stream.send(encode_response(ApiKey.API_VERSIONS, 0, correlation_id, ApiVersionsResponse()))
                else:
                    self.asked += 1
                    nursery.start_soon(self._answer, stream, correlation_id)

    async def _answer(self, stream: Any, correlation_id: int) -> None:
        with suppress(OSError):
            await self.may_answer.wait()
            answer = HeartbeatResponse(throttle_time_ms=self.asked)
            await stream.send(encode_response(ApiKey.HEARTBEAT, 1, correlation_id, answer))


def znode(host: str, elected_ms: int) -> bytes:
    return ControllerZnode(controller_id=1, host=host, port=1, timestamp_ms=elected_ms).encode()


@pytest.mark.trio
@pytest.mark.parametrize(("host", "asked"), [("first", (1, 0)), ("second", (1, 1))])
async def test_a_request_is_sent_again_only_when_another_controller_is_elected(
    host: str, asked: tuple[int, int], autojump_clock: MockClock
) -> None:
    """A request is not sent again when the controller that received it is elected again.

    The second request could find the effect of the first, such as a topic that already exists.
    """
    fabric, session = SimFabric(random.Random(1), delay_s=lambda: 0.001), FakeZk().session()
    first, second = Controller(fabric, "first"), Controller(fabric, "second")
    second.may_answer.set()
    env = Env(SimClock(), fabric.node("b"), random.Random(1), zk=session)
    client = ControllerClient(env, session, "broker-1")
    await session.create(ControllerZnode.PATH, znode("first", 1))
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await client.request(REQUEST, 1, TIMEOUT_S, lambda _: False))

    async with trio.open_nursery() as nursery:
        for controller in (first, second):
            await nursery.start(controller.run)
        await nursery.start(client.run)
        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            while not first.asked:
                await trio.sleep(0.01)  # virtual time: until the request has arrived
            await session.set(ControllerZnode.PATH, znode(host, 2))
            await wait_all_tasks_blocked()
            assert client.address is not None and client.address.timestamp_ms == 2
            first.may_answer.set()
        assert (first.asked, second.asked) == asked
        assert len(answers) == 1
        nursery.cancel_scope.cancel()


def test_the_pauses_between_tries_double_up_to_two_seconds() -> None:
    assert [backoff_s(failures) for failures in range(1, 8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert backoff_s(10**6) == 2.0


@pytest.mark.trio
async def test_a_refused_request_is_sent_less_and_less_often_until_another_controller_is_elected(
    autojump_clock: MockClock,
) -> None:
    fabric, session = SimFabric(random.Random(1), delay_s=lambda: 0.001), FakeZk().session()
    first, second = Controller(fabric, "first"), Controller(fabric, "second")
    for controller in (first, second):
        controller.may_answer.set()
    client = ControllerClient(Env(SimClock(), fabric.node("b"), random.Random(1), zk=session), session, "broker-1")
    await session.create(ControllerZnode.PATH, znode("first", 1))
    async with trio.open_nursery() as nursery:
        for controller in (first, second):
            await nursery.start(controller.run)
        await nursery.start(client.run)
        nursery.start_soon(suppressed, client.request, REQUEST, 1, TIMEOUT_S, lambda _: True)
        await trio.sleep(20)  # virtual time: the controller refuses again and again
        assert 10 <= first.asked <= 15
        await session.set(ControllerZnode.PATH, znode("second", 2))
        await trio.sleep(0.5)  # virtual time: three tries
        assert second.asked == 3, "the pauses are short again"
        nursery.cancel_scope.cancel()


async def suppressed(request: Any, *arguments: Any) -> None:
    with suppress(KafkaError):
        await request(*arguments)


@pytest.mark.trio
async def test_an_attempt_to_connect_ends_when_another_controller_is_elected(autojump_clock: MockClock) -> None:
    """The machine of the first controller lost its power, so nothing refuses the connection."""
    fabric, session = SimFabric(random.Random(1), delay_s=lambda: 0.001), FakeZk().session()
    second = Controller(fabric, "second")
    second.may_answer.set()
    client = ControllerClient(Env(SimClock(), fabric.node("b"), random.Random(1), zk=session), session, "broker-1")
    await session.create(ControllerZnode.PATH, znode("first", 1))
    fabric.node("first")
    fabric.cut("b", "first")
    async with trio.open_nursery() as nursery:
        await nursery.start(second.run)
        await nursery.start(client.run)
        async with trio.open_nursery() as asking:
            for _ in range(2):
                asking.start_soon(client.request, REQUEST, 1, TIMEOUT_S, lambda _: False)
            await wait_all_tasks_blocked()
            await session.set(ControllerZnode.PATH, znode("second", 2))
        assert (second.connections, second.asked) == (1, 2)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def one_controller() -> AsyncIterator[tuple[Controller, ControllerClient]]:
    fabric, session = SimFabric(random.Random(1), delay_s=lambda: 0.001), FakeZk().session()
    controller = Controller(fabric, "first")
    client = ControllerClient(Env(SimClock(), fabric.node("b"), random.Random(1), zk=session), session, "broker-1")
    await session.create(ControllerZnode.PATH, znode("first", 1))
    async with trio.open_nursery() as nursery:
        await nursery.start(controller.run)
        await nursery.start(client.run)
        await wait_all_tasks_blocked()
        yield controller, client
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_dead_connection_is_replaced_long_before_the_request_times_out(autojump_clock: MockClock) -> None:
    async with one_controller() as (controller, client):
        controller.may_answer.set()
        controller.is_gone = True
        with trio.move_on_after(0.1):
            await client.request(REQUEST, 1, TIMEOUT_S, lambda _: False)
        controller.is_gone = False
        assert controller.connections == 1
        began = trio.current_time()
        await client.request(REQUEST, 1, TIMEOUT_S, lambda _: False)
        assert controller.connections == 2
        assert trio.current_time() - began <= 2 * SILENCE_S + 1
        assert client.silence() is None


@pytest.mark.trio
async def test_a_request_that_takes_long_keeps_a_connection_that_answers(autojump_clock: MockClock) -> None:
    async with one_controller() as (controller, client):
        async with trio.open_nursery() as asking:
            asking.start_soon(client.request, REQUEST, 1, TIMEOUT_S, lambda _: False)
            await trio.sleep(TIMEOUT_S - 1)  # virtual time: the controller stays silent
            assert client.silence() is None
            controller.may_answer.set()
        assert (controller.connections, controller.asked) == (1, 1)


@pytest.mark.trio
async def test_silence_is_noticed_without_a_request_and_ends_with_an_answer(autojump_clock: MockClock) -> None:
    async with one_controller() as (controller, client):
        controller.is_gone = True
        assert client.silence() is None  # starts a check
        await trio.sleep(SILENCE_S + 1)  # virtual time: the controller stays silent
        assert client.silence() == "the active controller first:1 has not answered for 6 s"
        controller.is_gone = False
        await trio.sleep(2 * SILENCE_S)  # virtual time: the check times out
        client.silence()
        await trio.sleep(SILENCE_S)  # virtual time: the next check is answered
        assert client.silence() is None


@pytest.mark.trio
async def test_a_broker_without_a_controller_reports_it(autojump_clock: MockClock) -> None:
    session = FakeZk().session()
    env = Env(SimClock(), SimFabric(random.Random(1), delay_s=lambda: 0.001).node("b"), random.Random(1), zk=session)
    client = ControllerClient(env, session, "broker-1")
    assert client.silence() == "no controller is active"
    with pytest.raises(KafkaError, match="no active controller is known"):
        await client.request(REQUEST, 1, 1.0, lambda _: False)
