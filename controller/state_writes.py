"""Writes partition states: to ZooKeeper first, then to the image, then to the batch for the brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from anabranch.controller.context import Context
from anabranch.controller.events import ReassignmentsDue
from anabranch.controller.giving_up import give_up
from anabranch.controller.states import PartitionStatus
from anabranch.controller.store import ImageStaleError, chunks, read_each
from anabranch.protocol.sentinels import NO_INCARNATION
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import CreateOp, SetOp, ZkError, ZkOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import PartitionState


@dataclass(frozen=True, slots=True)
class StateChange:
    """The new state of a partition. ``create``: the state has no znode yet.

    ``isr_only``: the leader requested the change. ``completes``: with the change, all target replicas of a reassignment
    are in sync.
    """

    tp: TopicPartition
    state: PartitionState
    create: bool = False
    isr_only: bool = False
    completes: bool = False


async def write_states(context: Context, changes: Sequence[StateChange]) -> set[TopicPartition]:
    """Write the changes, several to a multi. Returns the partitions whose changes ZooKeeper refused.

    Raises ``ControllerMovedError``, ``ImageStaleError``.
    """
    by_path = _by_path(changes)
    refused: set[TopicPartition] = set()
    for ops in chunks(await _operations(context, [[change] for change in changes])):
        try:
            await _write_chunk(context, ops, by_path)
        except ZkError as error:
            of_chunk = [by_path[op.path].tp for op in ops if op.path in by_path]
            refused.update(of_chunk)
            give_up(context, f"writing {len(of_chunk)} partition states from {of_chunk[0]} on", error)
    return refused


async def write_together(context: Context, groups: Sequence[Sequence[StateChange]]) -> None:
    """Write groups of changes in order; a group is never split between multis.

    Raises ``ControllerMovedError``, ``ImageStaleError``, and ``ZkError`` for a multi that cannot be written. The multis
    before it stay written.
    """
    by_path = _by_path([change for group in groups for change in group])
    for ops in chunks(await _operations(context, groups)):
        await _write_chunk(context, ops, by_path)


def _by_path(changes: Iterable[StateChange]) -> dict[str, StateChange]:
    return {paths.partition_state(*change.tp): change for change in changes}


async def _write_chunk(context: Context, ops: Sequence[ZkOp], by_path: Mapping[str, StateChange]) -> None:
    versions = await context.store.write(ops)
    written = [(by_path[op.path], version) for op, version in zip(ops, versions) if op.path in by_path]
    incarnation = await _incarnation(context, [change for change, _ in written])
    for change, version in written:
        take_state(context, change, version, incarnation)


async def _operations(context: Context, groups: Sequence[Sequence[StateChange]]) -> list[list[ZkOp]]:
    """The operations of each group. The first group that needs a missing parent znode creates it."""
    present = await _present_parents(
        context, {change.tp.topic for group in groups for change in group if change.create}
    )
    operations = []
    for group in groups:
        ops: list[ZkOp] = []
        for change in group:
            path, data = paths.partition_state(*change.tp), change.state.encode()
            if not change.create:
                partition = context.image.partition(change.tp)
                assert partition is not None
                ops.append(SetOp(path, data, partition.epoch))
                continue
            for parent in (paths.partitions(change.tp.topic), paths.partition(*change.tp)):
                if parent not in present:
                    present.add(parent)
                    ops.append(CreateOp(parent, b""))
            ops.append(CreateOp(path, data))
        operations.append(ops)
    return operations


async def _present_parents(context: Context, topics: Iterable[str]) -> set[str]:
    """The parent znodes of partition states that exist."""
    present: set[str] = set()

    async def look(topic: str) -> None:
        path = paths.partitions(topic)
        names = await context.store.children(path)
        if names or await context.store.exists(path) is not None:
            present.update((path, *(f"{path}/{name}" for name in names)))

    await read_each(sorted(topics), look)
    return present


async def _incarnation(context: Context, changes: Sequence[StateChange]) -> int:
    """The czxid that all znodes created by a multi have in common; -1 if the multi created none."""
    created = next((change for change in changes if change.create), None)
    if created is None:
        return NO_INCARNATION
    path = paths.partition_state(*created.tp)
    found = await context.store.exists(path)
    if found is None:
        raise ImageStaleError(f"{path} was removed after this controller had created it")
    return found.czxid


def take_state(context: Context, change: StateChange, version: int, incarnation: int = NO_INCARNATION) -> None:
    """Apply a written change to the image, the batch and the events."""
    partition = context.image.partition(change.tp)
    assert partition is not None
    is_new = change.create or (partition.state is not None and partition.state.never_led)
    context.metrics.note_leader(partition.state, change.state)
    partition.state = change.state
    partition.epoch = version
    partition.mzxid = -1
    context.image.suspects.discard(paths.partition_state(*change.tp))
    if change.create:
        partition.incarnation = incarnation
    context.image.topics[change.tp.topic].flush = context.senders.last_flush + 1
    led = change.state.leader >= 0
    partition.status = partition.status.enter(PartitionStatus.ONLINE if led else PartitionStatus.OFFLINE)
    if change.completes:
        context.events.put(ReassignmentsDue())
    if change.isr_only:
        context.batch.metadata([change.tp])
    else:
        context.batch.leader_and_isr(change.tp, is_new=is_new)
