"""Elects the controller: creates the ephemeral ``/controller`` and raises ``/controller_epoch`` in one multi."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from anabranch.controller.store import wait_connected
from anabranch.runtime.env import (
    BadVersionError,
    CreateOp,
    NodeExistsError,
    NoNodeError,
    SetOp,
    Watch,
    ZkConnectionError,
    ZkOp,
    ZkStore,
)
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.controller import ControllerZnode, decode_controller_epoch, encode_controller_epoch


@dataclass(frozen=True, slots=True)
class Office:
    """A won election: the controller epoch, and the zkVersion of ``/controller_epoch`` that guards every write."""

    controller_epoch: int
    epoch_version: int


async def ensure_paths(zk: ZkStore) -> None:
    """Create the missing persistent znodes that are the parents of all others."""
    for path in paths.PERSISTENT:
        if await zk.exists(path) is None:
            try:
                await zk.create(path, b"", make_parents=True)
            except NodeExistsError:
                continue


async def stand(zk: ZkStore, znode: ControllerZnode) -> Office | None:
    """Try to become the controller. Returns None if another controller was elected.

    A ``/controller`` of an earlier session of this process counts as another controller's, even with this id. The znode
    disappears when that session expires. Raises ``ZkSessionExpiredError``, ``MalformedZnodeError``.
    """
    epoch, version = await _current_epoch(zk)
    ops: list[ZkOp] = [
        CreateOp(paths.CONTROLLER, znode.encode(), ephemeral=True),
        SetOp(paths.CONTROLLER_EPOCH, encode_controller_epoch(epoch + 1), version),
    ]
    try:
        await zk.multi(ops)
    except (NodeExistsError, BadVersionError):
        return None
    except ZkConnectionError:
        await wait_connected(zk)
        if not await find_mine(zk):
            return None
        found_epoch, found_version = await _current_epoch(zk)
        return Office(found_epoch, found_version)
    return Office(epoch + 1, version + 1)


async def wait_for_vacancy(zk: ZkStore) -> None:
    """Return when there is no ``/controller``. Raises ``ControllerMovedError`` when the session is lost."""
    await _wait_until(zk, _find_vacant)


async def wait_until_deposed(zk: ZkStore) -> None:
    """Return when ``/controller`` is deleted or belongs to another session.

    Raises ``ControllerMovedError`` when the session is lost.
    """

    async def deposed(zk: ZkStore, watch: Watch) -> bool:
        return await _find_vacant(zk, watch) or not await find_mine(zk)

    await _wait_until(zk, deposed)


async def _find_vacant(zk: ZkStore, watch: Watch) -> bool:
    return await zk.exists(paths.CONTROLLER, watch) is None


async def _wait_until(zk: ZkStore, condition: Callable[[ZkStore, Watch], Awaitable[bool]]) -> None:
    """Check ``condition`` when the watch fires, and after a reconnect: a lost connection may have removed watches."""
    changed = _Signal()
    unregister = zk.on_state(lambda _state: changed.set())
    try:
        while True:
            changed.clear()
            try:
                if await condition(zk, changed.set):
                    return
            except ZkConnectionError:
                await wait_connected(zk)
                continue
            await changed.wait()
    finally:
        unregister()


class _Signal:
    """An event that can be cleared. ``set`` is always the same callback, so setting a watch again adds no watch."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event = trio.Event()

    async def wait(self) -> None:
        await self._event.wait()


async def find_mine(zk: ZkStore) -> bool:
    """Whether ``/controller`` belongs to this session."""
    found = await zk.exists(paths.CONTROLLER)
    return found is not None and found.ephemeral_owner == zk.session_id


async def _current_epoch(zk: ZkStore) -> tuple[int, int]:
    """The controller epoch and the zkVersion of its znode. If the znode is missing, it is created with epoch 0."""
    while True:
        try:
            found = await zk.get(paths.CONTROLLER_EPOCH)
            return decode_controller_epoch(paths.CONTROLLER_EPOCH, found.data), found.version
        except NoNodeError:
            try:
                await zk.create(paths.CONTROLLER_EPOCH, encode_controller_epoch(0))
            except NodeExistsError:
                continue
