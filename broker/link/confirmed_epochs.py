"""Confirms in ZooKeeper the epochs of a controller's request that are newer than those this broker knows (ADR 67).

A controller raises ``/controller_epoch`` with its election, before it sends any request. A broker epoch is the czxid of
this broker's znode. So an epoch that ZooKeeper does not have is made up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog
import trio

from anabranch.protocol.sentinels import NO_EPOCH
from anabranch.runtime.env import NoNodeError, ZkConnectionError, ZkSessionExpiredError, ZkStore
from anabranch.runtime.memory_budget import MemoryBudget
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.controller import decode_controller_epoch
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)

_RETRY_S = 0.2
MOST_WAITING = 64
"""More than the connections that controllers have to a broker: one for each, and those that ended unnoticed."""


class SharedRead:
    """Reads a number that only grows, for any number of callers.

    The read of a caller's answer began after the call, unless it found the number that the caller wants.
    """

    def __init__(self, read: Callable[[], Awaitable[int]]) -> None:
        self._read = read
        self._reading = trio.Lock()
        self._begun = 0
        self._found = (0, NO_EPOCH)
        """The number of the last read that succeeded, and its answer."""

    async def __call__(self, wanted: int) -> int:
        begun_before = self._begun
        async with self._reading:
            if self._found[0] <= begun_before and self._found[1] != wanted:
                self._begun += 1
                self._found = self._begun, await self._read()
            return self._found[1]


class WaitingOrders:
    """The requests of controllers with epochs that are not confirmed yet: ``MOST_WAITING``, in memory of their own."""

    def __init__(self, max_bytes: int) -> None:
        self._memory = MemoryBudget(max_bytes)
        self._count = 0

    def admit(self) -> bool:
        """Count one more request, if there is room. The last one may be larger than what is left of the memory."""
        has_room = self._count < MOST_WAITING and self._memory.free_bytes != 0
        self._count += has_room
        return has_room

    @contextmanager
    def holding(self, decoded_bytes: int) -> Iterator[None]:
        """Count the memory of a request that was admitted. At the end the request does not count any more."""
        self._memory.take(decoded_bytes)
        try:
            yield
        finally:
            self._memory.take(-decoded_bytes)
            self._count -= 1


class ConfirmedEpochs:
    """Waits while ZooKeeper cannot be reached: a refused controller would resign, and nobody else could be asked."""

    def __init__(self, zk: ZkStore, broker_id: int, max_waiting_bytes: int) -> None:
        self._zk = zk
        self._path = paths.broker_id(broker_id)
        self.controller = SharedRead(lambda: self._until_connected(self._read_controller))
        """The epoch of the controller in office."""
        self.registration = SharedRead(lambda: self._until_connected(self._read_registration))
        """The broker epoch of this broker's present registration."""
        self.waiting = WaitingOrders(max_waiting_bytes)
        self._is_logged = False

    def believed(self) -> None:
        """Note that a controller was elected."""
        self._is_logged = False

    def not_believed(self, client: str, epoch: int, stored: int) -> None:
        """Log the first request that is refused. Others are logged after the next election."""
        if not self._is_logged:
            self._is_logged = True
            logger.warning("controller.not_confirmed", client=client, epoch=epoch, stored=stored)

    async def _until_connected(self, read: Callable[[], Awaitable[int]]) -> int:
        while True:
            try:
                return await read()
            except (ZkConnectionError, ZkSessionExpiredError):
                await trio.sleep(_RETRY_S)

    async def _read_controller(self) -> int:
        await self._zk.sync(paths.CONTROLLER_EPOCH)
        try:
            znode = await self._zk.get(paths.CONTROLLER_EPOCH)
            return decode_controller_epoch(paths.CONTROLLER_EPOCH, znode.data)
        except (NoNodeError, MalformedZnodeError):
            return NO_EPOCH

    async def _read_registration(self) -> int:
        await self._zk.sync(self._path)
        stat = await self._zk.exists(self._path)
        return NO_EPOCH if stat is None else stat.czxid
