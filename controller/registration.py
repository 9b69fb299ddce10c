"""Registers a controller process in the ephemeral ``/controllers/<id>``, in and out of office.

Brokers read the registrations for DescribeCluster. No election depends on them.
"""

from __future__ import annotations

from contextlib import suppress

import structlog

from anabranch.runtime.env import CreateOp, DeleteOp, NodeExistsError, NoNodeError, Watch, ZkOp, ZkStore
from anabranch.runtime.znode_watch import follow
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.controller import ControllerZnode

logger = structlog.get_logger(__name__)


class ControllerRegistration:
    """Keeps ``/controllers/<id>`` while the session lasts, and creates it again in the next session.

    If another session owns the znode, the znode is replaced, but only once in each session of this process. The owner
    is usually an earlier session of this process, or an ended process with this id. Because of the limit, two running
    controllers with the same id do not replace each other's znode again and again.
    """

    def __init__(self, zk: ZkStore, znode: ControllerZnode) -> None:
        self._zk = zk
        self._znode = znode
        self._path = paths.controller_id(znode.controller_id)
        self._registered_in = 0
        """The id of the session that registered last."""

    async def run(self) -> None:
        """Stay registered until cancelled."""
        await follow(
            self._zk,
            self._register,
            lambda error: logger.warning("controller.not_registered", path=self._path, error=str(error)),
        )

    async def _register(self, watch: Watch) -> None:
        session_id = self._zk.session_id
        found = await self._zk.exists(self._path, watch)
        if found is not None and session_id in (found.ephemeral_owner, self._registered_in):
            return
        with suppress(NodeExistsError):
            await self._zk.create(paths.CONTROLLERS, b"", make_parents=True)
        ops: list[ZkOp] = [CreateOp(self._path, self._znode.encode(), ephemeral=True)]
        if found is not None:
            ops.insert(0, DeleteOp(self._path, found.version))
        with suppress(NodeExistsError, NoNodeError):  # the watch has fired, so the znode is read again
            await self._zk.multi(ops)
            self._registered_in = session_id
