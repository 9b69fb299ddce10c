"""The running controllers, active and standby, as they register in ``/controllers``."""

from __future__ import annotations

import structlog

from anabranch.runtime.env import NoNodeError, Watch, ZkStore
from anabranch.runtime.znode_watch import follow
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.controller import ControllerZnode
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)


class RegisteredControllers:
    """``run`` keeps ``znodes`` up to date: the registrations in the order of their ids, None before the first read."""

    def __init__(self, zk: ZkStore) -> None:
        self._zk = zk
        self.znodes: list[ControllerZnode] | None = None

    async def run(self) -> None:
        """Follow ``/controllers`` until cancelled."""
        await follow(
            self._zk, self._read, lambda error: logger.warning("controller.registrations_not_read", error=str(error))
        )

    async def _read(self, watch: Watch) -> None:
        if await self._zk.exists(paths.CONTROLLERS, watch) is None:  # its watch notices the creation
            self.znodes = []
            return
        found = []
        for name in await self._zk.children(paths.CONTROLLERS, watch):
            path = f"{paths.CONTROLLERS}/{name}"
            try:
                found.append(ControllerZnode.decode(path, (await self._zk.get(path, watch)).data))
            except NoNodeError:  # deleted since: the watch has fired
                continue
            except MalformedZnodeError as error:
                logger.warning("controller.registration_malformed", path=path, error=str(error))
        self.znodes = sorted(found, key=lambda znode: znode.controller_id)
