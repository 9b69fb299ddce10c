"""The controller's listener: brokers forward admin requests to it and ask for controlled shutdown.

Requests of a connection are queued in order of arrival. Each request is answered when it is done, with its correlation
id. So a slow topic creation does not delay the responses to other requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any, cast

import structlog
import trio

from anabranch.controller.active import ActiveController
from anabranch.controller.admin import own_loggers
from anabranch.controller.admin.dispatch import HANDLERS, api_versions
from anabranch.controller.admin.slices import gather
from anabranch.controller.config import ControllerConfig
from anabranch.controller.events import AdminCall
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.error_responses import not_controller
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.framing import (
    HEALTH_CHECK,
    BufferPool,
    Request,
    RequestHeader,
    ServerConnection,
)
from anabranch.protocol.generated.api_versions import ApiVersionsRequest
from anabranch.protocol.named_items import each_once
from anabranch.protocol.primitives import DecodeError, EncodeError
from anabranch.runtime.accepting import accept_connections
from anabranch.runtime.background import Background
from anabranch.runtime.decoded_requests import DecodedRequests
from anabranch.runtime.env import Listener, Stream
from anabranch.runtime.pauses import with_pauses, write_response
from anabranch.runtime.turns import pause, turns

logger = structlog.get_logger(__name__)
MAX_UNANSWERED = 64
"""The largest number of unanswered requests of one connection. Reading stops there."""

Active = Callable[[], ActiveController | None]


async def serve(listener: Listener, active: Active, config: ControllerConfig, background: Background) -> None:
    """Accept connections until cancelled. ``active`` returns this controller if it is in office, else None."""
    pool = BufferPool()
    decoded = DecodedRequests(config.request_limits)
    async with trio.open_nursery() as nursery:

        def take(stream: Stream) -> None:
            nursery.start_soon(_Connection(stream, active, config, background, pool, decoded).run)

        await accept_connections("controller.listener", listener, background, take)


class _Connection:
    def __init__(
        self,
        stream: Stream,
        active: Active,
        config: ControllerConfig,
        background: Background,
        pool: BufferPool,
        decoded: DecodedRequests,
    ) -> None:
        self._background = background
        self._stream = stream
        self._active = active
        self._controller_id = config.controller_id
        self._supported = config.features
        self._max_idle_s = config.connections_max_idle_ms / 1000 if config.connections_max_idle_ms >= 0 else math.inf
        self._decoded = decoded
        self._frames = ServerConnection(decoded.limits, pool)
        self._most_answer_bytes = config.socket_response_max_bytes
        self._undecided = (0, 0)
        """The API key and the memory of the request that was read last, until it is in the controller's queue."""
        self._slots = trio.Semaphore(MAX_UNANSWERED)
        self._sending = trio.Lock()

    async def run(self) -> None:
        """Serve until the peer closes, breaks the protocol, or is idle for too long."""
        try:
            async with trio.open_nursery() as nursery:
                await self._read(nursery)
                nursery.cancel_scope.cancel()
        except Exception as error:  # a peer's data must not end the controller
            self._background.failed_once("controller.listener", self._stream.peer, error)
        finally:
            self._stream.close()
            self._frames.close()
            self._free(self._take_undecided())

    def _take_undecided(self) -> tuple[int, int]:
        taken, self._undecided = self._undecided, (0, 0)
        return taken

    def _free(self, decoded: tuple[int, int]) -> None:
        api_key, decoded_bytes = decoded
        if decoded_bytes:
            self._decoded.free(api_key, decoded_bytes)

    async def _read(self, nursery: trio.Nursery) -> None:
        try:
            while True:
                received = 0
                with trio.move_on_after(self._max_idle_s):
                    received = await self._receive()
                if received == 0:
                    return
                self._frames.received(received)
                while (frame := self._frames.next_frame()) is not None:
                    await self._slots.acquire()  # before it is decoded: an answer may wait as long as its client asks
                    request = await self._decoded.read(frame, self._stream.has_ended)
                    self._undecided = request.header.api_key, request.decoded_bytes
                    await self._accept(request, nursery)
                    self._free(self._take_undecided())
                    del request
        except OSError:
            return
        except ValueError as error:  # FrameError, DecodeError
            logger.warning("connection.rejected", client=self._stream.peer, reason=str(error))

    async def _receive(self) -> int:
        moved = 0
        if self._frames.idle:
            await self._stream.wait_readable()
        elif moved := self._frames.moves():
            await turns().take(moved)
        return await self._stream.receive_into(self._frames.buffer(moved))

    async def _accept(self, request: Request, nursery: trio.Nursery) -> None:
        key, version = request.header.api_key, request.header.api_version
        if key == ApiKey.API_VERSIONS:
            error = ErrorCode.UNSUPPORTED_VERSION if request.unsupported else ErrorCode.NONE
            active = self._active()
            answer = api_versions(self._supported, active.image if active is not None else None, error)
            asked = cast(ApiVersionsRequest, request.body)
            if not request.unsupported and asked.client_software_name == HEALTH_CHECK:
                answer.background_failures = self._background.describe()
            nursery.start_soon(self._send, request.header, 0 if request.unsupported else version, answer)
            return
        if key not in HANDLERS and key != ApiKey.DESCRIBE_CONFIGS:
            raise DecodeError(f"{ApiKey(key).name} is not served by a controller")
        for _ in chain(each_once(key, request.body, set()), gather(key, request.body)):
            await pause()
        of_process = await with_pauses(own_loggers.answer(self._controller_id, request.body))
        if of_process is not None:
            nursery.start_soon(self._send, request.header, version, of_process)
            return
        active = self._active()
        if active is None:
            refusal = await with_pauses(not_controller(key, request.body))
            nursery.start_soon(self._send, request.header, version, refusal)
            return
        call = active.submit(key, request.body, version)
        nursery.start_soon(self._answer, request.header, active, call, self._take_undecided())

    async def _answer(
        self, header: RequestHeader, active: ActiveController, call: AdminCall, decoded: tuple[int, int]
    ) -> None:
        try:
            await active.decision(call)
        finally:
            self._free(decoded)
        await self._send(header, header.api_version, await active.answer(call))

    async def _send(self, header: RequestHeader, version: int, response: Any) -> None:
        try:
            async with self._sending:
                parts = await write_response(
                    header.api_key, version, header.correlation_id, response, self._most_answer_bytes
                )
                await self._stream.send(parts)
        except OSError:
            self._stream.close()
        except EncodeError as error:  # too large, or the version of a hostile request has no field for the answer
            logger.warning("connection.response_not_sent", client=self._stream.peer, reason=str(error))
            self._stream.close()
        finally:
            self._slots.release()
