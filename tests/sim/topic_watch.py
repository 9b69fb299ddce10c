"""Sees every write to the znodes of a simulated topic, and keeps the records that are going to be removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from broker.log.partition_log import PartitionLog
from protocol.compression import CorruptRecordError
from protocol.types import TopicPartition
from runtime.sim_zk_tree import Change
from runtime.sim_zk_tree import Event as ZkEvent
from tests.history.events import ARCHIVE, EXPIRED, Drained, Event, Expired, Replica, Sealed
from tests.sim.faults import BROKERS
from tests.sim.recording import Recorder, now_ms, replica_events, stored_batches, stored_event
from tests.sim_cluster import SimCluster
from tests.topic_lives import TopicLives
from zk_schemas import paths
from zk_schemas.partition_state import Layout, PartitionState
from zk_schemas.topic import TopicZnode

_Life = tuple[TopicPartition, int]


class TopicWatch:
    """Tells the recorder of births and removals, layouts and seals in the moment they are written."""

    def __init__(self, cluster: SimCluster, recorder: Recorder, topic: str) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._lives = TopicLives(topic)
        self._archives: dict[_Life, list[Event]] = {}
        """The log of a partition as it was when it was sealed."""
        self._ends: dict[_Life, int] = {}
        self._log_starts: dict[_Life, int] = {}
        """How far any replica's log start has moved."""
        self.expired_values: set[str] = set()
        """The records that log starts have passed."""
        self._publish = cluster.zk.publish
        cluster.zk.publish = self._see  # type: ignore[method-assign]

    @property
    def topic(self) -> str:
        return self._lives.topic

    @property
    def layouts(self) -> list[Layout]:
        return list(self._lives.layouts)

    def znode(self) -> TopicZnode | None:
        path = paths.topic(self.topic)
        found = self._cluster.zk.tree.find(path)
        return None if found is None else TopicZnode.decode(path, found.data)

    def tps(self) -> list[TopicPartition]:
        return self._lives.tps()

    def state(self, number: int) -> PartitionState | None:
        life = self._lives.present.get(number)
        return None if life is None else life.state

    def incarnation(self, tp: TopicPartition) -> int:
        return self._lives.present[tp.partition].incarnation

    def _see(self, events: Sequence[ZkEvent]) -> None:
        prefix = f"{paths.topic(self.topic)}/partitions/"
        for event in events:
            number, _, rest = event.path.removeprefix(prefix).partition("/")
            if event.change is Change.DATA and event.path.startswith(prefix) and rest == "state":
                self._look(int(number))
        self._publish(events)

    def _look(self, number: int) -> None:
        path = PartitionState.path(self.topic, number)
        found, znode = self._cluster.zk.tree.find(path), self.znode()
        if znode is None:
            return
        state = None if found is None else PartitionState.decode(path, found.data)
        for event in self._lives.saw(number, -1 if found is None else found.czxid, state, znode, now_ms()):
            self._recorder.add(event)
            if isinstance(event, Sealed) and state is not None:
                self._archive(event, state)

    def _archive(self, seal: Sealed, state: PartitionState) -> None:
        life = seal.tp, seal.incarnation
        logs: dict[int, list[Event]] = {}
        for broker in sorted(state.isr):
            with suppress(CorruptRecordError):  # a machine that just went down; it is repaired when it starts
                disk = self._cluster.disks[f"broker{broker}"]
                logs[broker] = list(replica_events(disk, ARCHIVE, *life, seal.sealed_offset))
        # A follower may still have what it took as a leader and nobody else has. The leader may just have lost its end.
        whole = [log for broker, log in logs.items() if broker == state.leader and _end(log) >= seal.sealed_offset]
        self._archives[life] = max(whole or logs.values(), key=_end)
        self._ends[life] = seal.sealed_offset

    @contextmanager
    def on_log_starts(self) -> Iterator[None]:
        """Record what retention, and the deletion of records, take away: just before they do."""
        advance = PartitionLog.advance_log_start

        def watched(log: PartitionLog, offset: int) -> bool:
            # A follower that starts again drops what nobody committed, too.
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
                self.expired_values.update(value for value in event.values if value is not None)
        self._recorder.add(Expired(now_ms(), broker, tp, offset, incarnation))

    def archived_values(self) -> set[str]:
        """The records of sealed partitions, gone or not."""
        archives = (event for archive in self._archives.values() for event in archive)
        return {value for event in archives for value in getattr(event, "values", ()) if value is not None}

    def archives(self, group: str) -> list[Event]:
        """What was in the partitions that were sealed, and that the group has read it."""
        found: list[Event] = []
        for (tp, incarnation), archive in self._archives.items():
            found += [Drained(now_ms(), group, tp, self._ends[tp, incarnation], incarnation), *archive]
        return found

    def unfinished(self) -> str:
        """See ``TopicLives``."""
        znode = self.znode()
        return "there is no topic" if znode is None else self._lives.unfinished(znode)


def _end(log: list[Event]) -> int:
    (replica, *_) = log
    assert isinstance(replica, Replica)
    return replica.log_end_offset
