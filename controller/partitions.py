"""Writing partition states: to ZooKeeper first, then to the image, then to the batch for the brokers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controller import elections
from controller.context import Context
from controller.states import PartitionStatus
from controller.store import ImageStaleError, chunks
from protocol.types import TopicPartition
from runtime.env import CreateOp, SetOp, ZkOp
from zk_schemas import paths
from zk_schemas.partition_state import PartitionState


@dataclass(frozen=True, slots=True)
class StateChange:
    """The new state of a partition; ``create``: it has no znode yet; ``isr_only``: its leader asked for it."""

    tp: TopicPartition
    state: PartitionState
    create: bool = False
    isr_only: bool = False


def elections_after_broker_change(context: Context) -> list[StateChange]:
    """What the present set of live brokers changes: leaders, ISRs, and first leaders of partitions that had none."""
    image = context.image
    electable = image.live_ids()
    changes = []
    for tp, topic, _, state in image.led_partitions():
        replicas = topic.replicas(tp.partition)
        changed = elections.after_broker_change(state, replicas, image.brokers, electable, image.controller_epoch)
        if changed is not None:
            changes.append(StateChange(tp, changed))
    return changes + first_elections(context, image.topics)


def first_elections(context: Context, topics: Iterable[str]) -> list[StateChange]:
    """First states for the new partitions of ``topics`` of which some replica is live."""
    image = context.image
    changes = []
    for name in sorted(topics):
        topic = image.topics[name]
        if name in image.deletions:
            continue
        for index, partition in sorted(topic.partitions.items()):
            if partition.status is not PartitionStatus.NEW:
                continue
            last_epoch = topic.znode.last_leader_epochs.get(index, -1)
            state = elections.first_state(topic.replicas(index), image.live_ids(), image.controller_epoch, last_epoch)
            if state is not None:
                changes.append(StateChange(TopicPartition(name, index), state, create=True))
    return changes


async def write_states(context: Context, changes: Sequence[StateChange]) -> None:
    """Write the changes, several to a multi. Raises ``ControllerMovedError``, ``ImageStaleError``."""
    parents: set[str] = set()
    groups: list[list[ZkOp]] = []
    for change in changes:
        groups.append(await _operations(context, change, parents))
    by_path = {paths.partition_state(*change.tp): change for change in changes}
    for ops in chunks(groups):
        versions = await context.store.write(ops)
        written = [(by_path[op.path], version) for op, version in zip(ops, versions) if op.path in by_path]
        incarnation = await _incarnation(context, [change for change, _ in written])
        for change, version in written:
            _apply(context, change, version, incarnation)


async def _operations(context: Context, change: StateChange, parents: set[str]) -> list[ZkOp]:
    path, data = paths.partition_state(*change.tp), change.state.encode()
    if not change.create:
        partition = context.image.partition(change.tp)
        assert partition is not None
        return [SetOp(path, data, partition.epoch)]
    ops: list[ZkOp] = []
    for parent in (paths.partitions(change.tp.topic), paths.partition(*change.tp)):
        if parent not in parents:
            parents.add(parent)
            if await context.store.exists(parent) is None:
                ops.append(CreateOp(parent, b""))
    return [*ops, CreateOp(path, data)]


async def _incarnation(context: Context, changes: Sequence[StateChange]) -> int:
    """The czxid of the znodes just created: one for all of a multi."""
    created = next((change for change in changes if change.create), None)
    if created is None:
        return -1
    path = paths.partition_state(*created.tp)
    found = await context.store.exists(path)
    if found is None:
        raise ImageStaleError(f"{path} is gone again")
    return found.czxid


def _apply(context: Context, change: StateChange, version: int, incarnation: int) -> None:
    partition = context.image.partition(change.tp)
    assert partition is not None
    partition.state = change.state
    partition.epoch = version
    if change.create:
        partition.incarnation = incarnation
    led = change.state.leader >= 0
    partition.status = partition.status.enter(PartitionStatus.ONLINE if led else PartitionStatus.OFFLINE)
    if change.isr_only:
        context.batch.metadata([change.tp])
    else:
        context.batch.leader_and_isr(change.tp, is_new=change.create)
