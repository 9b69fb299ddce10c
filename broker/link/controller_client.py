"""The connection to the active controller: find it in ``/controller``, keep one channel, forward admin requests.

If the controller answers NOT_CONTROLLER or cannot be reached, ``/controller`` is read again and the request is sent to
the address there, until the request times out. A client never sees the fail-over. The pauses between tries grow, and
are short again when another controller is elected.

A request may take long, so a missing answer does not show that the connection is dead. The controller answers
ApiVersions at once. A connection that leaves ApiVersions unanswered is closed, and its requests are sent over another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
import trio

from anabranch.protocol.addresses import join_address
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.api_versions import ApiVersionsRequest
from anabranch.runtime.channel import MAX_IN_FLIGHT, Channel, RequestBody
from anabranch.runtime.env import Env, NoNodeError, Watch, ZkStore
from anabranch.runtime.signal import Signal
from anabranch.runtime.znode_watch import follow
from anabranch.zk_schemas.controller import ControllerZnode
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 2.0
SILENCE_S = 5.0
"""The default of ``controller.silence.ms``, in seconds."""
_CHECK_VERSION = 0


def backoff_s(failures: int) -> float:
    """The longest pause after so many failed tries in a row, at least 1. It doubles: a request may have megabytes."""
    return min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * float(2 ** min(failures - 1, 20)))


class ControllerClient:
    """``run`` follows ``/controller``; ``request`` may be called by any number of tasks."""

    def __init__(self, env: Env, zk: ZkStore, client_id: str, silence_s: float = SILENCE_S) -> None:
        self._env = env
        self._zk = zk
        self._client_id = client_id
        self._moved = trio.Event()
        self._connecting = trio.Lock()
        self._attempt = trio.CancelScope()
        """The attempt to connect that holds ``_connecting``."""
        self._channel: Channel | None = None
        self._nursery: trio.Nursery | None = None
        self._silence_s = silence_s
        self._waiting = 0
        """The number of requests without an answer."""
        self._is_asked = Signal()
        self._asked_at: float | None = None
        """The time of the first request since the last answer; None if there is none."""
        self._answered_at = -math.inf
        self._is_checking = False
        self.address: ControllerZnode | None = None
        self.on_moved: Callable[[], None] = lambda: None
        """Called when another controller becomes active, or when no controller is active."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep ``address`` up to date until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                self._nursery.start_soon(self._watch_silence)
                await follow(self._zk, self._read, _log_error)
        finally:
            self._nursery = None

    async def _read(self, watch: Watch) -> None:
        try:
            if await self._zk.exists(ControllerZnode.PATH, watch) is None:
                self._set(None)
                return
            znode = await self._zk.get(ControllerZnode.PATH, watch)
            self._set(ControllerZnode.decode(ControllerZnode.PATH, znode.data))
        except NoNodeError:
            self._set(None)
        except MalformedZnodeError as error:
            _log_error(error)

    def _set(self, address: ControllerZnode | None) -> None:
        if address == self.address:
            return
        moved = _place(address) != _place(self.address)
        self.address = address
        if moved:
            self._attempt.cancel()
        if moved and self._channel is not None:
            self._channel.close("another controller was elected")
            self._channel = None
            self._asked_at = None
        logger.info(
            "controller.moved", controller=None if address is None else join_address(address.host, address.port)
        )
        self._moved.set()
        self._moved = trio.Event()
        self.on_moved()

    async def request(self, body: RequestBody, version: int, timeout_s: float, refused: Callable[[Any], bool]) -> Any:
        """Send ``body`` to the active controller and return its answer.

        ``refused(response)``: whether the response is NOT_CONTROLLER. Raises ``KafkaError`` REQUEST_TIMED_OUT 7 if no
        controller answers in time. A request whose connection broke is sent again. That is safe, because admin requests
        name the wanted state. The second response then reports that this state exists already.
        """
        deadline = self._env.clock.monotonic() + timeout_s
        failures = 0
        self._waiting += 1
        self._is_asked.set()
        try:
            with trio.move_on_at(deadline):
                while True:
                    moved = self._moved
                    answered = await self._try_once(body, version, deadline, refused)
                    if answered is not None:
                        return answered
                    failures += 1
                    with trio.move_on_after(backoff_s(failures)):
                        await moved.wait()
                        failures = 0
        finally:
            self._waiting -= 1
        place = _place(self.address)
        known = "no active controller is known" if place is None else f"the active controller is {join_address(*place)}"
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"no controller answered within {timeout_s:g} s: {known}")

    async def _try_once(
        self, body: RequestBody, version: int, deadline: float, refused: Callable[[Any], bool]
    ) -> Any | None:
        """The answer of the controller that is active now; None if it gave none, or refused."""
        left_s = max(deadline - self._env.clock.monotonic(), 0.001)
        if self._asked_at is None:
            self._asked_at = self._env.clock.monotonic()
        try:
            channel = await self._connected(left_s)
            if channel is not None:
                response = await channel.request(body, version=version, timeout_s=left_s)
                return None if refused(response) else response
        except OSError as error:
            logger.warning("controller.request_failed", error=str(error))
        return None

    # ------------------------------------------------------------ silence

    def silence(self) -> str | None:
        """The problem if no controller is active, or if none has answered for ``silence_s``; else None.

        If the last answer is older than ``silence_s``, this call starts a check, which the next call reports.
        """
        now = self._env.clock.monotonic()
        if self.address is None:
            return "no controller is active"
        if now - self._answered_at >= self._silence_s and self._nursery is not None and not self._is_checking:
            self._nursery.start_soon(self._check)
        if self._asked_at is None or now - self._asked_at < self._silence_s:
            return None
        where = join_address(self.address.host, self.address.port)
        return f"the active controller {where} has not answered for {now - self._asked_at:.0f} s"

    async def _check(self) -> None:
        self._is_checking = True
        try:
            await self.request(ApiVersionsRequest(), _CHECK_VERSION, self._silence_s, lambda _: False)
        except KafkaError as error:
            logger.warning("controller.request_failed", error=str(error))
        finally:
            self._is_checking = False

    def _on_answer(self) -> None:
        self._answered_at, self._asked_at = self._env.clock.monotonic(), None

    async def _watch_silence(self) -> None:
        """While requests wait and no answer comes, check the connection, so that a dead one is closed."""
        while True:
            await self._is_asked.wait()
            while self._waiting:
                before = self._answered_at
                await trio.sleep(self._silence_s)
                channel = self._channel
                if self._waiting and self._answered_at == before and channel is not None:
                    await self._check_connection(channel)

    async def _check_connection(self, channel: Channel) -> None:
        if channel.in_flight >= MAX_IN_FLIGHT:  # the controller reads no further request before it has answered one
            return
        with suppress(OSError):  # the requests of a dead connection report it
            await channel.post(ApiVersionsRequest(), version=_CHECK_VERSION).wait(self._silence_s)

    # ------------------------------------------------------------ connection

    async def _connected(self, timeout_s: float) -> Channel | None:
        async with self._connecting:
            if self._channel is not None and not self._channel.closed:
                return self._channel
            address = self.address
            if address is None or self._nursery is None:
                return None
            channel: Channel | None = None
            with trio.CancelScope() as self._attempt:  # the host of an earlier controller may never answer
                channel = await Channel.connect(
                    self._env.network,
                    address.host,
                    address.port,
                    self._client_id,
                    timeout_s=timeout_s,
                    on_answer=self._on_answer,
                )
            if channel is None:
                return None
            if _place(address) != _place(self.address) or self._nursery is None:
                channel.close("another controller was elected")
                return None
            self._nursery.start_soon(channel.run)
            self._channel = channel
            return channel


def _place(address: ControllerZnode | None) -> tuple[str, int] | None:
    """The address for requests. A controller that is elected again at the same address keeps its connection."""
    return None if address is None else (address.host, address.port)


def _log_error(error: Exception) -> None:
    logger.warning("controller.not_read", error=str(error))
