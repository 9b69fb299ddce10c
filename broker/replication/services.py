"""The services that the partitions of one broker share."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.broker.metadata_cache import MetadataCache
from anabranch.broker.replication.flusher import Flusher
from anabranch.broker.replication.isr_changes import IsrChanges
from anabranch.broker.replication.partition import Partition
from anabranch.runtime.env import Clock


class SharedServices:
    """``PartitionServices``, implemented with the broker's parts."""

    def __init__(
        self,
        clock: Clock,
        max_lag_s: float,
        flushes_on_ack: bool,
        metadata: MetadataCache,
        isr_changes: IsrChanges,
        flusher: Flusher,
        storage_failed: Callable[[], None],
    ) -> None:
        self.clock = clock
        self.max_lag_s = max_lag_s
        self.flushes_on_ack = flushes_on_ack
        self._metadata = metadata
        self._isr_changes = isr_changes
        self._flusher = flusher
        self._storage_failed = storage_failed

    def is_live(self, broker_id: int) -> bool:
        return broker_id in self._metadata.brokers

    def propose_isr(self, partition: Partition) -> None:
        self._isr_changes.propose(partition)

    def storage_failed(self) -> None:
        self._storage_failed()

    def flush(self, partition: Partition) -> None:
        self._flusher.flush(partition)
