"""Read a partition of the offsets topic into memory, in slices with other tasks running in between."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from anabranch.broker.coordinator.broker_services import KeyValue, OffsetsLog
from anabranch.broker.coordinator.consumer_offsets_records import UnknownRecord, decode
from anabranch.broker.coordinator.durable import DurableState
from anabranch.broker.coordinator.loaded_partition import LoadedPartition
from anabranch.broker.coordinator.membership import adopt_group
from anabranch.broker.log.slices import TimeSlice
from anabranch.protocol.primitives import DecodeError
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.protocol.types import TopicPartition

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Replayer:
    """Replays log records into a state; it skips records that it cannot read."""

    partition: int
    state: DurableState = field(default_factory=DurableState)
    unknown_key_versions: set[int] = field(default_factory=set)

    def replay(self, record: KeyValue) -> None:
        """Apply one record.

        A record with an unknown key type stays in the log, with one warning per type (KIP-915). A malformed record is
        logged and skipped, so that the partition's other groups are served.
        """
        try:
            decoded = decode(*record)
        except DecodeError as error:
            _log.error("offsets.record_malformed", partition=self._name, error=str(error))
            return
        if not isinstance(decoded, UnknownRecord):
            self.state.replay(decoded)
        elif decoded.key_version not in self.unknown_key_versions:
            self.unknown_key_versions.add(decoded.key_version)
            _log.warning("offsets.records_of_unknown_type", partition=self._name, key_version=decoded.key_version)

    @property
    def _name(self) -> str:
        return str(TopicPartition(OFFSETS_TOPIC, self.partition))


async def read_state(log: OffsetsLog, partition: int, leader_epoch: int, work: TimeSlice) -> DurableState:
    """Replay all records of the partition's log in order, and return the state. Read errors are not caught."""
    replayer = Replayer(partition)
    async for records in log.read_all(partition, leader_epoch):
        for record in records:
            replayer.replay(record)
            if work.due():
                await work.pause()
    return replayer.state


async def adopt_groups(loaded: LoadedPartition, work: TimeSlice) -> None:
    """Build the groups of a partition whose log was read."""
    turn = loaded.turn()
    for group_id in loaded.shard.durable.group_ids():
        adopt_group(turn, group_id)
        if work.due():
            await work.pause()
            turn = loaded.turn()


async def watch_deadlines(loaded: LoadedPartition, work: TimeSlice) -> None:
    """Set the timers of all groups when the partition begins to serve, so that sessions can end."""
    for group_id in list(loaded.shard.groups):
        if loaded.is_closed:
            return
        loaded.schedule(group_id)
        if work.due():
            await work.pause()
