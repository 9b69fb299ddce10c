"""Topics as they appear, grow and vanish in ZooKeeper, whoever wrote them."""

from __future__ import annotations

import logging
import random
import uuid

import trio

from controller.context import Context
from controller.events import TopicChanged, TopicsChanged
from controller.image import PartitionImage, TopicImage
from controller.partitions import first_elections, write_states
from controller.states import PartitionStatus
from controller.store import ControllerMovedError, ImageStaleError
from runtime.env import SetOp, Znode
from zk_schemas import paths
from zk_schemas.partition_state import PartitionState
from zk_schemas.topic import TopicZnode
from zk_schemas.znode import NO_ID, MalformedZnodeError, format_id

_log = logging.getLogger(__name__)
_CONCURRENT_READS = 64


def new_topic_id(rng: random.Random) -> uuid.UUID:
    """A random topic id whose text does not begin with a dash, so that it can stand on a command line."""
    while True:
        topic_id = uuid.UUID(int=rng.getrandbits(128), version=4)
        if not format_id(topic_id).startswith("-"):
            return topic_id


async def on_topics_changed(context: Context) -> None:
    """Read the list of topics: new ones come online, ones that vanished are forgotten."""
    image = context.image
    names = await context.store.children(paths.TOPICS, context.events.watch(TopicsChanged()))
    for name in sorted(image.topics.keys() - set(names)):
        _forget(context, name)
    image.malformed &= set(names)
    added = [name for name in names if name not in image.topics]
    await load_topics(context, added)
    await write_states(context, first_elections(context, [name for name in added if name in image.topics]))


def _forget(context: Context, name: str) -> None:
    if name not in context.image.deletions:
        _log.warning("topic %s was removed from ZooKeeper by hand", name)
    context.image.topics.pop(name)
    context.events.forget_watch(TopicChanged(name))


async def load_topics(context: Context, names: list[str]) -> None:
    """Read topics with all their partition states into the image; a malformed znode is logged and left out."""
    limit = trio.CapacityLimiter(_CONCURRENT_READS)
    failures: list[Exception] = []

    async def load(name: str) -> None:
        try:
            async with limit:
                await _load_topic(context, name)
        except (ControllerMovedError, ImageStaleError) as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(load, name)
    if failures:
        raise failures[0]


async def on_topic_changed(context: Context, name: str) -> None:
    """Read one topic again. More partitions are created; any other change is written back.

    A znode created anew is another topic of the same name, whoever deleted the one before (KAFKA-12257).
    """
    known = context.image.topics.get(name)
    found = await context.store.get(paths.topic(name), context.events.watch(TopicChanged(name)))
    if name in context.image.deletions:
        return
    if found is None:
        if known is not None:
            _forget(context, name)
            context.events.put(TopicsChanged())  # there may be another of its name by now, with nobody watching it
        return
    if known is not None and found.czxid != known.czxid:
        _log.warning("topic %s was deleted and created again by hand", name)
        del context.image.topics[name]
        known = None
    if known is None:
        await load_topics(context, [name])
    elif found.version != known.version:
        znode = _decode(name, found)
        if znode is None:
            return
        refusal = _edit_refusal(known.znode, znode)
        if refusal is not None:
            _log.error("znode %s: %s; the edit is undone", paths.topic(name), refusal)
            known.version = await _write_topic(context, name, known.znode, found.version)
            return
        if znode.topic_id == NO_ID:
            znode = znode.replace(topic_id=known.znode.topic_id)
        known.znode, known.version = znode, found.version
        await _settle(context, known)
        for index in sorted(znode.partitions.keys() - known.partitions.keys()):
            known.partitions[index] = PartitionImage(PartitionStatus.NONEXISTENT.enter(PartitionStatus.NEW))
    if name in context.image.topics:
        await write_states(context, first_elections(context, [name]))


async def _load_topic(context: Context, name: str) -> None:
    mark = TopicChanged(name)
    found = await context.store.get(paths.topic(name), context.events.watch(mark))
    if found is None:
        return
    znode = _decode(name, found)
    if znode is None:
        context.image.malformed.add(name)
        return
    context.image.malformed.discard(name)
    topic = TopicImage(name, znode, found.version, found.czxid)
    await _settle(context, topic)
    for index in znode.partitions:
        path = paths.partition_state(name, index)
        state_znode = await context.store.get(path)
        if state_znode is None:
            topic.partitions[index] = PartitionImage(PartitionStatus.NONEXISTENT.enter(PartitionStatus.NEW))
            continue
        try:
            state = PartitionState.decode(path, state_znode.data)
        except MalformedZnodeError as error:
            _log.error("%s; the partition is left as it is", error)
            topic.unreadable.add(index)
            continue
        status = PartitionStatus.ONLINE if state.leader >= 0 else PartitionStatus.OFFLINE
        topic.partitions[index] = PartitionImage(
            status, state, state_znode.version, state_znode.czxid, state_znode.mzxid
        )
    context.image.topics[name] = topic


def _decode(name: str, found: Znode) -> TopicZnode | None:
    """The topic, or None with the reason logged when it is malformed."""
    path = paths.topic(name)
    try:
        return TopicZnode.decode(path, found.data)
    except MalformedZnodeError as error:
        _log.error("%s; the topic is left as it is", error)
        return None


def _edit_refusal(known: TopicZnode, edited: TopicZnode) -> str | None:
    if len(edited.partitions) < len(known.partitions):
        return f"{len(known.partitions)} partitions cannot become {len(edited.partitions)}"
    moved = [index for index, replicas in known.partitions.items() if edited.partitions[index] != replicas]
    if moved:
        return f"the replicas of partition {moved[0]} cannot be changed"
    if (edited.adding_replicas, edited.removing_replicas) != (known.adding_replicas, known.removing_replicas):
        return "a reassignment is asked for by AlterPartitionReassignments only"
    if edited.topic_id not in (NO_ID, known.topic_id):
        return "the topic id cannot be changed"
    return None


async def _settle(context: Context, topic: TopicImage) -> None:
    """Write what a topic znode lacks: an id, and counts that equal the assignment while it was never resized."""
    znode, count = topic.znode, len(topic.znode.partitions)
    counts_agree = znode.layout_version > 0 or (
        znode.initial_partition_count == znode.undeleted_partition_count == count
    )
    if znode.complete and counts_agree:
        return
    changes: dict[str, object] = {"complete": True}
    if znode.topic_id == NO_ID:
        changes["topic_id"] = new_topic_id(context.rng)
    if not counts_agree:
        changes |= {"initial_partition_count": count, "undeleted_partition_count": count}
    topic.znode = znode.replace(**changes)
    topic.version = await _write_topic(context, topic.name, topic.znode, topic.version)


async def _write_topic(context: Context, name: str, znode: TopicZnode, version: int) -> int:
    return (await context.store.write([SetOp(paths.topic(name), znode.encode(), version)]))[0]
