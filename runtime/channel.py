"""One connection to a broker or controller: requests, responses, the versions both sides support, and deadlines.

Clients, brokers and controllers use channels, under trio and asyncio alike. There are two ways to send. ``post`` is a
plain call, so requests leave in the order of the calls. It sends at once the bytes that the socket takes, and returns a
``Pending``, whose ``wait`` returns the response. ``request`` sends and waits, with one deadline for both, and lets
other tasks run while it encodes a large request. Responses are matched to requests by correlation id. A failed channel
stays failed: connect a new one.

A response that does not come in time closes the channel, also if the task that waited for it was cancelled before.
Otherwise a caller with a deadline of its own would keep a dead connection, and use it for its next request.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import anyio
import anyio.abc

from anabranch.protocol.addresses import join_address
from anabranch.protocol.api_keys import API, Api, ApiKey
from anabranch.protocol.errors import ErrorCode, KafkaError, error_for
from anabranch.protocol.framing import ClientConnection, RequestHeader, encode_request
from anabranch.protocol.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from anabranch.protocol.message_limits import MAX_FRAME_BYTES
from anabranch.runtime.env import Network, Part, Stream
from anabranch.runtime.pauses import read_response, write_request
from anabranch.runtime.release import SOFTWARE_NAME, sent_version
from anabranch.runtime.signal import Signal
from anabranch.runtime.turns import turns

REQUEST_TIMEOUT_S = 30.0
"""Kafka's default of ``request.timeout.ms``."""
MAX_IN_FLIGHT = 64
_MAX_CORRELATION_ID = 2**31 - 1


class ChannelClosedError(ConnectionError):
    """The connection ended, so the request may or may not have been applied; the message names peer and cause."""


class ChannelTimeoutError(ChannelClosedError, TimeoutError):
    """The response did not arrive in time. The channel is closed, because no task would wait for a late response."""


class Failures(NamedTuple):
    """The exceptions of a channel's failed requests. Both exceptions take the peer and the cause."""

    closed: Callable[[str, str], Exception]
    """The connection ended."""
    late: Callable[[str, str], Exception]
    """The response did not come in time."""


CHANNEL_FAILURES = Failures(
    closed=lambda peer, why: ChannelClosedError(f"connection to {peer}: {why}"),
    late=lambda peer, why: ChannelTimeoutError(f"connection to {peer}: {why}"),
)


class RequestBody(Protocol):
    """A generated request class."""

    API_KEY: ClassVar[int]


class Pending:
    """A request that was posted. ``response`` or ``error`` is set exactly once."""

    __slots__ = ("_channel", "_event", "api_key", "due_at", "error", "on_settled", "response", "version")

    def __init__(self, channel: Channel, api_key: int, version: int) -> None:
        self._channel = channel
        self._event: anyio.Event | None = None
        self.api_key = api_key
        self.version = version
        self.due_at = float("inf")
        """The time at which the response is due, by the clock of the channel."""
        self.response: Any = None
        self.error: Exception | None = None
        self.on_settled: Callable[[], None] | None = None
        """Called once ``response`` or ``error`` is set, for callers that do not use ``wait``."""

    @property
    def settled(self) -> bool:
        return self.response is not None or self.error is not None

    def settle(self, response: Any = None, error: Exception | None = None) -> None:
        """Set the outcome; only the first call counts."""
        if self.settled:
            return
        self.response, self.error = response, error
        if self._event is not None:
            self._event.set()
        if self.on_settled is not None:
            self.on_settled()

    async def wait(self, timeout_s: float) -> Any:
        """The response. After ``timeout_s`` the channel is closed, and the error is ``Failures.late``.

        A cancellation ends the wait but not the time limit: the channel is closed if the response is late.
        """
        limit = anyio.move_on_after(timeout_s)
        try:
            with limit:
                await self.until_settled()
        except BaseException:
            self._channel.abandon(self, limit.deadline, timeout_s)
            raise
        return self.result(timeout_s)

    async def until_settled(self) -> None:
        """Wait without a deadline."""
        if not self.settled:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()

    def result(self, waited_s: float) -> Any:
        """The response, for a caller that has waited already. Raises the errors of ``wait``."""
        if not self.settled:
            self.error = self._channel.close_late(self.api_key, waited_s)
        if self.error is not None:
            raise self.error
        return self.response


class Channel:
    """One connection for requests. ``run`` must run in a task: ``open`` and ``start`` start it.

    At most ``max_in_flight`` calls of ``request`` wait for responses; further calls wait for a slot. A failed request
    raises one of ``failures``, by default an ``OSError``. A request raises ``KafkaError`` UNSUPPORTED_VERSION when the
    sides share no version of the request's API. ``on_answer`` is called for each response. ``now`` is the clock, in
    seconds, of ``Pending.due_at``.
    """

    def __init__(
        self,
        stream: Stream,
        client_id: str | None,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_in_flight: int = MAX_IN_FLIGHT,
        failures: Failures = CHANNEL_FAILURES,
        on_answer: Callable[[], None] = lambda: None,
        now: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._stream = stream
        self._client_id = client_id
        self._failures = failures
        self._on_answer = on_answer
        self._now = now
        self._frames = ClientConnection(max_frame_bytes)
        self._pending: dict[int, Pending] = {}
        self._slots = anyio.Semaphore(max_in_flight)
        self._max_pending = 2 * max_in_flight
        self._encoding = anyio.Lock()
        self._outgoing: list[Part] = []
        """The parts that the socket did not take at once, for the writing task."""
        self._writing = False
        self._wake = Signal()
        self._correlation_id = 0
        self._versions: Mapping[int, tuple[int, int]] | None = None
        self._closed_because: str | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    @classmethod
    async def connect(
        cls,
        network: Network,
        host: str,
        port: int,
        client_id: str | None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        attempt: int = 0,
        **options: Any,
    ) -> Channel:
        """A connected channel, to be started with ``start``. ``attempt`` is as in ``Network.connect``.

        Raises ``OSError``: ``ChannelTimeoutError`` when late.
        """
        stream: Stream | None = None
        with anyio.move_on_after(timeout_s):
            stream = await network.connect(host, port, attempt=attempt)
        if stream is None:
            raise ChannelTimeoutError(f"{join_address(host, port)} did not accept a connection within {timeout_s:g} s")
        return cls(stream, client_id, **options)

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
        **options: Any,
    ) -> AsyncIterator[Channel]:
        """A channel for the length of a block. An error of the block is raised as it is, not in a group."""
        channel = await cls.connect(network, host, port, client_id, timeout_s=timeout_s, **options)
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
        """Start ``run`` in a task of ``tasks``. With a trio nursery, call ``nursery.start_soon(channel.run)``."""
        tasks.start_soon(self.run)

    @property
    def peer(self) -> str:
        return self._stream.peer

    @property
    def closed(self) -> bool:
        return self._closed_because is not None

    @property
    def closed_because(self) -> str | None:
        """The reason why the channel was closed; None while it is open."""
        return self._closed_because

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return len(self._pending)

    def unanswered(self) -> Pending | None:
        """The oldest request without a response, which the peer has to answer next; None if no response is due."""
        return next(iter(self._pending.values()), None)

    def close(self, because: str = "closed by this side") -> None:
        """Close at once; every waiting request fails with ``because``."""
        if self._closed_because is not None:
            return
        self._closed_because = because
        self._stream.close()
        self._wake.set()
        pending, self._pending = self._pending, {}
        for request in pending.values():
            request.settle(error=self._failures.closed(self.peer, because))

    def close_late(self, api_key: int, waited_s: float) -> Exception:
        """Close because a response did not come in time, and return the error for its request."""
        because = f"{ApiKey(api_key).name} was not answered within {round(waited_s, 3):g} s"
        self.close(because)
        return self._failures.late(self.peer, because)

    def abandon(self, pending: Pending, deadline: float, limit_s: float) -> None:
        """No task waits for this response any more; if it has not come by ``deadline``, close the channel.

        ``deadline`` is a time of the event loop, ``limit_s`` the time limit that ends then. A request that was not sent
        has no effect.
        """
        if pending.settled or self.closed or pending not in self._pending.values():
            return
        if self._tasks is None or deadline <= anyio.current_time():
            self.close_late(pending.api_key, limit_s)
        else:
            self._tasks.start_soon(self._close_unless_settled, pending, deadline, limit_s)

    async def _close_unless_settled(self, pending: Pending, deadline: float, limit_s: float) -> None:
        with anyio.move_on_after(deadline - anyio.current_time()):
            await pending.until_settled()
        if not pending.settled:
            self.close_late(pending.api_key, limit_s)

    # ------------------------------------------------------------ bytes

    async def run(self) -> None:
        """Read and write until the connection ends, then return. Cancelling it closes the channel."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._write)
                try:
                    await self._read()
                finally:
                    self.close()  # before the group ends, so that nobody starts a task in it
                tasks.cancel_scope.cancel()
        finally:
            self.close()

    async def _read(self) -> None:
        frames = self._frames
        try:
            while not self.closed:
                moved = 0
                if frames.idle:
                    await self._stream.wait_readable()
                elif moved := frames.moves():
                    await turns().take(moved)
                received = await self._stream.receive_into(frames.buffer(moved))
                if received == 0:
                    self.close("the other side closed it")
                    return
                frames.received(received)
                while (frame := frames.next_frame()) is not None:
                    await self._answer(frame)
        except (OSError, anyio.ClosedResourceError) as error:
            self.close(f"receiving failed: {error}")
        except ValueError as error:  # FrameError, DecodeError: the rest of the stream cannot be trusted
            self.close(f"an answer could not be read: {error}")

    async def _answer(self, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[:4], "big")
        pending = self._pending.get(correlation_id)
        if pending is None:
            raise ValueError(f"correlation id {correlation_id} belongs to no request")
        response = await read_response(pending.api_key, pending.version, frame)
        self._pending.pop(correlation_id, None)
        self._on_answer()
        pending.settle(response=response)

    async def _write(self) -> None:
        try:
            while not self.closed:
                await self._wake.wait()
                while self._outgoing and not self.closed:
                    parts, self._outgoing = self._outgoing, []
                    self._writing = True
                    await self._stream.send(parts)
                    self._writing = False
        except OSError as error:
            self.close(f"sending failed: {error}")

    # ------------------------------------------------------------ requests

    def post(
        self,
        body: Any,
        *,
        version: int | None = None,
        max_version: int | None = None,
        answered: bool = True,
        parked_s: float = 0.0,
    ) -> Pending:
        """Send a request after the waiting requests. ``answered=False``: it has no response (Produce with acks=0).

        ``parked_s`` is the time that the peer may park the request, such as the ``max_wait_ms`` of a Fetch.
        """
        pending = self._pending_for(body, version, max_version)
        pending.due_at = self._now() + parked_s
        if self._closed_because is None:
            header = self._next_header(pending)
            self._send(encode_request(header, body), header, pending, answered=answered)
        else:
            pending.settle(error=self._failures.closed(self.peer, self._closed_because))
        return pending

    async def request(
        self,
        body: RequestBody,
        *,
        version: int | None = None,
        max_version: int | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Any:
        """Send ``body`` and return the decoded response. Views in it stay valid as long as they are held.

        ``version`` fixes the version; by default it is the highest that both sides support, at most ``max_version``.
        The deadline covers waiting for a slot, sending, and the response. A request that is cancelled before it is sent
        has no effect. If a request is cancelled later, its response is dropped, and closes the channel if it is late.
        """
        pending = self._pending_for(body, version, max_version)
        limit = anyio.move_on_after(timeout_s)
        try:
            with limit:
                await self._slots.acquire()
                try:
                    await self._send_in_turn(body, pending)
                    await pending.until_settled()
                    return pending.result(timeout_s)
                finally:
                    self._give_back_slot(pending)
        except BaseException:
            self.abandon(pending, limit.deadline, timeout_s)
            raise
        raise self.close_late(pending.api_key, timeout_s)

    def _give_back_slot(self, pending: Pending) -> None:
        """A request that was sent keeps its slot until its response comes, also if nobody waits for it any more."""
        if not pending.settled and pending in self._pending.values():
            pending.on_settled = self._slots.release
        else:
            self._slots.release()

    async def _send_in_turn(self, body: Any, pending: Pending) -> None:
        async with self._encoding:
            header = self._next_header(pending)
            parts = await write_request(header, body)
            if len(self._pending) >= self._max_pending:  # cancelled requests without responses
                self.close(
                    f"{len(self._pending)} requests have no response, at most {self._max_pending} may wait for one"
                )
            if self._closed_because is None:
                self._send(parts, header, pending, answered=True)
            else:
                pending.settle(error=self._failures.closed(self.peer, self._closed_because))

    def _pending_for(self, body: Any, version: int | None, max_version: int | None) -> Pending:
        api_key: int = body.API_KEY
        return Pending(self, api_key, self.version_of(api_key, max_version) if version is None else version)

    def _next_header(self, pending: Pending) -> RequestHeader:
        self._correlation_id = self._correlation_id % _MAX_CORRELATION_ID + 1
        return RequestHeader(
            pending.api_key, pending.version, self._correlation_id, self._client_id, asks_for_own_tags=True
        )

    def _send(self, parts: list[Part], header: RequestHeader, pending: Pending, *, answered: bool) -> None:
        if answered:
            self._pending[header.correlation_id] = pending
        rest = parts if self._writing or self._outgoing else self._stream.send_now(parts)
        if rest:
            self._outgoing += rest
            self._wake.set()

    # ------------------------------------------------------------ versions

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        """The highest version to use. Raises ``KafkaError`` UNSUPPORTED_VERSION when the sides share none."""
        api = API[ApiKey(api_key)]
        lowest, highest = api.min_version, api.max_version
        if max_version is not None:
            highest = min(highest, max_version)
        if self._versions is not None:
            spoken = self._versions.get(api_key)
            if spoken is None:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{self.peer} does not support {api.name}")
            lowest, highest = max(lowest, spoken[0]), min(highest, spoken[1])
        if lowest > highest:
            raise self._no_common_version(api, max_version)
        return highest

    def _no_common_version(self, api: Api, max_version: int | None) -> KafkaError:
        highest = api.max_version if max_version is None else min(api.max_version, max_version)
        spoken = None if self._versions is None else self._versions.get(api.key)
        theirs = "" if spoken is None else f", {self.peer} has {spoken[0]} to {spoken[1]}"
        what = f"{self.peer} and this side share no version of {api.name}"
        message = f"{what}: this side has versions {api.min_version} to {highest}{theirs}"
        return KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)

    async def negotiate(self, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Request the versions that the peer supports. An old broker is asked a second time, in version 0 (KIP-511).

        Raises ``KafkaError`` when the peer refuses.
        """
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=sent_version())
        response: ApiVersionsResponse = await self.post(request).wait(timeout_s)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = await self.post(request, version=0).wait(timeout_s)
        if response.error_code:
            raise error_for(response.error_code)
        self._versions = {spoken.api_key: (spoken.min_version, spoken.max_version) for spoken in response.api_keys}
