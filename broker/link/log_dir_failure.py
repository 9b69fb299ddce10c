"""Reports to the controller that replicas here are offline, by a sequence znode as in Kafka (KIP-112)."""

from __future__ import annotations

import structlog
import trio

from anabranch.runtime.env import ZkError, ZkStore
from anabranch.zk_schemas.log_dir_event import LogDirEvent

logger = structlog.get_logger(__name__)

_RETRY_S = 1.0


class LogDirFailures:
    """Writes to ZooKeeper that replicas of this broker are offline. All reports during a write cause one more write."""

    def __init__(self, zk: ZkStore, broker_id: int) -> None:
        self._zk = zk
        self._event = LogDirEvent(broker_id)
        self._reported = trio.Event()

    def report(self) -> None:
        """Note that a replica cannot be served any more."""
        self._reported.set()

    async def run(self) -> None:
        """Write a notice after each report, and try again until it is written. Runs until cancelled."""
        while True:
            await self._reported.wait()
            self._reported = trio.Event()
            while not await self._write():
                await trio.sleep(_RETRY_S)

    async def _write(self) -> bool:
        try:
            path = await self._zk.create(LogDirEvent.PREFIX, self._event.encode(), sequence=True, make_parents=True)
        except ZkError as error:
            logger.warning("log_dir.failure_not_told", error=str(error))
            return False
        logger.info("log_dir.failure_told", path=path)
        return True
