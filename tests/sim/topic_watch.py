"""Watches every write to the znodes of a simulated topic, and keeps the records that will be removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from anabranch.broker.log.partition_log import PartitionLog
from anabranch.protocol.compression import CorruptRecordError
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import PartitionLayout, PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from sim.zk_tree import WatchedChange
from sim.zk_tree import WatchEvent as ZkEvent
from tests.history.events import ARCHIVE, EXPIRED, Drained, Event, Expired, Removed, Replica, StoredBatch
from tests.sim.faults import BROKERS
from tests.sim.recording import Recorder, now_ms, replica_events, stored_batches, stored_event
from tests.sim.sim_cluster import SimCluster
from tests.support.controller.topic_incarnations import TopicIncarnations

_IncarnationKey = tuple[TopicPartition, int]


class TopicWatch:
    """Records creations, removals and layouts of partitions when they are written."""

    def __init__(self, cluster: SimCluster, recorder: Recorder, topic: str) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._incarnations = TopicIncarnations(topic)
        self._kept: dict[_IncarnationKey, dict[int, StoredBatch]] = {}
        """By base offset: batches that a log start has passed, or that existed when the partition's removal began."""
        self._removed: dict[_IncarnationKey, int] = {}
        """The log ends of partitions that are removed or being removed."""
        self._log_starts: dict[_IncarnationKey, int] = {}
        """The highest log start of any replica."""
        self.expired_values: set[str] = set()
        """The values of records below log starts."""
        self._publish = cluster.zk.publish
        cluster.zk.publish = self._see  # type: ignore[method-assign]

    @property
    def topic(self) -> str:
        return self._incarnations.topic

    @property
    def layouts(self) -> list[PartitionLayout]:
        return list(self._incarnations.layouts)

    def znode(self) -> TopicZnode | None:
        path = paths.topic(self.topic)
        found = self._cluster.zk.tree.find(path)
        return None if found is None else TopicZnode.decode(path, found.data)

    def tps(self) -> list[TopicPartition]:
        return self._incarnations.tps()

    def state(self, number: int) -> PartitionState | None:
        key = self._incarnations.present.get(number)
        return None if key is None else key.state

    def incarnation(self, tp: TopicPartition) -> int:
        return self._incarnations.present[tp.partition].incarnation

    def _see(self, events: Sequence[ZkEvent]) -> None:
        prefix = f"{paths.topic(self.topic)}/partitions/"
        for event in events:
            number, _, rest = event.path.removeprefix(prefix).partition("/")
            if event.change is WatchedChange.DATA and event.path.startswith(prefix) and rest == "state":
                self._look(int(number))
        self._publish(events)

    def _look(self, number: int) -> None:
        path = PartitionState.path(self.topic, number)
        found, znode = self._cluster.zk.tree.find(path), self.znode()
        if znode is None:
            return
        state, before = None if found is None else PartitionState.decode(path, found.data), self.state(number)
        for event in self._incarnations.saw(number, -1 if found is None else found.czxid, state, znode, now_ms()):
            self._recorder.add(event)
            if isinstance(event, Removed) and before is not None:
                self._archive((event.tp, event.incarnation), before)

    def _archive(self, key: _IncarnationKey, state: PartitionState) -> None:
        """Keep the log of a partition whose removal begins; ``state`` is its previous state."""
        logs: dict[int, list[Event]] = {}
        for broker in sorted(state.isr):
            with suppress(CorruptRecordError):  # the machine has just crashed; the next start repairs its log
                logs[broker] = list(replica_events(self._cluster.disks[f"broker{broker}"], ARCHIVE, *key, 0))
        # A follower may still have uncommitted records from its time as leader. The leader may just have lost its tail.
        shortest = min((_end(log) for broker, log in logs.items() if broker != state.leader), default=0)
        led = [log for broker, log in logs.items() if broker == state.leader and _end(log) >= shortest]
        log = (led or sorted(logs.values(), key=_end) or [[]])[0]
        kept = self._kept.setdefault(key, {})
        kept.update((event.base_offset, event) for event in log if isinstance(event, StoredBatch))
        ends = [batch.next_offset for batch in kept.values()]
        self._removed[key] = max([*ends, *([_end(log)] if log else [])], default=0)

    @contextmanager
    def on_log_starts(self) -> Iterator[None]:
        """Record the records that retention and DeleteRecords remove, just before their removal."""
        advance = PartitionLog.advance_log_start

        def watched(log: PartitionLog, offset: int) -> bool:
            # A restarted follower also drops uncommitted records, which do not expire.
            if log.partition.topic == self.topic and log.log_start_offset < offset <= log.high_watermark:
                self._expire(log, offset, log._storage)
            return advance(log, offset)

        PartitionLog.advance_log_start = watched  # type: ignore[method-assign]
        try:
            yield
        finally:
            PartitionLog.advance_log_start = advance  # type: ignore[method-assign]

    def _expire(self, log: PartitionLog, offset: int, storage: Any) -> None:
        tp, incarnation = log.partition, log.identity.incarnation
        before = self._log_starts.get((tp, incarnation), 0)
        if offset <= before or storage.fenced:
            return
        self._log_starts[tp, incarnation] = offset
        broker = next(broker for broker in BROKERS if self._cluster.disks[f"broker{broker}"] is storage.disk)
        for batch in stored_batches(storage, tp):
            if before <= batch.base_offset < offset:
                event = stored_event(EXPIRED, tp, incarnation, batch)
                self._recorder.add(event)
                archived = msgspec.structs.replace(event, broker=ARCHIVE)
                self._kept.setdefault((tp, incarnation), {})[batch.base_offset] = archived
                self.expired_values.update(value for value in event.values if value is not None)
        self._recorder.add(Expired(now_ms(), broker, tp, offset, incarnation))

    def archived_values(self) -> set[str]:
        """The values of records in partitions that are removed or being removed."""
        batches = (batch for key in self._removed for batch in self._kept[key].values())
        return {value for batch in batches for value in batch.values if value is not None}

    def archives(self, group: str) -> list[Event]:
        """The events of removed partitions: their records, and ``Drained``, because the group must have read them."""
        found: list[Event] = []
        for key, end in self._removed.items():
            batches = [batch for _, batch in sorted(self._kept[key].items())]
            start = batches[0].base_offset if batches else end
            found.append(Drained(now_ms(), group, key[0], end, key[1]))
            found.append(Replica(now_ms(), ARCHIVE, key[0], start, end, end, incarnation=key[1]))
            found += batches
        return found

    def unfinished(self) -> str:
        """The unfinished part of the last resize: see ``TopicIncarnations``."""
        znode = self.znode()
        return "there is no topic" if znode is None else self._incarnations.unfinished(znode)


def _end(log: list[Event]) -> int:
    (replica, *_) = log
    assert isinstance(replica, Replica)
    return replica.log_end_offset
