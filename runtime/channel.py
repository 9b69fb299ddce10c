"""Outbound requests over one connection: pipelined, each with its own deadline, under trio and asyncio alike.

Between brokers and controllers, and for tools. Requests leave in the order of the calls; answers find their caller by
correlation id. A channel that failed stays failed: connect a new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar, Protocol

import anyio
import anyio.abc

from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import ErrorCode, KafkaError, error_for
from anabranch.protocol.framing import MAX_FRAME_BYTES, ClientConnection, RequestHeader
from anabranch.protocol.generated.api_versions import ApiVersionsRequest
from anabranch.runtime.env import Network, Stream
from anabranch.runtime.pauses import read_response, write_request

REQUEST_TIMEOUT_S = 30.0
"""Kafka's default of ``request.timeout.ms``."""
MAX_IN_FLIGHT = 64
_SOFTWARE_NAME = "anabranch"
_SOFTWARE_VERSION = "0.1.0"
_MAX_CORRELATION_ID = 2**31 - 1


class ChannelClosedError(ConnectionError):
    """The connection ended, so it is not known whether the request was applied; the message names peer and cause."""


class ChannelTimeoutError(ChannelClosedError, TimeoutError):
    """No answer in time. The channel is closed: the answer could still come and nobody would wait for it."""


class RequestBody(Protocol):
    """A generated request class."""

    API_KEY: ClassVar[int]


class _Pending:
    """A request that was sent and not answered."""

    __slots__ = ("answered", "api_key", "error", "response", "version")

    def __init__(self, api_key: int, version: int) -> None:
        self.api_key = api_key
        self.version = version
        self.answered = anyio.Event()
        self.response: Any = None
        self.error: ChannelClosedError | None = None


class Channel:
    """One connection for requests. Its ``run`` must run in a task; ``open`` and ``start`` see to that.

    At most ``max_in_flight`` requests wait for answers; one more waits its turn. Errors of ``request``:
    ``ChannelClosedError``, ``ChannelTimeoutError`` (both ``OSError``), and ``KafkaError`` UNSUPPORTED_VERSION when the
    sides share no version of an API.
    """

    def __init__(
        self,
        stream: Stream,
        client_id: str | None,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        self._stream = stream
        self._client_id = client_id
        self._frames = ClientConnection(max_frame_bytes)
        self._pending: dict[int, _Pending] = {}
        self._slots = anyio.Semaphore(max_in_flight)
        self._max_pending = 2 * max_in_flight
        self._sending = anyio.Lock()
        self._correlation_id = 0
        self._versions: Mapping[int, tuple[int, int]] | None = None
        self._closed_because: str | None = None

    @classmethod
    async def connect(
        cls,
        network: Network,
        host: str,
        port: int,
        client_id: str | None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        **limits: int,
    ) -> Channel:
        """Connect; ``start`` it then. Raises ``OSError``, ``ChannelTimeoutError`` after ``timeout_s``."""
        stream: Stream | None = None
        with anyio.move_on_after(timeout_s):
            stream = await network.connect(host, port)
        if stream is None:
            raise ChannelTimeoutError(f"{host}:{port} did not accept a connection within {timeout_s:g} s")
        return cls(stream, client_id, **limits)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        network: Network,
        host: str,
        port: int,
        client_id: str | None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        negotiate: bool = False,
        **limits: int,
    ) -> AsyncIterator[Channel]:
        """A channel for the length of a block; an error in the block comes out as it is, not in a group."""
        channel = await cls.connect(network, host, port, client_id, timeout_s=timeout_s, **limits)
        failure: Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                channel.start(tasks)
                try:
                    if negotiate:
                        await channel.negotiate(timeout_s)
                    yield channel
                except Exception as error:
                    failure = error
                tasks.cancel_scope.cancel()
        finally:
            channel.close()
        if failure is not None:
            raise failure

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Read answers in a task of ``tasks`` until the channel is closed. A trio nursery calls ``start_soon(run)``."""
        tasks.start_soon(self.run)

    @property
    def peer(self) -> str:
        return self._stream.peer

    @property
    def closed(self) -> bool:
        return self._closed_because is not None

    def close(self, because: str = "closed by this side") -> None:
        """Close at once; every request that waits fails with ``because``."""
        if self._closed_because is not None:
            return
        self._closed_because = because
        self._stream.close()
        for pending in self._pending.values():
            pending.error = self._closed_error()
            pending.answered.set()
        self._pending.clear()

    def _closed_error(self) -> ChannelClosedError:
        return ChannelClosedError(f"connection to {self.peer}: {self._closed_because}")

    async def run(self) -> None:
        """Read until the connection ends; returns then. Cancelling it closes the channel."""
        frames = self._frames
        try:
            while not self.closed:
                await self._stream.wait_readable()
                received = await self._stream.receive_into(frames.buffer())
                if received == 0:
                    self.close("the other side closed it")
                    return
                frames.received(received)
                while (frame := frames.next_frame()) is not None:
                    await self._answer(frame)
        except OSError as error:
            self.close(f"receiving failed: {error}")
        except ValueError as error:  # FrameError, DecodeError: nothing after it on the stream can be trusted
            self.close(f"an answer could not be read: {error}")
        finally:
            self.close()

    async def _answer(self, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[:4], "big")
        pending = self._pending.get(correlation_id)
        if pending is None:
            raise ValueError(f"correlation id {correlation_id} belongs to no request")
        pending.response = await read_response(pending.api_key, pending.version, frame)
        self._pending.pop(correlation_id, None)
        pending.answered.set()

    async def request(
        self,
        body: RequestBody,
        *,
        version: int | None = None,
        max_version: int | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Any:
        """Send ``body`` and return the decoded response; views in it stay valid as long as they are held.

        ``version`` fixes the version; else it is the highest both sides speak, at most ``max_version``. The deadline
        covers waiting for a slot, sending and the answer. Cancelled before it was sent, a request leaves no trace;
        cancelled later, its answer is dropped.
        """
        api_key = body.API_KEY
        if version is None:
            version = self.version_of(api_key, max_version)
        with anyio.move_on_after(timeout_s):
            async with self._slots:
                return await self._exchange(body, _Pending(api_key, version))
        reason = f"{ApiKey(api_key).name} was not answered within {timeout_s:g} s"
        self.close(reason)
        raise ChannelTimeoutError(f"connection to {self.peer}: {reason}")

    async def _exchange(self, body: Any, pending: _Pending) -> Any:
        async with self._sending:
            if len(self._pending) >= self._max_pending:  # cancelled requests whose answers never came
                self.close(f"{len(self._pending)} requests are unanswered")
            self._correlation_id = self._correlation_id % _MAX_CORRELATION_ID + 1
            header = RequestHeader(pending.api_key, pending.version, self._correlation_id, self._client_id)
            parts = await write_request(header, body)
            if self.closed:
                raise self._closed_error()
            self._pending[self._correlation_id] = pending
            try:
                await self._stream.send(parts)
            except OSError as error:
                self.close(f"sending failed: {error}")
            except BaseException:
                self.close("a request was cancelled while it was being sent")
                raise
        await pending.answered.wait()
        if pending.error is not None:
            raise pending.error
        return pending.response

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        """The highest version to use. Raises ``KafkaError`` UNSUPPORTED_VERSION when the sides share none."""
        api = API[ApiKey(api_key)]
        lowest, highest = api.min_version, api.max_version
        if max_version is not None:
            highest = min(highest, max_version)
        if self._versions is not None:
            spoken = self._versions.get(api_key)
            if spoken is None:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{self.peer} does not speak {api.name}")
            lowest, highest = max(lowest, spoken[0]), min(highest, spoken[1])
        if lowest > highest:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{self.peer} and this side share no version of {api.name}")
        return highest

    async def negotiate(self, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Ask which versions the other side speaks. Raises ``KafkaError`` when it refuses."""
        request = ApiVersionsRequest(client_software_name=_SOFTWARE_NAME, client_software_version=_SOFTWARE_VERSION)
        response = await self.request(request, timeout_s=timeout_s)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = await self.request(request, version=0, timeout_s=timeout_s)
        if response.error_code:
            raise error_for(response.error_code)
        self._versions = {spoken.api_key: (spoken.min_version, spoken.max_version) for spoken in response.api_keys}
