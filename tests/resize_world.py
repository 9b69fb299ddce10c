"""Watches over a simulated controller's resizes: every write is held against the rules of ordered resize."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import trio

from protocol.errors import ErrorCode
from protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from protocol.generated.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from protocol.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from protocol.generated.leader_and_isr import LeaderAndIsrRequest
from protocol.generated.stop_replica import StopReplicaRequest
from protocol.generated.update_metadata import UpdateMetadataRequest
from runtime.env import DeleteOp, ZkOp
from tests.controller_world import Log, World
from zk_schemas import paths
from zk_schemas.partition_state import PartitionState
from zk_schemas.topic import TopicZnode

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


async def started(nursery: trio.Nursery, **keys: object) -> World:
    """A controller, its configuration in ``keys``, three brokers, and a topic of four partitions on them."""
    world = World(nursery)
    await world.start_controller(1000, **keys)
    for broker_id in BROKERS:
        await world.start_broker(broker_id)
    await world.until(lambda: any(len(r.live_brokers) == 3 for r in world.brokers[1].sent(UpdateMetadataRequest)))
    await world.request(creation(4, *BROKERS))
    return world


async def resized(world: World, count: int) -> None:
    result = (await world.request(alter(count))).results[0]
    assert result.error_code == ErrorCode.NONE, result.error_message


async def configure(world: World, **config: str) -> int:
    """The error code. Names of keys with underscores for dots."""
    configs = [
        AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value) for name, value in config.items()
    ]
    resource = AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=configs)
    response = await world.request(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    return int(response.responses[0].error_code)


def hold_records(world: World, partitions: range, end: int, start: int = 0, watermark: int | None = None) -> None:
    for broker in world.brokers.values():
        for index in partitions:
            broker.logs[TOPIC, index] = Log(end, end if watermark is None else watermark, start)


class Rules:
    """Checks each multi that ``watch``ed controllers write. ``broken`` says what was wrong, in order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.broken: list[str] = []
        self.writes = 0
        self.after_write: Callable[[int], None] = lambda _number: None
        self._states: dict[int, PartitionState] = {}
        self._topic: TopicZnode | None = None
        self._versions: dict[int, dict[int, int]] = {}
        """The layout version of each leader epoch that a partition had."""

    def watch(self, controller_id: int) -> None:
        session = self.world.sessions[controller_id]
        multi = session.multi

        async def checked(ops: Sequence[ZkOp]) -> list[int]:
            await self._note_epochs()
            versions = await multi(ops)
            await self._compare(ops)
            self.writes += 1
            self.after_write(self.writes)
            return versions

        session.multi = checked  # type: ignore[method-assign]

    async def _note_epochs(self) -> None:
        known = paths.partitions(TOPIC)
        names = await self.world.store.children(known) if await self.world.store.exists(known) is not None else ()
        for index in map(int, names):
            if await self.world.store.exists(paths.partition_state(TOPIC, index)) is not None:
                state = await self.world.state(TOPIC, index)
                self._versions.setdefault(index, {})[state.leader_epoch] = _version(state)

    async def _compare(self, ops: Sequence[ZkOp]) -> None:
        if await self.world.store.exists(paths.topic(TOPIC)) is None:
            return
        topic, states = await self.world.topic(TOPIC), dict(self._states)
        written = {op.path for op in ops}
        for index in sorted(topic.partitions):
            if paths.partition_state(TOPIC, index) in written:
                states[index] = await self.world.state(TOPIC, index)
        for index in self._states.keys() - topic.partitions.keys():
            if await self.world.store.exists(paths.partition_state(TOPIC, index)) is None:
                del states[index]
            else:
                self._break(f"{index} is out of the assignment, and its state is still there")
        for index, state in states.items():
            before = self._states.get(index)
            if before is not None and before != state:
                self._check_change(topic, states, index, before, state)
        for index in self._states.keys() - states.keys():
            self._check_removal(topic, index, ops)
        self._states, self._topic = states, topic

    def _check_change(
        self,
        topic: TopicZnode,
        states: dict[int, PartitionState],
        index: int,
        before: PartitionState,
        now: PartitionState,
    ) -> None:
        if now.leader_epoch < before.leader_epoch:
            self._break(f"the leader epoch of {index} went back")
        if now.leader_epoch == before.leader_epoch and now.layout != before.layout:
            self._break(f"epoch {now.leader_epoch} of {index} has two layouts")
        if before.being_removed and not now.being_removed:
            self._break(f"{index} came back while it was being removed")
        if before.never_led and now.leader >= 0:
            for ancestor, epoch in now.leader_epoch_after_creation.items():
                if epoch < 0:
                    self._break(f"{index} is led before the epoch of {ancestor} is known")
                elif epoch != self._last_epoch_before(ancestor, _version(now)):
                    self._break(f"the map of {index} does not name the last epoch of {ancestor} under the old layout")
                if not self._acknowledged(ancestor, states[ancestor]):
                    self._break(f"{index} is led before {ancestor} has acknowledged")
        marked = [p for p in states if p >= topic.undeleted_partition_count and not states[p].never_led]
        if now.layout != before.layout and index < topic.undeleted_partition_count and marked:
            for p in marked:
                if states[p].sealed_offset < 0:
                    self._break(f"{index} has the new layout before {p} is sealed")
                if states[p].leader_epoch_before_deletion.get(index, -1) >= now.leader_epoch:
                    self._break(f"the map of {p} names an epoch of {index} under the new layout")
                if _version(states[p]) == _version(now):
                    recorded = states[p].leader_epoch_before_deletion.get(index, before.leader_epoch)
                    if recorded != before.leader_epoch:
                        self._break(f"the map of {p} does not name the last epoch of {index} under the old layout")
        if now.sealed_offset != before.sealed_offset and not self._acknowledged(index, now):
            self._break(f"{index} is sealed before its leader has acknowledged")

    def _check_removal(self, topic: TopicZnode, index: int, ops: Sequence[ZkOp]) -> None:
        before = self._states[index]
        if not before.being_removed:
            self._break(f"{index} was removed without a word")
        if index in topic.partitions or topic.last_leader_epochs.get(index) != before.leader_epoch:
            self._break(f"the topic znode was not written with the removal of {index}")
        if topic.last_offsets.get(index, 0) < before.sealed_offset:
            self._break(f"where {index} was sealed at {before.sealed_offset}, it ends at {topic.last_offsets}")
        if self._topic is not None and topic.topic_id == self._topic.topic_id:
            self._break("the topic id stayed when partitions went")
        assert self._topic is not None
        for replica in self._topic.partitions[index]:
            if not self._deleted(replica, index):
                self._break(f"{index} was removed before broker {replica} deleted it")
        if not any(isinstance(op, DeleteOp) for op in ops):
            self._break(f"{index} vanished")

    def _last_epoch_before(self, index: int, version: int) -> int:
        """A partition's last leader epoch under a layout older than this one."""
        return max(epoch for epoch, of in self._versions[index].items() if of < version)

    def _acknowledged(self, index: int, state: PartitionState) -> bool:
        """Whether the leader has answered a LeaderAndIsr with the stored epoch and layout."""
        broker = self.world.brokers.get(state.leader)
        return broker is not None and any(
            told.partition_index == index
            and told.leader_epoch == state.leader_epoch
            and state.layout is not None
            and (told.undeleted_partition_count, told.layout_version) == tuple(state.layout)
            for request in broker.answered
            if isinstance(request, LeaderAndIsrRequest)
            for topic in request.topic_states
            if topic.topic_name == TOPIC
            for told in topic.partition_states
        )

    def _deleted(self, broker_id: int, index: int) -> bool:
        return any(
            stopped.partition_index == index and stopped.delete_partition
            for request in self.world.brokers[broker_id].answered
            if isinstance(request, StopReplicaRequest)
            for topic in request.topic_states
            for stopped in topic.partition_states
        )

    def _break(self, what: str) -> None:
        self.broken.append(f"write {self.writes + 1}: {what}")


def _version(state: PartitionState) -> int:
    return 0 if state.layout is None else state.layout.layout_version


def layouts_told(world: World) -> dict[tuple[int, int], set[tuple[int, int]]]:
    """``{(partition, leader epoch): layouts}`` of every LeaderAndIsr that any broker ever received."""
    told: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for broker in world.brokers.values():
        for request in broker.sent(LeaderAndIsrRequest):
            for topic in request.topic_states:
                for state in topic.partition_states if topic.topic_name == TOPIC else ():
                    layout = (state.undeleted_partition_count, state.layout_version)
                    told.setdefault((state.partition_index, state.leader_epoch), set()).add(layout)
    return told


async def finished(world: World, count: int) -> bool:
    """Whether the topic has ``count`` partitions, all led under one layout, and every broker knows."""
    topic = await world.topic(TOPIC)
    live = await world.store.children(paths.BROKER_IDS)
    told = [world.brokers[int(id)].metadata() for id in live]
    if len(topic.partitions) != count or topic.undeleted_partition_count != count:
        return False
    for index in range(count):
        if await world.store.exists(paths.partition_state(TOPIC, index)) is None:
            return False
        state = await world.state(TOPIC, index)
        if state.layout is None or tuple(state.layout) != (count, topic.layout_version) or state.leader < 0:
            return False
        if any(leaders.get((TOPIC, index)) != state.leader for leaders in told):
            return False
    return True


async def refused(world: World, count: int) -> tuple[ErrorCode, str]:
    """What the refusal says. A dry run says the same, and nothing is written by either."""
    before = [await _znodes(world)]
    results = [(await world.request(alter(count, validate_only=dry))).results[0] for dry in (True, False)]
    assert [await _znodes(world)] == before
    assert results[0] == results[1]
    return ErrorCode(results[0].error_code), results[0].error_message or ""


async def _znodes(world: World) -> list[Any]:
    states = [await world.store.get(paths.partition_state(TOPIC, index)) for index in range(4)]
    return [(await world.store.get(paths.topic(TOPIC))).data, *(state.data for state in states)]


async def led_by(world: World, partition: int, leader: int) -> bool:
    """Whether this broker is the partition's leader; -1: whether it has none."""
    return (await world.state(TOPIC, partition)).leader == leader


async def is_gone(world: World) -> bool:
    """Whether the topic's znode has been deleted."""
    return await world.store.exists(paths.topic(TOPIC)) is None


async def edit(world: World, **changes: object) -> None:
    """Edit the topic znode as a person with ``zkCli`` would."""
    path = paths.topic(TOPIC)
    fields = json.loads((await world.store.get(path)).data)
    for name, value in changes.items():
        if value is None:
            fields.pop(name)
        else:
            fields[name] = value
    await world.store.set(path, json.dumps(fields).encode())
