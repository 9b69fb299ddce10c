"""Handles topics that appear, change or disappear in ZooKeeper because of this controller or of an edit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from uuid import UUID

import structlog

from anabranch.controller import view
from anabranch.controller.config import ControllerConfig
from anabranch.controller.config_changes import keep_ordered_delivery, read_config
from anabranch.controller.context import Context
from anabranch.controller.effects import Effects, adopt, carry_out
from anabranch.controller.events import TopicChanged, TopicListChanged, WatchedStateChanged
from anabranch.controller.giving_up import give_up
from anabranch.controller.image import ClusterImage, PartitionImage, TopicImage
from anabranch.controller.partitions import lead_first
from anabranch.controller.resize import conversion, goal
from anabranch.controller.states import PartitionStatus
from anabranch.controller.store import ImageStaleError, chunks, read_each
from anabranch.controller.topic_config import ORDERED_KEY, topic_values
from anabranch.controller.topic_id import new_topic_id
from anabranch.ordered_resize.consistency import as_served
from anabranch.ordered_resize.explain import listed
from anabranch.ordered_resize.judgement import Setting, Verdict, VerdictKind, judge_edit, judge_found, proven
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import DeleteOp, SetOp, ZkError, ZkOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.features import LINEAGE_LEVEL, ORDERED_RESIZE
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from anabranch.zk_schemas.znode import NO_ID, MalformedZnodeError

logger = structlog.get_logger(__name__)


async def on_topic_list_changed(context: Context) -> None:
    """Read the list of topics: load the new topics, and forget the deleted topics.

    Raises ``ImageStaleError`` if a malformed topic is gone. Every broker then gets the full list of its replicas.
    """
    image = context.image
    names = await context.store.children(paths.TOPICS, context.events.watch(TopicListChanged()))
    for name in sorted(image.topics.keys() - set(names)):
        _forget(context, name)
    if vanished := image.malformed.keys() - set(names):
        raise ImageStaleError(f"{paths.topic(min(vanished))} was not loaded before, and is gone now")
    added = [name for name in names if name not in image.topics]
    await load_topics(context, added)
    image.created = {}
    await lead_first(context, added)


def _forget(context: Context, name: str) -> None:
    if name not in context.image.deletions:
        logger.warning("topic.removed_by_hand", topic=name)
    context.image.topics.pop(name)
    context.events.forget_watch(TopicChanged(name))


async def load_topics(context: Context, names: list[str]) -> None:
    """Read topics with all their partition states into the image. A malformed znode is logged and left out.

    Raises ``ImageStaleError`` if a malformed znode is readable again. Such a topic is handled when the cluster is read.
    """
    unread = [name for name in names if name in context.image.malformed]
    await read_each(names, functools.partial(_load_topic, context))
    if repaired := [name for name in unread if name in context.image.topics]:
        raise ImageStaleError(f"{paths.topic(repaired[0])} could not be loaded before, and can be now")


async def on_topic_changed(context: Context, name: str) -> None:
    """Read one topic again. A new partition count begins a resize or is queued. A refused edit is undone.

    A znode that was created again is a new topic of the same name, whoever deleted the old topic (KAFKA-12257).
    """
    known = context.image.topics.get(name)
    found = await context.store.get(paths.topic(name), context.events.watch(TopicChanged(name)))
    if name in context.image.deletions:
        return
    if found is None:
        if known is not None:
            _forget(context, name)
            context.events.put(TopicListChanged())  # a new topic of this name may exist by now, without a watch
        return
    if known is not None and found.czxid != known.czxid:
        logger.warning("topic.recreated_by_hand", topic=name)
        del context.image.topics[name]
        known = None
    if known is None:
        await load_topics(context, [name])
    elif found.version != known.version:
        try:
            znode = TopicZnode.decode(paths.topic(name), found.data)
        except MalformedZnodeError as error:
            logger.error("topic.edit_undone", path=paths.topic(name), reason=str(error))
            await _undo(context, undone(known, found.version))
            return
        await _take_edit(context, known, znode, found.version)
    if name in context.image.topics:
        await lead_first(context, [name])


async def _take_edit(context: Context, topic: TopicImage, edited: TopicZnode, version: int) -> None:
    """Accept an edit of the topic's znode, or undo an edit that the rules refuse.

    Raises ``ImageStaleError`` for a frozen topic. Then the whole topic is judged again.
    """
    path = paths.topic(topic.name)
    if topic.frozen:
        raise ImageStaleError(f"{path} of a frozen topic was edited")
    effects = decide_edit(context.image, context.config, topic, edited, version)
    if effects.response.outcome is VerdictKind.REFUSE:
        logger.error("topic.edit_undone", path=path, reason=effects.response.why)
        await _undo(context, effects)
        return
    _log_partly_done(path, effects.response)
    await carry_out(context, effects)


def decide_edit(
    image: ClusterImage, config: ControllerConfig, topic: TopicImage, edited: TopicZnode, version: int
) -> Effects:
    """The effects of an edit, which is stored as zkVersion ``version``. ``response`` is the verdict."""
    try:
        verdict = judge_edit(view.snapshot_of(image, topic), edited, goal.setting_of(image, config, topic))
    except KafkaError as error:
        verdict = Verdict(VerdictKind.REFUSE, topic.znode, error.message or "")
    if verdict.outcome is VerdictKind.REFUSE:
        return dataclasses.replace(undone(topic, version), response=verdict)
    assert verdict.topic is not None
    is_stored = not edited.absent and verdict.topic == edited
    effects = goal.becoming(topic, verdict.topic, version, is_stored=is_stored)
    return dataclasses.replace(effects, response=verdict)


def undone(topic: TopicImage, version: int) -> Effects:
    """The effects that undo an edit stored as zkVersion ``version``."""
    write = SetOp(paths.topic(topic.name), topic.znode.encode(), version)
    return Effects(topic.name, topic.znode, writes=(write,))


async def _load_topic(context: Context, name: str) -> None:
    mark = TopicChanged(name)
    found = await context.store.get(paths.topic(name), context.events.watch(mark))
    if found is None:
        return
    malformed = context.image.malformed
    if malformed.get(name) == found.mzxid:
        return
    await read_config(context, paths.topic_config(name))
    try:
        znode = TopicZnode.decode(paths.topic(name), found.data)
    except MalformedZnodeError as error:
        logger.error("topic.malformed", error=str(error))
        malformed[name] = found.mzxid
        return
    malformed.pop(name, None)
    topic = TopicImage(name, znode, found.version, found.czxid)
    present = await _load_partitions(context, topic)
    for index in await _lost_states(context, topic):
        logger.error("partition_state.lost", path=paths.partition_state(name, index))
        del topic.partitions[index]
        topic.unreadable.add(index)
    try:
        changed = await _convert(context, topic, present)
        if changed is not None:
            await _load_topic(context, name)
            for tp in changed if name in context.image.topics else ():
                context.batch.leader_and_isr(tp)
            return
        await _settle(context, topic, present)
    except ZkError as error:
        give_up(context, f"loading topic {name}", error)
        malformed[name] = found.mzxid
        return
    context.image.topics[name] = topic


async def _convert(context: Context, topic: TopicImage, present: Collection[str]) -> list[TopicPartition] | None:
    """Write lineages into the partition states of a topic that an earlier release resized.

    Returns the changed partitions; the caller has to read the topic again. Returns None when nothing is converted.
    Raises ``ControllerMovedError``, ``ImageStaleError``, ``ZkError``.
    """
    if topic.unreadable or context.image.features.level(ORDERED_RESIZE) < LINEAGE_LEVEL:
        return None
    snapshot = await _with_stray_states(context, topic, present)
    if not any(map(conversion.is_old, snapshot.states.values())):
        return None
    found, _ = conversion.judged(snapshot)
    if found is None:
        return None
    states, tps = found.changed, [TopicPartition(topic.name, p) for p in found.changed]
    groups: list[list[ZkOp]] = [[SetOp(paths.topic(topic.name), found.topic.encode(), topic.version)]]
    groups += [
        [SetOp(paths.partition_state(*tp), states[tp.partition].encode(), topic.partitions[tp.partition].epoch)]
        for tp in tps
    ]
    for p in found.never_led:
        groups.append([DeleteOp(paths.partition_state(topic.name, p)), DeleteOp(paths.partition(topic.name, p))])
    for ops in chunks(groups):
        await context.store.write(ops)
    logger.info("topic.lineages_written", topic=topic.name, partitions=listed(sorted(states)))
    return tps


async def _load_partitions(context: Context, topic: TopicImage) -> Collection[str]:
    """Read the partition states of a topic, many at a time. A topic that was just created has none.

    Returns the names of the partition znodes, which are the parents of the states.
    """
    present = set(await context.store.children(paths.partitions(topic.name)))
    found: dict[int, PartitionImage] = {}

    async def load(index: int) -> None:
        partition = await _load_partition(context, topic, index)
        if partition is not None:
            found[index] = partition

    await read_each([index for index in topic.znode.partitions if str(index) in present], load)
    for index in topic.znode.partitions:
        if index in found or str(index) not in present:
            topic.partitions[index] = found.get(index) or PartitionImage(
                PartitionStatus.NONEXISTENT.enter(PartitionStatus.NEW)
            )
    return present


async def _load_partition(context: Context, topic: TopicImage, index: int) -> PartitionImage | None:
    """Read the state of one partition; None when it is malformed."""
    path = paths.partition_state(topic.name, index)
    found = await context.store.get(path)
    if found is None:
        return PartitionImage(PartitionStatus.NONEXISTENT.enter(PartitionStatus.NEW))
    try:
        state = PartitionState.decode(path, found.data)
    except MalformedZnodeError as error:
        logger.error("partition_state.malformed", error=str(error))
        topic.unreadable.add(index)
        await _await_repair(context, TopicPartition(topic.name, index), found.version)
        return None
    status = PartitionStatus.ONLINE if state.leader >= 0 else PartitionStatus.OFFLINE
    # 0 counts every broker as restarted, because the mzxid of a manual edit hides restarts before the edit.
    mzxid = 0 if path in context.image.suspects else found.mzxid
    return PartitionImage(status, state, found.version, found.czxid, mzxid)


async def _lost_states(context: Context, topic: TopicImage) -> list[int]:
    """Partitions whose state znode was deleted by hand while its parent znode is still there.

    A new state znode would be a new incarnation, and brokers would delete the log of the previous incarnation.
    """
    missing = [index for index in topic.partitions if topic.state(index) is None]
    if not missing:
        return []
    if len(missing) == len(topic.partitions) and topic.znode.absent:
        return []  # Kafka's controller makes the znodes of a new topic one by one
    left = set(await context.store.children(paths.partitions(topic.name)))
    return [index for index in missing if str(index) in left]


async def on_watched_state_changed(context: Context, tp: TopicPartition) -> None:
    """Handle the change of a watched state. Raises ``ImageStaleError`` unless this controller made the change."""
    partition, path = context.image.partition(tp), paths.partition_state(*tp)
    found = await context.store.get(path, context.events.watch(WatchedStateChanged(tp)))
    if partition is not None and partition.state is None and found is None:
        return  # this controller deleted the state when it converted the topic
    if partition is None or found is None or found.version != partition.epoch:
        raise ImageStaleError(f"{path} changed; it was malformed, or belonged to a frozen topic")


async def _await_repair(context: Context, tp: TopicPartition, version: int) -> None:
    """Watch a state that was read at ``version``. If the state changes, everything is read again."""
    path = paths.partition_state(*tp)
    context.image.suspects.add(path)
    watched = await context.store.get(path, context.events.watch(WatchedStateChanged(tp)))
    if watched is None or watched.version != version:
        context.events.put(WatchedStateChanged(tp))


async def _settle(context: Context, topic: TopicImage, present: Collection[str]) -> None:
    """Complete the znode of a topic that was read, undo a refused edit of it, or freeze the topic."""
    found = topic.znode
    snapshot = await _with_stray_states(context, topic, present)
    new_id = functools.partial(new_topic_id, context.rng)
    effects = decide_found(context.image, context.config, topic, snapshot, new_id)
    verdict: Verdict = effects.response
    if effects.znode is None:
        await _freeze(context, topic, snapshot, verdict.why)
        return
    if verdict.outcome is VerdictKind.REFUSE:
        logger.error("topic.edit_undone", path=paths.topic(topic.name), reason=verdict.why)
    else:
        _log_partly_done(paths.topic(topic.name), verdict)
    if effects.znode.ordered_delivery is not None:
        await keep_ordered_delivery(context, topic.name, effects.znode.ordered_delivery)
    if effects.writes:
        versions = await context.store.write(effects.writes)
        adopt(topic, effects.znode, versions[0])
        goal.log_change(context, topic, found)


def decide_found(
    image: ClusterImage, config: ControllerConfig, topic: TopicImage, snapshot: Snapshot, new_id: Callable[[], UUID]
) -> Effects:
    """The effects for a topic that was read and is not in the image yet. ``response`` is the verdict.

    Effects without a ``znode`` freeze the topic. ``snapshot`` has the topic's stray states. ``new_id`` makes the id for
    a znode without a topic id.
    """
    found, path = topic.znode, paths.topic(topic.name)
    is_edited = proven(snapshot).topic != snapshot.topic
    verdict = judge_found(snapshot, goal.setting_of(image, config, topic) if is_edited else Setting())
    if any(map(conversion.is_old, snapshot.states.values())) and (why := conversion.held(snapshot)):
        verdict = Verdict(VerdictKind.FREEZE, why=why)
    if verdict.outcome is VerdictKind.FREEZE:
        return Effects(topic.name, response=verdict)
    znode = (verdict.topic or found).replace(absent=frozenset())
    if znode.topic_id == NO_ID:
        znode = znode.replace(topic_id=new_id())
    if znode.ordered_delivery is None and (znode.layout_version or topic.has_layouts()):
        znode = znode.replace(ordered_delivery=topic_values(image, topic.name)[ORDERED_KEY])
    is_stored = not found.absent and znode == found
    writes = () if is_stored else (SetOp(path, znode.encode(), topic.version),)
    return Effects(topic.name, znode, topic.version, writes=writes, response=verdict)


def _log_partly_done(path: str, verdict: Verdict) -> None:
    if verdict.why:
        logger.warning("topic.edit_taken_in_part", path=path, reason=verdict.why)


async def _with_stray_states(context: Context, topic: TopicImage, present: Collection[str]) -> Snapshot:
    """The snapshot of a topic, with the states of partitions that an edit removed from the assignment.

    ``present``: the names of the partition znodes, which are the parents of the states.
    """
    snapshot = view.snapshot_of(context.image, topic)
    stray = [int(name) for name in sorted(present) if name.isdigit() and int(name) not in topic.znode.partitions]
    states = dict(snapshot.states)
    for index in stray:
        found = await _load_partition(context, topic, index)
        if found is not None and found.state is not None:
            states[index] = found.state
    return dataclasses.replace(snapshot, states=states)


async def _freeze(context: Context, topic: TopicImage, snapshot: Snapshot, why: str) -> None:
    """Freeze the topic: the layout of its partition states is served until an edit removes the contradiction."""
    logger.error("topic.frozen", path=paths.topic(topic.name), reason=why)
    topic.frozen = why
    topic.znode = as_served(snapshot)
    for index, partition in topic.partitions.items():
        if partition.state is not None:
            await _await_repair(context, TopicPartition(topic.name, index), partition.epoch)


async def _undo(context: Context, effects: Effects) -> None:
    """Undo an edit. If the znode was edited once more, the watch reports it, and that edit is judged next."""
    try:
        await carry_out(context, effects)
    except ImageStaleError as error:
        logger.info("topic.edited_again", reason=str(error))
