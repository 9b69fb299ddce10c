"""The HTTP listener for operators: its responses, and its limits against hostile clients."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from anabranch.runtime.background import Background
from anabranch.runtime.env import Listener, Network
from anabranch.runtime.http_limits import HttpLimits
from anabranch.runtime.http_listener import METRICS, HttpAnswer, HttpListener, json_answer, metrics_handler
from anabranch.runtime.metric_rows import counter, gauge
from anabranch.runtime.metrics import Counter, Gauge, Metrics
from anabranch.runtime.real_trio import TrioNetwork

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
pytestmark = pytest.mark.trio


def numbers() -> Metrics:
    refused = Counter(counter("anabranch_refused", "What was refused", ("topic",)))
    refused.add('a"b')
    metrics = Metrics(refused)
    metrics.gauges.append(Gauge(gauge("anabranch_closed", "Closed"), lambda: 3))
    return metrics


async def echo(query: str) -> HttpAnswer:
    return json_answer(503, {"query": query})


@asynccontextmanager
async def listening(
    host: str = "127.0.0.1", network: Network | None = None, limits: HttpLimits | None = None
) -> AsyncIterator[HttpListener]:
    handlers = {METRICS: metrics_handler(numbers()), "/echo": echo}
    listener = HttpListener(network or TrioNetwork(), f"{host}:0", handlers, Background(propagate_bugs=True), limits)
    await listener.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run)
        yield listener
        nursery.cancel_scope.cancel()


async def ask(listener: HttpListener, request: bytes, *, ends: bool = True) -> str:
    """Return all bytes until the listener closes the connection. With ``ends`` the client closes its sending side."""
    with trio.fail_after(20):
        async with await trio.open_tcp_stream("127.0.0.1", listener.port) as stream:
            await stream.send_all(request)
            if ends:
                await stream.send_eof()
            return b"".join([part async for part in stream]).decode()


async def test_metrics_are_served_in_the_prometheus_text_format() -> None:
    async with listening() as listener:
        head, _, body = (await ask(listener, GET)).partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 200") and f"Content-Length: {len(body)}" in head
        assert "text/plain; version=0.0.4" in head
        assert 'anabranch_refused_total{topic="a\\"b"} 1.0' in body
        assert "anabranch_closed 3.0" in body
        head, _, body = (await ask(listener, GET.replace(b"GET", b"HEAD"))).partition("\r\n\r\n")
        assert "200" in head and body == ""


async def test_a_connection_is_kept_and_pipelined_requests_are_answered_in_order() -> None:
    async with listening() as listener:
        first = b"GET /echo?1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        response = await ask(listener, first + first.replace(b"1 HTTP", b"2 HTTP") + GET)
        assert response.count("HTTP/1.1 ") == 3
        one, two, three = (response.index(each) for each in ('"query": "1"', '"query": "2"', "anabranch_closed"))
        assert one < two < three
        body = response.split("\r\n\r\n")[1].partition("HTTP/1.1")[0]
        assert json.loads(body) == {"query": "1"}


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /metrics/../echo HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n12345", 405),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),  # HTTP/1.1 without a host
        (b"\x00\x00\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /" + b"x" * 20_000, 431),  # an endless line
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 4000, 431),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example:80\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:80.evil.example\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9404\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\nHost: [::1]:9404\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\nHost: [::1]\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n", 200),
    ],
)
async def test_each_request_gets_its_status_and_later_ones_are_served(request_bytes: bytes, status: int) -> None:
    async with listening() as listener:
        assert (await ask(listener, request_bytes)).startswith(f"HTTP/1.1 {status} ")
        assert (await ask(listener, GET)).startswith("HTTP/1.1 200 ")


async def test_a_request_within_a_body_is_not_served() -> None:
    async with listening() as listener:
        smuggled = b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n"
        head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(smuggled)
        response = await ask(listener, head + smuggled, ends=False)
        assert response.count("HTTP/1.1 ") == 1 and "Connection: close" in response


async def test_a_listener_that_is_not_local_answers_to_any_name() -> None:
    """Prometheus connects by the name of the container."""
    async with listening("0.0.0.0") as listener:
        request = b"GET /metrics HTTP/1.1\r\nHost: broker-1:9404\r\n\r\n"
        assert (await ask(listener, request)).startswith("HTTP/1.1 200 ")


@pytest.mark.parametrize("name_bytes", [1000, 3000])
async def test_the_head_of_a_request_has_a_limit_that_can_be_set(name_bytes: int) -> None:
    request = b"GET /echo HTTP/1.1\r\nHost: localhost\r\na: %s\r\n\r\n" % (b"b" * name_bytes)
    async with listening(limits=HttpLimits(head_bytes=2048)) as listener:
        assert (await ask(listener, request)).startswith("HTTP/1.1 431 ") is (name_bytes > 2048)
        assert (await ask(listener, GET)).startswith("HTTP/1.1 200 ")


async def test_a_connection_is_closed_after_its_last_request() -> None:
    async with listening(limits=HttpLimits(requests=2)) as listener:
        response = await ask(listener, GET * 5, ends=False)
        assert response.count("HTTP/1.1 200 ") == 2 and response.count("Connection: close") == 1


async def test_silent_connections_are_closed_to_make_room_for_new_ones() -> None:
    async with listening(limits=HttpLimits(connections=3)) as listener:
        quiet = [await trio.open_tcp_stream("127.0.0.1", listener.port) for _ in range(6)]
        assert (await ask(listener, GET)).startswith("HTTP/1.1 200 ")
        for stream in quiet:
            await stream.aclose()


class _Slow:
    """A client that sends one byte each second, without end."""

    peer = "10.0.0.1:1"

    def __init__(self) -> None:
        self.closed = trio.Event()
        self.received = 0
        self.sent = b""

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.sleep(1)  # virtual time: one byte a second
        buffer[:1] = b"G"
        self.received += 1
        return 1

    async def send(self, parts: list[bytes]) -> None:
        self.sent += b"".join(parts)
        await trio.sleep_forever()

    def close(self) -> None:
        self.closed.set()


class _Reading(_Slow):
    """Sends a request at once, and never reads the response."""

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        buffer[: len(GET)] = GET
        self.received += 1
        return len(GET)


class _OneStream:
    """A network with one incoming connection."""

    host, port = "127.0.0.1", 1

    def __init__(self, stream: _Slow) -> None:
        self._streams = [stream]

    async def listen(self, host: str, port: int, **_options: int) -> Listener:
        return self  # type: ignore[return-value]

    async def accept(self) -> _Slow:
        if not self._streams:
            await trio.sleep_forever()
        return self._streams.pop()

    def close(self) -> None:
        pass


class _Quiet(_Slow):
    """Sends one request, reads the response, and sends no more."""

    async def receive_into(self, buffer: memoryview) -> int:
        if self.received:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        buffer[: len(GET)] = GET
        self.received += 1
        return len(GET)

    async def send(self, parts: list[bytes]) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("client", "at_least_s", "at_most_s"),
    [(_Slow, 3, 6), (_Reading, 3, 6), (_Quiet, 7, 10)],
    ids=["slow to ask", "slow to read", "quiet after a request"],
)
async def test_a_slow_or_silent_client_is_disconnected(
    client: type[_Slow], at_least_s: float, at_most_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """The times ``at_least_s`` and ``at_most_s`` are virtual."""
    began, stream = trio.current_time(), client()
    limits = HttpLimits(timeout_s=3, idle_timeout_s=7)
    async with listening(network=_OneStream(stream), limits=limits):  # type: ignore[arg-type]
        await stream.closed.wait()
    assert at_least_s <= trio.current_time() - began <= at_most_s
    assert stream.received < 10
