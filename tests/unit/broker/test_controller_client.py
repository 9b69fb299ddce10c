"""A request to the controller is sent again only when the controller moved."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from anabranch.broker.controller_client import ControllerClient
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.framing import encode_response
from anabranch.protocol.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from anabranch.runtime.env import Env
from anabranch.runtime.sim_clock import SimClock
from anabranch.runtime.sim_network import SimFabric
from anabranch.runtime.sim_zk import FakeZk
from anabranch.zk_schemas.controller import ControllerZnode

TIMEOUT_S = 30.0


class Controller:
    """Accepts and counts requests, and answers each request on command."""

    def __init__(self, fabric: SimFabric, name: str) -> None:
        self._network = fabric.node(name)
        self.may_answer = trio.Event()
        self.asked = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listener = await self._network.listen("0.0.0.0", 1)
        task_status.started()
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._serve, await listener.accept())

    async def _serve(self, stream: Any) -> None:
        buffer = memoryview(bytearray(1_000))
        with suppress(OSError):
            while length := await stream.receive_into(buffer):
                assert length == 4 + int.from_bytes(buffer[:4], "big"), "one whole request"
                self.asked += 1
                correlation_id = int.from_bytes(buffer[8:12], "big")
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
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        answers.append(await client.request(request, 1, TIMEOUT_S, lambda _: False))

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
