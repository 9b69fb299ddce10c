"""Writing partition states: to ZooKeeper first, then to the image, then to the batch for the brokers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from anabranch.controller import leader_selection
from anabranch.controller.context import Context
from anabranch.controller.events import FirstLeadersDue
from anabranch.controller.giving_up import give_up
from anabranch.controller.image import Led, TopicImage
from anabranch.controller.states import PartitionStatus
from anabranch.controller.store import MAX_OPERATIONS, ImageStaleError, chunks, read_each
from anabranch.controller.topic_config import unclean_election_allowed
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import CreateOp, SetOp, ZkError, ZkOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import NO_LEADER, PartitionState

logger = structlog.get_logger(__name__)
FIRST_LEADERS_AT_ONCE = MAX_OPERATIONS // 2 - 1
"""Partitions that get a first state before other events are handled. Each takes two operations of a multi."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """The new state of a partition; ``create``: it has no znode yet; ``isr_only``: its leader requested the change."""

    tp: TopicPartition
    state: PartitionState
    create: bool = False
    isr_only: bool = False


async def elect_after_broker_change(context: Context) -> None:
    """Update leaders and ISRs for the live brokers, and elect first leaders of partitions that never had one."""
    await elect(context, list(context.image.led_partitions()))
    await lead_first(context, context.image.topics)


async def elect_offline(context: Context) -> None:
    """Elect leaders again for the partitions that have none: a replica of theirs may be electable now."""
    await elect(context, [led for led in context.image.led_partitions() if led[3].leader == NO_LEADER])


async def elect(context: Context, partitions: Sequence[Led]) -> None:
    """Update the leaders and ISRs of these partitions for the live brokers.

    A leader that is gone is replaced, and a replica that is gone leaves the ISR. An unclean leader is the last resort,
    where the topic allows it.
    """
    image, began = context.image, context.clock.monotonic()
    changes, hopeless = [], []
    for tp, topic, partition, state in partitions:
        replicas, live, electable = topic.replicas(tp.partition), image.serving(tp), image.electable(tp)
        if leader_selection.needs_unclean(state, replicas, live, electable):
            hopeless.append((tp, topic, partition, state))
            continue
        restarted = [id for id in state.isr if id in live and 0 <= partition.mzxid < live[id].epoch]
        if restarted:
            changed = leader_selection.after_unseen_restart(
                state, replicas, restarted, live, electable, image.controller_epoch
            )
        else:
            changed = leader_selection.after_broker_change(state, replicas, live, electable, image.controller_epoch)
        if changed is not None:
            changes.append(StateChange(tp, changed))
    default = context.config.unclean_leader_election_enable
    for tp, topic, _, state in hopeless:
        unclean = unclean_election_allowed(image, tp.topic, default)
        changed = leader_selection.after_broker_change(
            state,
            unclean_order(topic, tp.partition) if unclean else topic.replicas(tp.partition),
            image.serving(tp),
            image.electable(tp),
            image.controller_epoch,
            unclean=unclean,
        )
        if changed is None:
            continue
        if changed.leader != NO_LEADER:
            logger.warning("election.unclean", partition=str(tp), leader=changed.leader, isr=state.isr)
        changes.append(StateChange(tp, changed))
    await write_states(context, changes)
    if changes:
        context.metrics.election_ms.observe((context.clock.monotonic() - began) * 1000)


def unclean_order(topic: TopicImage, partition: int) -> list[int]:
    """The replicas, preferred ones first. Those that are being added have the fewest records, and are last."""
    adding = topic.znode.adding_replicas.get(partition, [])
    return sorted(topic.replicas(partition), key=lambda replica: replica in adding)


async def lead_first(context: Context, topics: Iterable[str]) -> None:
    """Write first states for new partitions of ``topics`` that have an electable replica.

    One call writes a limited number, and ``FirstLeadersDue`` continues with the rest: other events do not wait for all.
    """
    image = context.image
    image.awaiting_first_leaders.update(dict.fromkeys(topics))
    names = sorted(image.awaiting_first_leaders.keys() & image.topics.keys())
    found = first_elections(context, names)
    refused = await write_states(context, list(itertools.islice(found, FIRST_LEADERS_AT_ONCE)))
    following = None if refused else next(found, None)
    left = names[names.index(following.tp.topic) :] if following is not None else []
    image.awaiting_first_leaders = dict.fromkeys(left)
    if left:
        context.events.put(FirstLeadersDue())


def first_elections(context: Context, topics: Iterable[str]) -> Iterator[StateChange]:
    """First states for the new partitions of ``topics`` that have an electable replica."""
    image = context.image
    for name in sorted(topics):
        topic = image.topics[name]
        if name in image.deletions or topic.frozen or (topic.unreadable and topic.has_layouts()):
            continue  # it is unknown which partitions are new as long as a state is unreadable
        gained = topic.moves.losers_of
        for index, partition in sorted(topic.partitions.items()):
            if partition.status is not PartitionStatus.NEW or index >= topic.znode.undeleted_partition_count:
                continue
            if index in gained:
                continue  # a partition that a grow adds gets a leader once the partitions that lose keys have answered
            tp = TopicPartition(name, index)
            electable = image.electable(tp)
            state = leader_selection.first_state(topic.replicas(index), electable, image.controller_epoch)
            if state is not None:
                yield StateChange(tp, state, create=True)


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
    before it are then written.
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
    """The czxid of the znodes that a multi created, the same for all of them; -1 when it created none."""
    created = next((change for change in changes if change.create), None)
    if created is None:
        return -1
    path = paths.partition_state(*created.tp)
    found = await context.store.exists(path)
    if found is None:
        raise ImageStaleError(f"{path} was removed after this controller had created it")
    return found.czxid


def take_state(context: Context, change: StateChange, version: int, incarnation: int = -1) -> None:
    """Take a written change into the image and the batch."""
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
    if change.isr_only:
        context.batch.metadata([change.tp])
    else:
        context.batch.leader_and_isr(change.tp, is_new=is_new)
