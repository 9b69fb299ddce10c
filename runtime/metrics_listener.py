"""``metrics.listener``: a process's counters over HTTP, for Prometheus. One path, one method, no keep-alive."""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from anabranch.runtime.accepting import accept_connections
from anabranch.runtime.background import Background
from anabranch.runtime.env import Listener, Network, Stream

logger = structlog.get_logger(__name__)

PATH = "/metrics"
_MAX_REQUEST_BYTES = 8192
_MAX_CONNECTIONS = 16
_PATIENCE_S = 5.0
"""How long a scraper may take to ask, and to read the answer."""


class MetricsListener:
    """Serves what ``render`` returns. ``address`` is ``host:port``; port 0 is any free one, ``port`` says which."""

    def __init__(
        self, network: Network, address: str, render: Callable[[], bytes], background: Background | None = None
    ) -> None:
        self._network = network
        self._background = background or Background()
        self._host, _, port = address.rpartition(":")
        self._wanted_port = int(port)
        self._render = render
        self._listener: Listener | None = None
        self._places = trio.CapacityLimiter(_MAX_CONNECTIONS)

    @property
    def port(self) -> int:
        assert self._listener is not None
        return self._listener.port

    async def listen(self) -> None:
        """Bind. Raises ``OSError``."""
        self._listener = await self._network.listen(self._host.strip("[]"), self._wanted_port)
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
        try:
            async with self._places:
                with trio.move_on_after(_PATIENCE_S):
                    request = await _read_head(stream)
                    await stream.send([self._answer(request)])
        except OSError as error:
            logger.debug("metrics.connection_lost", reason=str(error))
        except Exception as error:  # a number that cannot be worked out must not end the process
            self._background.failed_once("metrics", "", error)
        finally:
            stream.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if not rest:
            return _response("400 Bad Request", b"not HTTP\n")
        if path != PATH:
            return _response("404 Not Found", f"only {PATH} is here\n".encode())
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"GET it\n")
        whole = _response("200 OK", self._render())
        return whole if method == "GET" else whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


async def _read_head(stream: Stream) -> bytes:
    """The bytes up to the empty line, what there is of them when the other side stops or sends too much."""
    head = bytearray()
    buffer = memoryview(bytearray(1024))
    while b"\r\n\r\n" not in head and len(head) < _MAX_REQUEST_BYTES:
        received = await stream.receive_into(buffer)
        if received == 0:
            break
        head += buffer[:received]
    return bytes(head)


def _response(status: str, body: bytes) -> bytes:
    head = f"HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
