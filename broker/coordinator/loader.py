"""Read a partition of the offsets topic into memory, in slices that leave the loop to others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
import trio

from broker.coordinator.durable import DurableState
from broker.coordinator.offsets_log import KeyValue, OffsetsLog
from broker.coordinator.records import UnknownRecord, decode
from protocol.primitives import DecodeError

MAX_SLICE_S = 0.002
"""How long a slice of replay may hold the loop."""
RECORDS_PER_CLOCK_READ = 32

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Replayer:
    """Replays log records into a state; what it cannot read it skips."""

    partition: int
    state: DurableState = field(default_factory=DurableState)
    unknown_key_versions: set[int] = field(default_factory=set)

    def replay(self, record: KeyValue) -> None:
        """Apply one record.

        A key type of a newer version stays in the log, with one warning per type (KIP-915). A malformed record is
        reported and skipped: the partition's other groups go on.
        """
        try:
            decoded = decode(*record)
        except DecodeError as error:
            _log.error("skipped a malformed record", topic_partition=self.partition, error=str(error))
            return
        if not isinstance(decoded, UnknownRecord):
            self.state.replay(decoded)
        elif decoded.key_version not in self.unknown_key_versions:
            self.unknown_key_versions.add(decoded.key_version)
            _log.warning(
                "ignored records of an unknown type; they stay in the log",
                topic_partition=self.partition,
                key_version=decoded.key_version,
            )


async def load(log: OffsetsLog, partition: int, monotonic: Callable[[], float]) -> DurableState:
    """Everything the partition's log says, replayed in order. What reading the log raises passes through."""
    replayer = Replayer(partition)
    async for records in log.read_all(partition):
        await trio.lowlevel.checkpoint()
        started = monotonic()
        for at, record in enumerate(records):
            replayer.replay(record)
            if at % RECORDS_PER_CLOCK_READ == 0 and monotonic() - started >= MAX_SLICE_S:
                await trio.lowlevel.checkpoint()
                started = monotonic()
    return replayer.state
