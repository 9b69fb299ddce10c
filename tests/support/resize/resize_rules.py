"""Checks a simulated controller's resizes: every write must keep the rules of ordered resize."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.generated.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.runtime.env import NoNodeError, ZkOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import Before, LineageEntry, PartitionLayout, PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from tests.support.controller.controller_cluster import ControllerCluster, Log
from tests.support.resize.resize_histories import nearest_ancestor

TOPIC = "t"
BROKERS = (1, 2, 3)


def creation(partitions: int, *replicas: int) -> CreateTopicsRequest:
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas)) for index in range(partitions)
    ]
    topic = CreatableTopic(name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=assignments)
    return CreateTopicsRequest(topics=[topic], timeout_ms=5000)


def alter(count: int, *, validate_only: bool = False, timeout_ms: int = 30_000) -> CreatePartitionsRequest:
    topics = [CreatePartitionsTopic(name=TOPIC, count=count, assignments=None)]
    return CreatePartitionsRequest(topics=topics, timeout_ms=timeout_ms, validate_only=validate_only)


async def started(nursery: trio.Nursery, **keys: object) -> ControllerCluster:
    """A controller with the configuration ``keys``, three brokers, and a topic with four partitions."""
    cluster = ControllerCluster(nursery)
    await cluster.start_controller(1000, **keys)
    for broker_id in BROKERS:
        await cluster.start_broker(broker_id)
    await cluster.until(lambda: any(len(r.live_brokers) == 3 for r in cluster.brokers[1].sent(UpdateMetadataRequest)))
    await cluster.request(creation(4, *BROKERS))
    return cluster


async def resized(cluster: ControllerCluster, count: int) -> None:
    result = (await cluster.request(alter(count))).results[0]
    assert result.error_code == ErrorCode.NONE, result.error_message


async def configure(cluster: ControllerCluster, **config: str) -> int:
    """Alter the topic's configs, and return the error code. Names of keys have underscores for dots."""
    configs = [
        AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value) for name, value in config.items()
    ]
    resource = AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=configs)
    response = await cluster.request(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    return int(response.responses[0].error_code)


def hold_records(
    cluster: ControllerCluster, partitions: range, end: int, start: int = 0, watermark: int | None = None
) -> None:
    for broker in cluster.brokers.values():
        for index in partitions:
            broker.logs[TOPIC, index] = Log(end, end if watermark is None else watermark, start)


class Rules:
    """Checks each multi-write of the controllers given to ``watch``. ``broken`` has the violations, in order."""

    def __init__(self, cluster: ControllerCluster) -> None:
        self.cluster = cluster
        self.broken: list[str] = []
        self.writes = 0
        self.after_write: Callable[[int], None] = lambda _number: None
        self._states: dict[int, PartitionState] = {}
        self._topic: TopicZnode | None = None
        self._edits: dict[str, bytes | None] = {}
        """What the test itself wrote, by path; None for a deletion. Znodes with this content are not checked."""
        self._decoded: dict[int, tuple[bytes, PartitionState]] = {}
        for name in ("set", "delete"):
            setattr(cluster.store, name, self._noting(getattr(cluster.store, name)))

    def _noting(self, write: Callable[..., Any]) -> Callable[..., Any]:
        async def edit(path: str, data: bytes | None = None, *version: int) -> Any:
            await self._compare()
            self._edits[path] = data
            return await (write(path) if data is None else write(path, data, *version))

        return edit

    def watch(self, controller_id: int) -> None:
        session = self.cluster.sessions[controller_id]
        multi = session.multi

        async def checked(ops: Sequence[ZkOp]) -> list[int]:
            await self._compare()  # if a controller was killed after its last write, that write is not compared yet
            versions = await multi(ops)
            await self._compare()
            self.writes += 1
            self.after_write(self.writes)
            return versions

        session.multi = checked  # type: ignore[method-assign]

    async def _compare(self) -> None:
        """Check the changes since the last call against the rules."""
        edited = self._edits.get(paths.topic(TOPIC))
        found = await self._read(paths.topic(TOPIC))
        if found is None:
            return
        topic = self._topic if found == edited else TopicZnode.decode(paths.topic(TOPIC), found)
        states = dict[int, PartitionState]()
        for index in sorted({*(topic.partitions if topic is not None else ()), *self._states}):
            path = paths.partition_state(TOPIC, index)
            data = await self._read(path)
            if path in self._edits and data == self._edits[path]:
                states.update({index: self._states[index]} if index in self._states else {})
            elif data is not None:
                known = self._decoded.get(index)
                state = known[1] if known is not None and known[0] == data else PartitionState.decode(path, data)
                self._decoded[index], states[index] = (data, state), state
        if topic is None:
            return
        if self._topic is not None:
            self._check(self._topic, topic, states)
        self._states, self._topic = states, topic

    async def _read(self, path: str) -> bytes | None:
        try:
            return (await self.cluster.store.get(path)).data
        except NoNodeError:
            return None

    def _check(self, known: TopicZnode, topic: TopicZnode, states: dict[int, PartitionState]) -> None:
        for index in self._states.keys() & states.keys() - topic.partitions.keys():
            self._break(f"{index} is not in the assignment, but its state still exists")
        if topic.layout_version != known.layout_version:
            self._check_goal(known, topic)
        for index, state in states.items():
            before = self._states.get(index)
            if before is None and topic.layout_version > 0:
                self._check_creation(topic, states, index, state)
            elif before is not None and before != state:
                self._check_change(topic, states, index, before, state)
        for index in self._states.keys() - states.keys():
            self._check_removal(known, topic, index)

    def _check_goal(self, before: TopicZnode, now: TopicZnode) -> None:
        """Check rules 1, 4 and 9."""
        count, old = now.undeleted_partition_count, before.undeleted_partition_count
        if now.layout_version != before.layout_version + 1:
            self._break(f"layout_version {before.layout_version} became {now.layout_version}")
        if now.previous_undeleted_partition_count == count:
            gainers = _losers_of(before)
            if count != before.previous_undeleted_partition_count or not gainers:
                self._break(f"a resize to {old} was cancelled by the count {count}")
            if bumped := [
                p for p in gainers if p in self._states and _layout(before, self._states[p]) == _goal(before)
            ]:
                self._break(f"a resize was cancelled after {bumped[0]} gained keys")
            return
        if now.previous_undeleted_partition_count != old:
            self._break(f"the previous count is {old}, but {now.previous_undeleted_partition_count} is recorded")
        for p in range(old):
            state = self._states.get(p)
            if state is None or _layout(before, state) != _goal(before) or not self._acknowledged(before, p, state):
                self._break(f"a resize begins before {p} has acknowledged the previous resize")
        if leaving := [p for p in range(count) if p in self._states and self._states[p].being_removed]:
            self._break(f"{leaving[0]} is counted while it is being removed")

    def _check_creation(
        self, topic: TopicZnode, states: dict[int, PartitionState], index: int, state: PartitionState
    ) -> None:
        """Check rules 3 and 7."""
        if state.leader_epoch != topic.last_leader_epochs.get(index, -1) + 1:
            self._break(f"{index} begins with leader epoch {state.leader_epoch}")
        if _layout(topic, state) != _goal(topic) or state.leader < 0:
            self._break(f"{index} is created as {state}")
        self._check_gain(topic, states, index, (), state)

    def _check_change(
        self,
        topic: TopicZnode,
        states: dict[int, PartitionState],
        index: int,
        before: PartitionState,
        now: PartitionState,
    ) -> None:
        """Check rules 2, 3, 5 and 8."""
        if now.leader_epoch < before.leader_epoch:
            self._break(f"the leader epoch of {index} went back")
        if before.being_removed and not now.being_removed:
            self._break(f"{index} came back while it was being removed")
        if now.being_removed and not before.being_removed:
            self._check_begun_removal(topic, states, index, before)
        if _layout(topic, now) == _layout(topic, before):
            if (now.before, now.lineage, now.floor) != (before.before, before.lineage, before.floor):
                self._break(f"before, lineage or floor of {index} changed without a bump to another layout")
            return
        if now.leader_epoch != before.leader_epoch + 1 or _layout(topic, now) != _goal(topic):
            self._break(f"{index} has {now.layout} in epoch {now.leader_epoch}, after epoch {before.leader_epoch}")
        if now.before != Before(_layout(topic, before), before.leader_epoch):
            self._break(f"the bump of {index} records {now.before} as the replaced layout")
        if (now.leader, now.isr) != (before.leader, before.isr):
            self._break(f"the bump of {index} changed leader or ISR")
        kept = []
        for entry in before.lineage:
            left = {q: f for q, f in entry.losers.items() if topic.last_leader_epochs.get(q, -1) < f}
            if left != entry.losers and now.floor < entry.epoch:
                self._break(f"{index} pruned an entry of epoch {entry.epoch}, but its floor is {now.floor}")
            kept += [LineageEntry(entry.epoch, left)] if left else []
        self._check_gain(topic, states, index, tuple(kept), now)

    def _check_gain(
        self,
        topic: TopicZnode,
        states: dict[int, PartitionState],
        index: int,
        kept: tuple[LineageEntry, ...],
        now: PartitionState,
    ) -> None:
        losers, expected = _losers_of(topic).get(index, ()), list(kept)
        for loser in losers:
            if _layout(topic, states[loser]) != _goal(topic):
                self._break(f"{index} gains keys before {loser} has the layout")
            if not self._acknowledged(topic, loser, states[loser]):
                self._break(f"{index} gains keys before {loser} has acknowledged")
        if losers:
            last = {q: found.leader_epoch for q in losers if (found := states[q].before) is not None}
            expected.append(LineageEntry(now.leader_epoch, last))
        if list(now.lineage) != expected:
            self._break(f"the lineage of {index} is {now.lineage}, not {expected}")

    def _check_begun_removal(
        self, topic: TopicZnode, states: dict[int, PartitionState], index: int, before: PartitionState
    ) -> None:
        if index < topic.undeleted_partition_count or index < (topic.wanted or 0):
            self._break(f"the removal of {index} begins while the partition is counted")
        if above := [p for p in states if p > index and not states[p].being_removed]:
            self._break(f"the removal of {index} begins before that of {above[0]}")
        if behind := [p for p in _losers_of(topic) if p not in states or _layout(topic, states[p]) != _goal(topic)]:
            self._break(f"the removal of {index} begins before {behind[0]} has gained its keys")
        if not self._acknowledged(topic, index, before):
            self._break(f"the removal of {index} begins before its leader has acknowledged that it is closed")

    def _check_removal(self, known: TopicZnode, topic: TopicZnode, index: int) -> None:
        before = self._states[index]
        if not before.being_removed:
            self._break(f"{index} was removed before its state was marked as being removed")
        if index in topic.partitions or topic.last_leader_epochs.get(index) != before.leader_epoch:
            self._break(f"the topic znode was not written with the removal of {index}")
        if topic.base_offset(index) < known.base_offset(index):
            self._break(f"{index} ended at {known.base_offset(index)}, but the topic has {topic.last_offsets}")
        if topic.topic_id == known.topic_id:
            self._break("the topic id did not change when partitions were removed")
        for replica in known.partitions.get(index, ()):
            if not self._deleted(replica, index):
                self._break(f"{index} was removed before broker {replica} deleted it")

    def _acknowledged(self, topic: TopicZnode, index: int, state: PartitionState) -> bool:
        """Whether the leader has acknowledged a LeaderAndIsr with the stored epoch and layout."""
        broker = self.cluster.brokers.get(state.leader)
        return broker is not None and any(
            sent.partition_index == index
            and sent.leader_epoch == state.leader_epoch
            and (sent.undeleted_partition_count, sent.layout_version) == _layout(topic, state)
            for request in broker.answered
            if isinstance(request, LeaderAndIsrRequest)
            for of_topic in request.topic_states
            if of_topic.topic_name == TOPIC
            for sent in of_topic.partition_states
        )

    def _deleted(self, broker_id: int, index: int) -> bool:
        return any(
            stopped.partition_index == index and stopped.delete_partition
            for request in self.cluster.brokers[broker_id].answered
            if isinstance(request, StopReplicaRequest)
            for topic in request.topic_states
            for stopped in topic.partition_states
        )

    def _break(self, what: str) -> None:
        self.broken.append(f"write {self.writes + 1}: {what}")


def _goal(topic: TopicZnode) -> PartitionLayout:
    return PartitionLayout(topic.undeleted_partition_count, topic.layout_version)


def _layout(topic: TopicZnode, state: PartitionState) -> PartitionLayout:
    return state.layout or PartitionLayout(topic.initial_partition_count, 0)


def _losers_of(topic: TopicZnode) -> dict[int, list[int]]:
    after, before = topic.undeleted_partition_count, topic.previous_undeleted_partition_count
    return _losers(topic.initial_partition_count, after if before is None else before, after)


@functools.cache
def _losers(initial: int, before: int, after: int) -> dict[int, list[int]]:
    """The losers of each gainer, computed without the package under test."""
    found = {p: [nearest_ancestor(p, initial, before)] for p in range(before, after)}
    for p in range(after, before):
        found.setdefault(nearest_ancestor(p, initial, after), []).append(p)
    return found


def layouts_sent(cluster: ControllerCluster) -> dict[tuple[int, int], set[tuple[int, int]]]:
    """``{(partition, leader epoch): layouts}`` from every LeaderAndIsr that any broker has received."""
    sent: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for broker in cluster.brokers.values():
        for request in broker.sent(LeaderAndIsrRequest):
            for topic in request.topic_states:
                for state in topic.partition_states if topic.topic_name == TOPIC else ():
                    layout = (state.undeleted_partition_count, state.layout_version)
                    sent.setdefault((state.partition_index, state.leader_epoch), set()).add(layout)
    return sent


async def finished(cluster: ControllerCluster, count: int) -> bool:
    """Whether the topic has ``count`` partitions under one layout, and brokers with features know their leaders."""
    topic = await cluster.topic(TOPIC)
    live = await cluster.store.children(paths.BROKER_IDS)
    metadata = [broker.metadata() for id in live if (broker := cluster.brokers[int(id)]).features]
    if len(topic.partitions) != count or topic.undeleted_partition_count != count:
        return False
    for index in range(count):
        if await cluster.store.exists(paths.partition_state(TOPIC, index)) is None:
            return False
        state = await cluster.state(TOPIC, index)
        if state.layout is None or tuple(state.layout) != (count, topic.layout_version) or state.leader < 0:
            return False
        if any(leaders.get((TOPIC, index)) != state.leader for leaders in metadata):
            return False
    return True


async def refused(cluster: ControllerCluster, count: int) -> tuple[ErrorCode, str]:
    """The error of a refused resize. A dry run must have the same error. The request and the dry run must not write."""
    before = [await _znodes(cluster)]
    results = [(await cluster.request(alter(count, validate_only=dry))).results[0] for dry in (True, False)]
    assert [await _znodes(cluster)] == before
    assert results[0] == results[1]
    return ErrorCode(results[0].error_code), results[0].error_message or ""


async def _znodes(cluster: ControllerCluster) -> list[Any]:
    states = [await cluster.store.get(paths.partition_state(TOPIC, index)) for index in range(4)]
    return [(await cluster.store.get(paths.topic(TOPIC))).data, *(state.data for state in states)]


async def led_by(cluster: ControllerCluster, partition: int, leader: int) -> bool:
    """Whether this broker is the partition's leader; with -1, whether the partition has no leader."""
    return (await cluster.state(TOPIC, partition)).leader == leader


async def is_gone(cluster: ControllerCluster) -> bool:
    """Whether the topic's znode has been deleted."""
    return await cluster.store.exists(paths.topic(TOPIC)) is None


async def edit(cluster: ControllerCluster, **changes: object) -> None:
    """Edit the topic's znode as an operator with ``zkCli`` does."""
    path = paths.topic(TOPIC)
    fields = json.loads((await cluster.store.get(path)).data)
    for name, value in changes.items():
        if value is None:
            fields.pop(name)
        else:
            fields[name] = value
    await cluster.store.set(path, json.dumps(fields).encode())
