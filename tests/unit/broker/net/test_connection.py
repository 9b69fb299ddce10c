"""Responses are sent whole and in the order of their requests, however few bytes the socket accepts at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from anabranch.broker.deferred import Deferred
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.net.connection import Connection
from anabranch.broker.net.dispatch import HANDLERS
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.framing import BufferPool, RequestHeader, encode_request, encode_response
from anabranch.protocol.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from anabranch.protocol.message_limits import ADMIN_APIS, RequestLimits
from anabranch.runtime.decoded_requests import DecodedRequests
from anabranch.runtime.env import Part
from anabranch.runtime.memory_budget import MemoryBudget
from sim.clock import SimClock

REQUESTS = 30


class Narrow:
    """A stream with all requests available. Each send accepts none, some or all of the bytes."""

    peer = "client:1"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._incoming = [request(number) for number in range(REQUESTS)]
        self._ended = trio.Event()
        self.sent = b""

    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self._incoming:
            await self._ended.wait()

    async def receive_into(self, buffer: memoryview) -> int:
        await self.wait_readable()
        count = self._rng.randint(1, len(self._incoming))
        data = b"".join(self._incoming[:count])
        del self._incoming[:count]
        buffer[: len(data)] = data
        return len(data)

    def has_ended(self) -> bool:
        return False

    def send_now(self, parts: Sequence[Part]) -> Sequence[Part]:
        data = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]
        taken = self._rng.choice([0, self._rng.randint(0, len(data)), len(data)])
        self.sent += data[:taken]
        return [data[taken:]] if taken < len(data) else ()

    async def send(self, parts: Sequence[Part]) -> None:
        rest = self.send_now(parts)
        while rest:
            await trio.lowlevel.checkpoint()
            rest = self.send_now(rest)

    def close(self) -> None:
        self._ended.set()


class Answers:
    """Answers requests at once, or later and in any order."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._open: list[tuple[Deferred[Any], HeartbeatResponse]] = []
        self.given = 0

    def handle(self, _ctx: object, _body: object) -> Any:
        response = HeartbeatResponse(throttle_time_ms=self.given)
        self.given += 1
        if self._rng.random() < 0.5:
            return response
        answer: Deferred[Any] = Deferred()
        self._open.append((answer, response))
        return answer

    async def fill(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            if self._open and self._rng.random() < 0.3:
                answer, response = self._open.pop(self._rng.randrange(len(self._open)))
                answer.fill(response)


def request(number: int) -> bytes:
    header = RequestHeader(ApiKey.HEARTBEAT, 1, number, "client")
    parts = encode_request(header, HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


def answers_to(count: int) -> bytes:
    responses = (HeartbeatResponse(throttle_time_ms=number) for number in range(count))
    encoded = (encode_response(ApiKey.HEARTBEAT, 1, number, response) for number, response in enumerate(responses))
    return b"".join(bytes(part) for parts in encoded for part in parts)  # type: ignore[arg-type]


async def serve(seed: int, passes: int) -> tuple[bytes, int]:
    """Return the bytes that a client received, and how many requests were served.

    A shutdown ends the last of ``passes`` passes of the scheduler.
    """
    rng = random.Random(seed)
    stream: Any = Narrow(rng)
    dispatcher: Any = Answers(rng)
    values = SimpleNamespace(max_retried_partitions_per_connection=10, socket_response_max_bytes=1 << 20)
    node: Any = SimpleNamespace(
        config=SimpleNamespace(values=values),
        decoded_requests=DecodedRequests(RequestLimits()),
        metrics=BrokerMetrics(),
        hosted=SimpleNamespace(fetch_sessions=SimpleNamespace(connection_ended=lambda owner: None)),
        env=SimpleNamespace(clock=SimClock()),
    )
    connection = Connection(node, dispatcher, MemoryBudget(-1), "PLAINTEXT", stream, BufferPool())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        nursery.start_soon(dispatcher.fill)
        for _ in range(passes):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    return stream.sent, dispatcher.given


@pytest.mark.trio
@pytest.mark.parametrize("seed", range(20))
async def test_responses_are_sent_whole_and_in_order(seed: int) -> None:
    sent, served = await serve(seed, passes=3_000)
    assert served == REQUESTS
    assert sent == answers_to(REQUESTS)


@pytest.mark.trio
@pytest.mark.parametrize("seed", range(6))
async def test_bytes_sent_before_a_shutdown_are_not_sent_again(seed: int) -> None:
    for passes in range(5, 80):
        sent, served = await serve(seed, passes)
        assert answers_to(served).startswith(sent)


def test_every_request_that_is_forwarded_is_bounded_in_size() -> None:
    """``admin.request.max.bytes`` refuses a request before it is decoded, here and at the controller."""
    forwarded = {key for key, handler in HANDLERS.items() if handler.__globals__.get("forward") is forward}
    assert len(forwarded) == 9 and forwarded <= ADMIN_APIS
