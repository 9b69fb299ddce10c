"""Syncs logs as soon as they have new records (``log.flush=ack``). Each log has one sync at a time.

Records appended during a sync are written to disk by the next sync (group commit).
"""

from __future__ import annotations

import structlog
import trio

from anabranch.broker.replication.partition import Partition
from anabranch.protocol.errors import KafkaError

RETRY_S = 1.0

logger = structlog.get_logger(__name__)


class Flusher:
    """Tasks run in ``nursery`` while there is something to sync."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._asked: dict[Partition, bool] = {}
        """The partitions that are synced now, each with whether another sync was requested meanwhile."""

    def flush(self, partition: Partition) -> None:
        """Sync everything appended so far, soon."""
        if partition in self._asked:
            self._asked[partition] = True
        else:
            self._asked[partition] = True
            self._nursery.start_soon(self._run, partition)

    async def _run(self, partition: Partition) -> None:
        try:
            while self._asked[partition]:
                self._asked[partition] = False
                try:
                    await partition.log.flush()
                except KafkaError as error:
                    if partition.log.is_broken:
                        raise
                    logger.warning("log.sync_delayed", partition=str(partition.key), error=str(error))
                    self._asked[partition] = True  # no space, or no descriptor: requests wait for the next sync
                    await trio.sleep(RETRY_S)
                else:
                    partition.flushed()
        except Exception as error:  # any error: records that may not be on disk are not acknowledged
            logger.error("log.not_synced", partition=str(partition.key), error=str(error))
            if not partition.log.is_broken:
                partition.log.fail(f"sync failed: {error}")
            partition.fail()
        finally:
            del self._asked[partition]
