"""One TCP connection to a broker: requests leave in the order they are posted, answers come back in the same order.

``post`` is a plain call, so the order of two requests is the order of two statements; who wants the answer awaits the
``Pending`` it returns. What the socket takes leaves at once. Two tasks per connection read, and write the rest, until
it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from anabranch.client.errors import ErrorCode, KafkaError, KafkaTimeoutError, error_for
from anabranch.client.net.signal import Signal
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.framing import ClientConnection, RequestHeader, decode_response, encode_request
from anabranch.protocol.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from anabranch.protocol.primitives import Message
from anabranch.runtime.env import Part, Stream

SOFTWARE_NAME = "anabranch"
SOFTWARE_VERSION = "0.1.0"


class Pending:
    """A posted request. ``response`` or ``error`` is set exactly once."""

    __slots__ = ("_connection", "_event", "api_key", "correlation_id", "error", "on_settled", "response", "version")

    def __init__(self, connection: Connection, api_key: int, version: int, correlation_id: int) -> None:
        self._connection = connection
        self._event: anyio.Event | None = None
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.response: Any = None
        self.error: KafkaError | None = None
        self.on_settled: Callable[[], None] | None = None
        """For who waits for other things too, instead of ``wait``."""

    @property
    def settled(self) -> bool:
        return self.response is not None or self.error is not None

    def settle(self, response: Any = None, error: KafkaError | None = None) -> None:
        """Set the outcome; the first stands."""
        if self.settled:
            return
        self.response, self.error = response, error
        if self._event is not None:
            self._event.set()
        if self.on_settled is not None:
            self.on_settled()

    async def wait(self, timeout_s: float) -> Any:
        """The response. KafkaTimeoutError after ``timeout_s``, and the connection is closed: answers have an order."""
        if not self.settled:
            if self._event is None:
                self._event = anyio.Event()
            with anyio.move_on_after(timeout_s):
                await self._event.wait()
        return self.result(timeout_s)

    def result(self, waited_s: float) -> Any:
        """As ``wait``, by one who has waited already."""
        if not self.settled:
            name = ApiKey(self.api_key).name
            self.error = KafkaTimeoutError(f"{name} was not answered by {self._connection.peer} in {waited_s:.3f} s")
            self._connection.close(f"{name} was not answered in time")
        if self.error is not None:
            raise self.error
        return self.response


class Connection:
    """A connection and the API versions its broker speaks."""

    def __init__(self, stream: Stream, client_id: str | None, *, on_answer: Callable[[], None] = lambda: None) -> None:
        self._stream = stream
        self._on_answer = on_answer
        self._client_id = client_id
        self._frames = ClientConnection()
        self._outgoing: list[Part] = []
        """What did not leave at once, for the task that writes."""
        self._writing = False
        self._pending: deque[Pending] = deque()
        self._wake = Signal()
        self._correlation_id = 0
        self._versions: Mapping[int, tuple[int, int]] | None = None
        self._closed: str | None = None

    @property
    def peer(self) -> str:
        return self._stream.peer

    @property
    def closed(self) -> bool:
        return self._closed is not None

    @property
    def closed_because(self) -> str | None:
        """Why it was closed; None while it is not."""
        return self._closed

    @property
    def in_flight(self) -> int:
        """Requests posted and not answered."""
        return len(self._pending)

    async def run(self) -> None:
        """Read and write until the connection ends, for whatever reason; then every pending request fails."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                await self._read()
                tasks.cancel_scope.cancel()
        finally:
            self.close("the connection ended")

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

    async def _read(self) -> None:
        frames = self._frames
        stream = self._stream
        try:
            while not self.closed:
                await stream.wait_readable()
                count = await stream.receive_into(frames.buffer())
                if count == 0:
                    self.close("the broker closed the connection")
                    return
                frames.received(count)
                while (frame := frames.next_frame()) is not None:
                    self._answer(frame)
        except (OSError, anyio.ClosedResourceError, ValueError) as error:
            # ValueError: DecodeError and FrameError; what follows on the stream cannot be told apart any more.
            self.close(f"receiving failed: {error}")

    def _answer(self, frame: memoryview) -> None:
        if not self._pending:
            raise ValueError("a response to no request")
        pending = self._pending[0]
        correlation_id, response = decode_response(pending.api_key, pending.version, frame)
        if correlation_id != pending.correlation_id:
            raise ValueError(f"response {correlation_id} where {pending.correlation_id} is next")
        self._pending.popleft()
        self._on_answer()
        pending.settle(response=response)

    def close(self, why: str = "closed") -> None:
        """Close at once and fail every pending request with NETWORK_EXCEPTION."""
        if self._closed is not None:
            return
        self._closed = why
        self._stream.close()
        self._wake.set()
        pending, self._pending = self._pending, deque()
        for request in pending:
            request.settle(error=error_for(ErrorCode.NETWORK_EXCEPTION, f"{self.peer}: {why}"))

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        """The highest version of an API that both sides speak, at most ``max_version``; UNSUPPORTED_VERSION if none."""
        api = API[ApiKey(api_key)]
        highest = api.max_version if max_version is None else min(max_version, api.max_version)
        lowest = api.min_version
        if self._versions is not None:
            spoken = self._versions.get(api_key)
            if spoken is None:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{self.peer} does not speak {api.name}")
            lowest, highest = max(lowest, spoken[0]), min(highest, spoken[1])
        if lowest > highest:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"{self.peer} and this client share no version of {api.name}"
            )
        return highest

    def post(
        self,
        body: Message,
        *,
        version: int | None = None,
        max_version: int | None = None,
        answered: bool = True,
    ) -> Pending:
        """Send a request, behind those that wait. ``answered=False``: it has no response (Produce with acks=0)."""
        api_key = body.API_KEY
        if version is None:
            version = self.version_of(api_key, max_version)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        pending = Pending(self, api_key, version, self._correlation_id)
        if self._closed is not None:
            pending.settle(error=error_for(ErrorCode.NETWORK_EXCEPTION, f"{self.peer}: {self._closed}"))
            return pending
        parts = encode_request(RequestHeader(api_key, version, self._correlation_id, self._client_id), body)
        if answered:
            self._pending.append(pending)
        rest = parts if self._writing or self._outgoing else self._stream.send_now(parts)
        if rest:
            self._outgoing += rest
            self._wake.set()
        return pending

    async def negotiate(self, timeout_s: float) -> None:
        """Learn the broker's versions; an old broker is asked again with version 0 (KIP-511)."""
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        response: ApiVersionsResponse = await self.post(request).wait(timeout_s)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = await self.post(request, version=0).wait(timeout_s)
        if response.error_code:
            raise error_for(response.error_code)
        self._versions = {v.api_key: (v.min_version, v.max_version) for v in response.api_keys}
