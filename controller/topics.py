"""Handles topics that appear, change or disappear in ZooKeeper because of this controller or of an edit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

import structlog

from anabranch.controller import view
from anabranch.controller.config import ControllerConfig
from anabranch.controller.config_changes import keep_ordered_delivery, take_read
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.events import TopicChanged, TopicListChanged, WatchedStateChanged
from anabranch.controller.first_leader_epoch import raise_above
from anabranch.controller.giving_up import give_up
from anabranch.controller.image import ClusterImage, PartitionImage, TopicImage
from anabranch.controller.partitions import lead_first
from anabranch.controller.reads.topics import FoundChange, FoundTopic, FoundTopics
from anabranch.controller.resize import goal
from anabranch.controller.states import PartitionStatus
from anabranch.controller.store import MAX_OPERATIONS, ImageStaleError
from anabranch.controller.topic_config import ORDERED_KEY, topic_values
from anabranch.controller.topic_id import new_topic_id
from anabranch.ordered_resize.consistency import as_served
from anabranch.ordered_resize.judgement import Setting, Verdict, VerdictKind, judge_edit, judge_found, proven
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import SetOp, ZkError, Znode
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from anabranch.zk_schemas.znode import NO_ID, MalformedZnodeError

logger = structlog.get_logger(__name__)
LOADED_TOGETHER = MAX_OPERATIONS - 1
"""Topics whose znodes are completed by one multi, if they need it."""
NEVER_READ = -1
"""The mzxid of a topic that ZooKeeper refused to show."""


def on_topic_list_changed(context: Context, found: FoundTopics) -> Decisions[None]:
    """Load the new topics, and forget the deleted topics.

    Raises ``ImageStaleError`` if a malformed topic was deleted. Every broker then gets the full list of its replicas.
    """
    image = context.image
    for name in sorted(image.topics.keys() - set(found.names)):
        yield from _forget(context, name)
    if vanished := image.malformed.keys() - set(found.names):
        raise ImageStaleError(f"{paths.topic(min(vanished))} was not loaded before, and is gone now")
    for name, error in found.unread.items():
        give_up(context, f"reading topic {name}", error)
        image.malformed[name] = NEVER_READ
    yield from _load(context, found.new)
    image.created = {}
    yield from lead_first(context, [topic.name for topic in found.new])


def _forget(context: Context, name: str) -> Decisions[None]:
    if name not in context.image.deletions:
        logger.warning("topic.removed_by_hand", topic=name)
    yield from raise_above(context, context.image.topics[name])
    del context.image.topics[name]
    context.events.forget_watch(TopicChanged(name))


def on_topic_changed(context: Context, event: TopicChanged, change: FoundChange) -> Decisions[None]:
    """Take the change of one topic. A new partition count begins a resize or is queued. A refused edit is undone.

    A znode that was created again is a new topic of the same name, whoever deleted the old topic (KAFKA-12257).
    """
    name, found = event.name, change.znode
    known = context.image.topics.get(name)
    if name in context.image.deletions:
        return
    if found is None:
        if known is not None:
            yield from _forget(context, name)
            context.events.put(TopicListChanged())  # a new topic of this name may exist by now, without a watch
        return
    if known is not None and found.czxid != known.czxid:
        logger.warning("topic.recreated_by_hand", topic=name)
        yield from raise_above(context, known)
        del context.image.topics[name]
        known = None
    if known is None:
        yield from _load(context, [] if change.new is None else [change.new])
    elif found.version != known.version:
        try:
            znode = TopicZnode.decode(paths.topic(name), found.data)
        except MalformedZnodeError as error:
            logger.error("topic.edit_undone", path=paths.topic(name), reason=str(error))
            yield from _undo(undone(known, found.version))
            return
        yield from _take_edit(context, known, znode, found.version)
    if name in context.image.topics:
        yield from lead_first(context, [name])


def _take_edit(context: Context, topic: TopicImage, edited: TopicZnode, version: int) -> Decisions[None]:
    """Accept an edit of the topic's znode, or undo an edit that the rules refuse.

    Raises ``ImageStaleError`` for a frozen topic. Then the whole topic is judged again.
    """
    path = paths.topic(topic.name)
    if topic.frozen:
        raise ImageStaleError(f"{path} of a frozen topic was edited")
    effects = decide_edit(context.image, context.config, topic, edited, version)
    verdict: Verdict = effects.response
    if verdict.outcome is VerdictKind.REFUSE:
        logger.error("topic.edit_undone", path=path, reason=verdict.why)
        yield from _undo(effects)
        return
    _log_partly_done(path, verdict)
    yield effects


def _undo(effects: Effects) -> Decisions[None]:
    """Undo an edit. If the znode was edited once more, the watch reports it, and that edit is judged next."""
    try:
        yield effects
    except ImageStaleError as error:
        logger.info("topic.edited_again", reason=str(error))


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


def _load(context: Context, found: Sequence[FoundTopic]) -> Decisions[None]:
    """Take topics with all their partition states into the image. A malformed znode is logged and left out.

    Raises ``ImageStaleError`` if a malformed znode is readable again: the topic is handled when the cluster is read.
    """
    image = context.image
    unread = [topic.name for topic in found if topic.name in image.malformed]
    for start in range(0, len(found), LOADED_TOGETHER):
        loaded: list[_Loaded] = []
        for topic in found[start : start + LOADED_TOGETHER]:
            loaded += yield from _load_topic(context, topic)
        yield from _complete(context, loaded)
    if repaired := [name for name in unread if name in image.topics]:
        raise ImageStaleError(f"{paths.topic(repaired[0])} could not be loaded before, and can be now")


class _Loaded(NamedTuple):
    """A topic that was read, and the effects to write before the topic is taken into the image."""

    topic: TopicImage
    mzxid: int
    effects: Effects


def _load_topic(context: Context, found: FoundTopic) -> Decisions[list[_Loaded]]:
    """Judge a topic that was read. Returns nothing if it is left out."""
    image, name = context.image, found.name
    take_read(image, paths.topic_config(name), found.config)
    if isinstance(found.znode, MalformedZnodeError):
        logger.error("topic.malformed", error=str(found.znode))
        image.malformed[name] = found.read.mzxid
        return []
    image.malformed.pop(name, None)
    topic = TopicImage(name, found.znode, found.read.version, found.read.czxid)
    _take_states(image, topic, found)
    snapshot = _with_stray_states(image, topic, found)
    try:
        if malformed := _malformed_states(topic, found):
            yield Effects(watches=malformed)
        effects = yield from _settle(context, topic, snapshot)
    except ZkError as error:
        _leave_out(context, name, found.read.mzxid, error)
        return []
    return [_Loaded(topic, found.read.mzxid, effects)]


def _complete(context: Context, loaded: Sequence[_Loaded]) -> Decisions[None]:
    """Write the completed znodes of topics, as many as fit in one multi, and take the topics into the image."""
    together = [each for each in loaded if each.effects.writes]
    try:
        yield Effects(groups=[each.effects.writes for each in together])
    except ZkError as error:
        if len(loaded) > 1:  # it is unknown which znode cannot be written
            for each in loaded:
                yield from _complete(context, [each])
            return
        (refused,) = loaded
        _leave_out(context, refused.topic.name, refused.mzxid, error)
        return
    for topic, _, effects in loaded:
        if effects.writes and effects.znode is not None:
            before = topic.znode
            topic.adopt(effects.znode, topic.version + 1)
            goal.log_change(context, topic, before)
        context.image.topics[topic.name] = topic


def _leave_out(context: Context, name: str, mzxid: int, error: ZkError) -> None:
    give_up(context, f"loading topic {name}", error)
    context.image.malformed[name] = mzxid


def _take_states(image: ClusterImage, topic: TopicImage, found: FoundTopic) -> None:
    """Take the states of the assigned partitions. A topic that was just created has none."""
    for index in topic.znode.partitions:
        read = found.states.get(index) if str(index) in found.present else None
        partition = _decoded(image, topic, index, read)
        if partition is not None:
            topic.partitions[index] = partition
    for index in _lost_states(topic, found):
        logger.error("partition_state.lost", path=paths.partition_state(topic.name, index))
        del topic.partitions[index]
        topic.unreadable.add(index)


def _decoded(image: ClusterImage, topic: TopicImage, index: int, read: Znode | None) -> PartitionImage | None:
    """One partition of the image; None if its state is malformed, which is noted in ``topic``."""
    if read is None:
        return PartitionImage(PartitionStatus.NONEXISTENT.enter(PartitionStatus.NEW))
    path = paths.partition_state(topic.name, index)
    try:
        state = PartitionState.decode(path, read.data)
    except MalformedZnodeError as error:
        logger.error("partition_state.malformed", error=str(error))
        topic.unreadable.add(index)
        return None
    status = PartitionStatus.ONLINE if state.leader >= 0 else PartitionStatus.OFFLINE
    # 0 counts every broker as restarted, because the mzxid of a manual edit hides restarts before the edit.
    mzxid = 0 if path in image.suspects else read.mzxid
    return PartitionImage(status, state, read.version, read.czxid, mzxid)


def _lost_states(topic: TopicImage, found: FoundTopic) -> list[int]:
    """Partitions whose state znode was deleted by hand while its parent znode is still there.

    A new state znode would be a new incarnation, and brokers would delete the log of the previous incarnation.
    """
    missing = [index for index in topic.partitions if topic.state(index) is None]
    if len(missing) == len(topic.partitions) and topic.znode.absent:
        return []  # Kafka's controller makes the znodes of a new topic one by one
    return [index for index in missing if str(index) in found.present_after]


def _with_stray_states(image: ClusterImage, topic: TopicImage, found: FoundTopic) -> Snapshot:
    """The snapshot of a topic, with the states of partitions that an edit removed from the assignment."""
    strays = {
        p: _decoded(image, topic, p, found.states[p]) for p in found.states.keys() - topic.znode.partitions.keys()
    }
    snapshot = view.snapshot_of(image, topic)
    states = {p: stray.state for p, stray in sorted(strays.items()) if stray is not None and stray.state is not None}
    return dataclasses.replace(snapshot, states={**snapshot.states, **states})


def _malformed_states(topic: TopicImage, found: FoundTopic) -> list[tuple[TopicPartition, int]]:
    """The malformed states, each with the zkVersion at which it was read."""
    read = ((p, found.states.get(p)) for p in sorted(topic.unreadable))
    return [(TopicPartition(topic.name, p), znode.version) for p, znode in read if znode is not None]


def on_watched_state_changed(context: Context, event: WatchedStateChanged, found: Znode | None) -> Decisions[None]:
    """Handle the change of a watched state. Raises ``ImageStaleError`` unless this controller made the change."""
    yield from ()  # nothing is written
    partition, path = context.image.partition(event.tp), paths.partition_state(*event.tp)
    if partition is None or found is None or found.version != partition.epoch:
        raise ImageStaleError(f"{path} changed; it was malformed, or belonged to a frozen topic")


def _settle(context: Context, topic: TopicImage, snapshot: Snapshot) -> Decisions[Effects]:
    """Judge the znode of a topic that was read: it is complete, is completed, or an edit of it is undone.

    Returns the effects that write the znode. A topic whose znodes contradict each other is frozen. ``snapshot`` has the
    topic's stray states.
    """
    new_id = functools.partial(new_topic_id, context.rng)
    effects = decide_found(context.image, context.config, topic, snapshot, new_id)
    verdict: Verdict = effects.response
    if verdict.outcome is VerdictKind.FREEZE:
        _freeze(topic, snapshot, verdict.why)
        states = {p: found.epoch for p, found in topic.partitions.items() if found.state is not None}
        yield Effects(watches=[(TopicPartition(topic.name, p), version) for p, version in states.items()])
        return effects
    if verdict.outcome is VerdictKind.REFUSE:
        logger.error("topic.edit_undone", path=paths.topic(topic.name), reason=verdict.why)
    else:
        _log_partly_done(paths.topic(topic.name), verdict)
    if effects.znode is not None and effects.znode.ordered_delivery is not None:
        yield from keep_ordered_delivery(context, topic.name, effects.znode.ordered_delivery)
    return effects


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


def _freeze(topic: TopicImage, snapshot: Snapshot, why: str) -> None:
    """Freeze the topic: the layout of its partition states is served until an edit removes the contradiction."""
    logger.error("topic.frozen", path=paths.topic(topic.name), reason=why)
    topic.frozen = why
    topic.znode = as_served(snapshot)
