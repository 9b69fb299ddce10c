"""The connection to the active controller: find it in ``/controller``, keep one channel, forward admin requests.

If the controller answers NOT_CONTROLLER or cannot be reached, ``/controller`` is read again and the request is sent to
the address there, until the request times out. A client never sees the fail-over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
import trio

from anabranch.protocol.addresses import join_address
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.runtime.channel import Channel, RequestBody
from anabranch.runtime.env import Env, NoNodeError, Watch, ZkStore
from anabranch.runtime.znode_watch import follow
from anabranch.zk_schemas.controller import ControllerZnode
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)

RETRY_BACKOFF_S = 0.1


class ControllerClient:
    """``run`` follows ``/controller``; ``request`` may be called by any number of tasks."""

    def __init__(self, env: Env, zk: ZkStore, client_id: str) -> None:
        self._env = env
        self._zk = zk
        self._client_id = client_id
        self._moved = trio.Event()
        self._connecting = trio.Lock()
        self._channel: Channel | None = None
        self._nursery: trio.Nursery | None = None
        self.address: ControllerZnode | None = None
        self.on_moved: Callable[[], None] = lambda: None
        """Called when another controller becomes active, or when no controller is active."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep ``address`` up to date until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
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
        if moved and self._channel is not None:
            self._channel.close("another controller was elected")
            self._channel = None
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
        with trio.move_on_at(deadline):
            while True:
                moved = self._moved
                left_s = deadline - self._env.clock.monotonic()
                try:
                    channel = await self._connected(left_s)
                    if channel is not None:
                        response = await channel.request(body, version=version, timeout_s=max(left_s, 0.001))
                        if not refused(response):
                            return response
                except OSError as error:
                    logger.warning("controller.request_failed", error=str(error))
                with trio.move_on_after(RETRY_BACKOFF_S):
                    await moved.wait()
        place = _place(self.address)
        known = "no active controller is known" if place is None else f"the active controller is {join_address(*place)}"
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"no controller answered within {timeout_s:g} s: {known}")

    async def _connected(self, timeout_s: float) -> Channel | None:
        async with self._connecting:
            if self._channel is not None and not self._channel.closed:
                return self._channel
            address = self.address
            if address is None or self._nursery is None:
                return None
            channel = await Channel.connect(
                self._env.network, address.host, address.port, self._client_id, timeout_s=max(timeout_s, 0.001)
            )
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
