"""``metrics.listener``: the HTTP server for operators and Prometheus, with h11 as parser (ADR 39)."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import h11
import structlog
import trio
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from anabranch.protocol.addresses import host_of, split_address
from anabranch.runtime.accepting import accept_connections
from anabranch.runtime.background import Background
from anabranch.runtime.env import Listener, Network, Stream
from anabranch.runtime.http_limits import HttpLimits
from anabranch.runtime.metrics import Metrics

logger = structlog.get_logger(__name__)

METRICS = "/metrics"
LIVE = "/health/live"
READY = "/health/ready"
_LINGER_S = 1.0
_LINGER_BYTES = 256 << 10
"""After the last response, at most this many of the client's bytes are read, for at most ``_LINGER_S``."""
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"


class HttpAnswer(NamedTuple):
    """A response."""

    status: int
    content_type: str
    body: bytes


Handler = Callable[[str], Awaitable[HttpAnswer]]
"""Returns the response to a request with this query string."""


def metrics_handler(metrics: Metrics) -> Handler:
    """The handler that returns Prometheus' text; other tasks run between its pieces."""

    async def answer(_query: str) -> HttpAnswer:
        pieces = []
        for piece in metrics.render_in_steps():
            if piece is None:
                await trio.lowlevel.checkpoint()
            else:
                pieces.append(piece)
        return HttpAnswer(200, CONTENT_TYPE_PLAIN_0_0_4, b"".join(pieces))

    return answer


def json_answer(status: int, content: Any) -> HttpAnswer:
    return HttpAnswer(status, _JSON, json.dumps(content, indent=1).encode() + b"\n")


class HttpListener:
    """Serves ``handlers`` by path at ``address`` (``host:port``). Port 0: any free port; ``port`` is the bound one."""

    def __init__(
        self,
        network: Network,
        address: str,
        handlers: Mapping[str, Handler],
        background: Background | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        self._network = network
        self._limits = limits or HttpLimits()
        self._background = background or Background()
        self._host, self._wanted_port = split_address(address)
        self._handlers = dict(handlers)
        self._is_local = _is_loopback(self._host)
        self._listener: Listener | None = None
        self._open: dict[Stream, bool] = {}
        """The open connections, and whether each waits for its next request; the longest idle first."""

    @property
    def port(self) -> int:
        assert self._listener is not None
        return self._listener.port

    async def listen(self) -> None:
        """Bind. Raises ``OSError``."""
        self._listener = await self._network.listen(self._host, self._wanted_port)
        logger.info("metrics.listening", host=self._host, port=self.port)

    async def run(self) -> None:
        """Accept until cancelled."""
        assert self._listener is not None
        try:
            async with trio.open_nursery() as nursery:
                await accept_connections(
                    "metrics.listener",
                    self._listener,
                    self._background,
                    lambda stream: nursery.start_soon(self._serve, stream),
                )
        finally:
            self._listener.close()

    async def _serve(self, stream: Stream) -> None:
        if len(self._open) >= self._limits.connections and not self._close_idle():
            stream.close()
            return
        self._open[stream] = False
        try:
            await self._talk(stream)
        except OSError as error:
            logger.debug("metrics.connection_lost", reason=str(error))
        except Exception as error:  # a metric that cannot be computed must not end the process
            self._background.failed_once("metrics", "", error)
        finally:
            self._open.pop(stream, None)
            stream.close()

    def _close_idle(self) -> bool:
        """Close the connection that has waited longest for its next request. False when there is none."""
        for stream, is_idle in self._open.items():
            if is_idle:
                del self._open[stream]
                stream.close()
                return True
        return False

    async def _talk(self, stream: Stream) -> None:
        limits = self._limits
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
        with trio.CancelScope() as scope:
            for number in range(limits.requests):
                scope.deadline = trio.current_time() + (limits.idle_timeout_s if number else limits.timeout_s)
                if not await self._exchange(connection, stream, scope, is_last=number == limits.requests - 1):
                    return
                connection.start_next_cycle()

    async def _exchange(
        self, connection: h11.Connection, stream: Stream, scope: trio.CancelScope, *, is_last: bool
    ) -> bool:
        """Serve one request. True when another may follow."""
        try:
            request = await self._next_request(connection, stream, scope)
        except h11.RemoteProtocolError as error:
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                refusal = HttpAnswer(error.error_status_hint, _TEXT, f"not a valid request: {error}\n".encode())
                await _send(connection, stream, refusal, is_head=False, closes=True)
                await _read_out(stream)
            return False
        if request is None:
            return False
        answer = self._refusal(request)
        if answer is None:
            path, _, query = request.target.decode("latin-1").partition("?")
            answer = await self._handlers[path](query)
            scope.deadline = trio.current_time() + self._limits.timeout_s
        # A request's body is not read, so the start of the next request cannot be found.
        closes = is_last or answer.status in (421, 404, 405) or _has_body(request)
        await _send(connection, stream, answer, is_head=request.method == b"HEAD", closes=closes)
        if closes:
            await _read_out(stream)
        return not closes and connection.our_state is h11.DONE and connection.their_state is h11.DONE

    async def _next_request(
        self, connection: h11.Connection, stream: Stream, scope: trio.CancelScope
    ) -> h11.Request | None:
        """The head of the next request; None at the end of the stream. Raises ``h11.RemoteProtocolError``.

        The client has ``HttpLimits.timeout_s`` for the whole head, from its first byte on.
        """
        buffer = memoryview(bytearray(4096))
        is_first = True
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                if _head_bytes(event) > self._limits.head_bytes:  # h11 limits only heads that come in pieces
                    limit = f"its head is longer than {self._limits.head_bytes} bytes (metrics.http.max.head.bytes)"
                    raise h11.RemoteProtocolError(limit, error_status_hint=431)
                if not _has_body(event):
                    connection.next_event()  # the end of the request
                return event
            if event is not h11.NEED_DATA:
                return None
            self._note_idle(stream, is_first and connection.trailing_data[0] == b"")
            received = await stream.receive_into(buffer)
            self._note_idle(stream, False)
            if is_first:
                scope.deadline = min(scope.deadline, trio.current_time() + self._limits.timeout_s)
                is_first = False
            connection.receive_data(bytes(buffer[:received]))

    def _note_idle(self, stream: Stream, is_idle: bool) -> None:
        if stream in self._open:
            del self._open[stream]
            self._open[stream] = is_idle

    def _refusal(self, request: h11.Request) -> HttpAnswer | None:
        path = request.target.decode("latin-1").partition("?")[0]
        if not self._may_ask(request):
            return HttpAnswer(
                421, _TEXT, b"this listener is local: the Host header must be localhost or an IP address\n"
            )
        if path not in self._handlers:
            paths = ", ".join(sorted(self._handlers))
            return HttpAnswer(404, _TEXT, f"unknown path; the paths are {paths}\n".encode())
        if request.method not in (b"GET", b"HEAD"):
            return HttpAnswer(405, _TEXT, b"the method must be GET or HEAD\n")
        return None

    def _may_ask(self, request: h11.Request) -> bool:
        if not self._is_local:
            return True
        hosts = [value.decode("latin-1") for name, value in request.headers if name == b"host"]
        return all(_is_address_or_localhost(host) for host in hosts)


async def _send(connection: h11.Connection, stream: Stream, answer: HttpAnswer, *, is_head: bool, closes: bool) -> None:
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    if answer.status == 405:
        headers.append(("Allow", "GET, HEAD"))
    if closes:
        headers.append(("Connection", "close"))
    parts = [connection.send(h11.Response(status_code=answer.status, headers=headers))]
    if not is_head:
        parts.append(connection.send(h11.Data(data=answer.body)))
    parts.append(connection.send(h11.EndOfMessage()))
    await stream.send([part for part in parts if part])


async def _read_out(stream: Stream) -> None:
    """Read for a moment before closing: a close with unread bytes resets the connection and loses the response."""
    buffer = memoryview(bytearray(4096))
    with trio.move_on_after(_LINGER_S):
        for _ in range(_LINGER_BYTES // len(buffer)):
            if await stream.receive_into(buffer) == 0:
                return


def _head_bytes(request: h11.Request) -> int:
    """The size of a request's first line and headers."""
    first = len(request.method) + len(request.target) + len(b"  HTTP/1.1\r\n")
    return first + sum(len(name) + len(value) + len(b": \r\n") for name, value in request.headers)


def _has_body(request: h11.Request) -> bool:
    lengths = [value for name, value in request.headers if name == b"content-length"]
    return any(name == b"transfer-encoding" for name, _ in request.headers) or any(int(value) > 0 for value in lengths)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_address_or_localhost(host: str) -> bool:
    """Whether a ``Host`` header has an address or ``localhost``: no foreign DNS server can point these at this host."""
    name = host_of(host)
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
