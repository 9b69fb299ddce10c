"""What ZooKeeper says of a topic's partitions, as events: births, removals, layouts, seals; and what a seal closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.types import TopicPartition
from runtime.sim_zk_tree import Change
from runtime.sim_zk_tree import Event as ZkEvent
from tests.history.events import ARCHIVE, Created, Drained, Event, LayoutSet, Removed, Sealed
from tests.sim.recording import Recorder, log_end, now_ms, replica_events
from tests.sim_cluster import SimCluster
from zk_schemas import paths
from zk_schemas.partition_state import Layout, PartitionState
from zk_schemas.topic import TopicZnode


@dataclass
class _Life:
    """One life of a partition. ``archive`` is its log as it was when it was sealed: records are removed after that."""

    tp: TopicPartition
    incarnation: int
    state: PartitionState | None = None
    archive: list[Event] = field(default_factory=list)
    end: int = -1


class TopicWatch:
    """Sees every write to ZooKeeper in the moment it happens."""

    def __init__(self, cluster: SimCluster, recorder: Recorder, topic: str) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self.topic = topic
        self._lives: dict[int, _Life] = {}
        self.gone: list[_Life] = []
        self.layouts: dict[Layout, None] = {}
        """Every layout a partition was led with, in the order of their first use."""
        self._publish = cluster.zk.publish
        cluster.zk.publish = self._see  # type: ignore[method-assign]

    def _see(self, events: Sequence[ZkEvent]) -> None:
        prefix = f"{paths.topic(self.topic)}/partitions/"
        for event in events:
            number, _, rest = event.path.removeprefix(prefix).partition("/")
            if event.change is Change.DATA and event.path.startswith(prefix) and rest == "state":
                self._look(TopicPartition(self.topic, int(number)))
        self._publish(events)

    def znode(self) -> TopicZnode | None:
        found = self._cluster.zk.tree.find(paths.topic(self.topic))
        return None if found is None else TopicZnode.decode(paths.topic(self.topic), found.data)

    def tps(self) -> list[TopicPartition]:
        """The partitions that were led once, the marked ones among them."""
        return [life.tp for _, life in sorted(self._lives.items()) if life.state is not None and life.state.isr]

    def incarnation(self, tp: TopicPartition) -> int:
        return self._lives[tp.partition].incarnation

    def _look(self, tp: TopicPartition) -> None:
        path = PartitionState.path(self.topic, tp.partition)
        found = self._cluster.zk.tree.find(path)
        life = self._lives.get(tp.partition)
        if life is not None and (found is None or found.czxid != life.incarnation):
            self._recorder.add(Removed(now_ms(), tp, life.incarnation))
            self.gone.append(self._lives.pop(tp.partition))
            life = None
        if found is None:
            return
        if life is None:
            life = self._lives[tp.partition] = _Life(tp, found.czxid)
            self._recorder.add(Created(now_ms(), tp, found.czxid))
        before, state = life.state, PartitionState.decode(path, found.data)
        life.state = state
        if state.isr and (before is None or not before.isr or before.leader_epoch != state.leader_epoch):
            self._layout(life, state)
        if state.sealed_offset >= 0 and (before is None or before.sealed_offset != state.sealed_offset):
            self._sealed(life, state)

    def _layout(self, life: _Life, state: PartitionState) -> None:
        znode = self.znode()
        assert znode is not None
        initial = znode.initial_partition_count
        layout = state.layout or Layout(znode.undeleted_partition_count, 0)
        self.layouts[layout] = None
        self._recorder.add(LayoutSet(now_ms(), life.tp, life.incarnation, state.leader_epoch, initial, *layout))

    def _sealed(self, life: _Life, state: PartitionState) -> None:
        self._recorder.add(Sealed(now_ms(), life.tp, life.incarnation, state.sealed_offset))
        longest = max(
            (self._cluster.disks[f"broker{broker}"] for broker in sorted(state.isr)),
            key=lambda disk: log_end(disk, life.tp),
        )
        life.archive = list(replica_events(longest, ARCHIVE, life.tp, state.sealed_offset, life.incarnation))
        life.end = state.sealed_offset

    def stored_values(self) -> set[str]:
        """The records of sealed partitions, gone or not."""
        found: set[str] = set()
        for life in [*self.gone, *self._lives.values()]:
            for event in life.archive:
                found.update(value for value in getattr(event, "values", ()) if value is not None)
        return found

    def archives(self, groups: Sequence[str]) -> list[Event]:
        """What was in the partitions that were sealed, and that the groups have read it."""
        found: list[Event] = []
        for life in [*self.gone, *self._lives.values()]:
            if life.archive:
                found += [Drained(now_ms(), group, life.tp, life.end, life.incarnation) for group in groups]
                found += life.archive
        return found

    def unfinished(self) -> str:
        """What is left to do of the last resize, the removal of marked partitions included; "" for nothing."""
        znode = self.znode()
        if znode is None:
            return "there is no topic"
        wanted = Layout(znode.undeleted_partition_count, znode.layout_version)
        if len(znode.partitions) != znode.undeleted_partition_count:
            marked = {number: life.state for number, life in self._lives.items() if number >= wanted[0]}
            return f"{len(znode.partitions)} partitions of {wanted[0]}: {marked}"
        for number in sorted(znode.partitions):
            life = self._lives.get(number)
            if life is None or life.state is None or life.state.leader < 0:
                return f"partition {number} has no leader: {life}"
            if (life.state.layout or Layout(wanted[0], 0)) != wanted:
                return f"partition {number} has not the layout {wanted}: {life.state}"
        return ""
