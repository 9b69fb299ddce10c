"""Topics as they appear, grow and vanish in ZooKeeper, whoever wrote them."""

from __future__ import annotations

import functools
import logging

from controller.configs import keep_ordered_delivery
from controller.context import Context
from controller.events import ResizesDue, StateChanged, TopicChanged, TopicsChanged
from controller.giving_up import give_up
from controller.image import PartitionImage, TopicImage
from controller.partitions import lead_first
from controller.resize import checks, consistency, unseen
from controller.resize.step_log import log_step
from controller.states import PartitionStatus
from controller.store import ImageStaleError, read_each
from controller.topic_config import topic_values
from controller.topic_id import new_topic_id
from protocol.errors import KafkaError
from protocol.types import TopicPartition
from runtime.env import SetOp, ZkError, Znode
from zk_schemas import paths
from zk_schemas.partition_state import PartitionState
from zk_schemas.topic import TopicZnode
from zk_schemas.znode import NO_ID, MalformedZnodeError

_log = logging.getLogger(__name__)


async def on_topics_changed(context: Context) -> None:
    """Read the list of topics: new ones come online, ones that vanished are forgotten.

    Raises ``ImageStaleError`` when one vanished that could not be read: every broker is told then what it hosts.
    """
    image = context.image
    names = await context.store.children(paths.TOPICS, context.events.watch(TopicsChanged()))
    for name in sorted(image.topics.keys() - set(names)):
        _forget(context, name)
    if vanished := image.malformed.keys() - set(names):
        raise ImageStaleError(f"{paths.topic(min(vanished))} could not be read, and is gone")
    added = [name for name in names if name not in image.topics]
    await load_topics(context, added)
    image.created = {}
    await lead_first(context, added)


def _forget(context: Context, name: str) -> None:
    if name not in context.image.deletions:
        _log.warning("topic %s was removed from ZooKeeper by hand", name)
    context.image.topics.pop(name)
    context.events.forget_watch(TopicChanged(name))


async def load_topics(context: Context, names: list[str]) -> None:
    """Read topics with all their partition states into the image; a malformed znode is logged and left out.

    Raises ``ImageStaleError`` when one can be read again: there is more to be done about it than about a new one.
    """
    unread = [name for name in names if name in context.image.malformed]
    await read_each(names, functools.partial(_load_topic, context))
    if repaired := [name for name in unread if name in context.image.topics]:
        raise ImageStaleError(f"{paths.topic(repaired[0])} could not be read, and now can")


async def on_topic_changed(context: Context, name: str) -> None:
    """Read one topic again. Another count begins a resize; any other change is written back.

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
        znode = _decode(name, found, "the edit is undone")
        if znode is None:
            await _undo(context, known, found.version)
            return
        await _take_edit(context, known, znode, found.version)
    if name in context.image.topics:
        await lead_first(context, [name])


async def _take_edit(context: Context, topic: TopicImage, edited: TopicZnode, version: int) -> None:
    """Begin the resize that an edit of the topic asks for, whoever made it; undo an edit that may not be."""
    known = topic.znode
    edited = edited.replace(**{name: getattr(known, name) for name in edited.absent})
    refusal = checks.edit_refusal(known, edited)
    count = checks.edited_count(known, edited)
    if refusal is None and count != known.undeleted_partition_count:
        try:
            await checks.check(context, topic, count)
        except KafkaError as error:
            refusal = error.message
    if refusal is not None:
        _log.error("znode %s: %s; the edit is undone", paths.topic(topic.name), refusal)
        await _undo(context, topic, version)
        return
    begun = checks.begun(known, edited)
    if count != known.undeleted_partition_count and begun.ordered_delivery is None:
        config = await topic_values(context, topic.name)
        begun = begun.replace(ordered_delivery=bool(config[unseen.ORDERED_KEY]))
    topic.version = version
    if edited.absent or begun != edited:
        topic.version = await _write_topic(context, topic.name, begun, version)
    topic.znode = begun
    for index in sorted(begun.partitions.keys() - topic.partitions.keys() - topic.unreadable):
        topic.partitions[index] = PartitionImage(PartitionStatus.NONEXISTENT.enter(PartitionStatus.NEW))
    if count != known.undeleted_partition_count:
        log_step(context, topic, "asked-for", [])
        context.batch.metadata(TopicPartition(topic.name, index) for index in sorted(topic.partitions))
        context.events.put(ResizesDue())


async def _load_topic(context: Context, name: str) -> None:
    mark = TopicChanged(name)
    found = await context.store.get(paths.topic(name), context.events.watch(mark))
    if found is None:
        return
    malformed = context.image.malformed
    if malformed.get(name) == found.mzxid:
        return
    znode = _decode(name, found, "the topic is left as it is")
    if znode is None:
        malformed[name] = found.mzxid
        return
    malformed.pop(name, None)
    topic = TopicImage(name, znode, found.version, found.czxid)
    if context.image.configs_unread is not None:
        context.image.configs_unread.add(name)
    await _load_partitions(context, topic)
    for index in await _lost_states(context, topic):
        _log.error("znode %s is gone; the partition is left as it is", paths.partition_state(name, index))
        del topic.partitions[index]
        topic.unreadable.add(index)
    try:
        can_be = await _set_aside(context, topic) and await _settle(context, topic)
    except ZkError as error:
        give_up(context, f"topic {name}", error)
        can_be = False
    if can_be:
        context.image.topics[name] = topic
    else:
        malformed[name] = found.mzxid


async def _load_partitions(context: Context, topic: TopicImage) -> None:
    """Read the states, many at a time; of a topic that was created just now there are none to be read."""
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


async def _load_partition(context: Context, topic: TopicImage, index: int) -> PartitionImage | None:
    """None: its state is malformed."""
    path = paths.partition_state(topic.name, index)
    found = await context.store.get(path)
    if found is None:
        return PartitionImage(PartitionStatus.NONEXISTENT.enter(PartitionStatus.NEW))
    try:
        state = PartitionState.decode(path, found.data)
    except MalformedZnodeError as error:
        _log.error("%s; the partition is left as it is", error)
        topic.unreadable.add(index)
        await _await_repair(context, path, found.version)
        return None
    status = PartitionStatus.ONLINE if state.leader >= 0 else PartitionStatus.OFFLINE
    mzxid = 0 if path in context.image.suspects else found.mzxid  # who restarted since it was edited, nobody saw
    return PartitionImage(status, state, found.version, found.czxid, mzxid)


async def _lost_states(context: Context, topic: TopicImage) -> list[int]:
    """Partitions whose state somebody has taken away: a state made anew would be another incarnation, before which
    brokers delete what they have of the partition. The znode above it was made and would be removed together with it.
    """
    missing = [index for index in topic.partitions if topic.state(index) is None]
    if not missing:
        return []
    if len(missing) == len(topic.partitions) and topic.znode.absent:
        return []  # Kafka's controller makes the znodes of a new topic one by one
    left = set(await context.store.children(paths.partitions(topic.name)))
    return sorted({index for index in missing if str(index) in left} | set(unseen.lost_states(topic)))


async def _set_aside(context: Context, topic: TopicImage) -> bool:
    """Leave the states alone that cannot be; False when it may as well be the topic that is wrong."""
    examined = consistency.examine(topic)
    for index, why in examined.wrong.items():
        path = paths.partition_state(topic.name, index)
        left = "the partition" if examined.is_told else f"that, or {paths.topic(topic.name)}, is wrong; the topic"
        _log.error("znode %s: %s; %s is left as it is", path, why, left)
        await _await_repair(context, path, topic.partitions[index].epoch)
        if examined.is_told:
            del topic.partitions[index]
            topic.unreadable.add(index)
    return examined.is_told


async def _await_repair(context: Context, path: str, version: int) -> None:
    """Have everything read again when the state, read at ``version``, is another."""
    context.image.suspects.add(path)
    watched = await context.store.get(path, context.events.watch(StateChanged(path)))
    if watched is None or watched.version != version:
        context.events.put(StateChanged(path))


def _decode(name: str, found: Znode, otherwise: str) -> TopicZnode | None:
    """The topic, or None when it is malformed, with the reason logged and what is done."""
    path = paths.topic(name)
    try:
        return TopicZnode.decode(path, found.data)
    except MalformedZnodeError as error:
        _log.error("%s; %s", error, otherwise)
        return None


async def _settle(context: Context, topic: TopicImage) -> bool:
    """Write what a topic znode lacks, and what it was before an edit that the rules refuse; False, with the reason
    logged, when its counts make no sense.
    """
    config = await topic_values(context, topic.name) if unseen.needs_config(topic) else {}
    found, judged = topic.znode, unseen.judge(topic, config)
    end = "the topic is left as it is" if judged.znode is None else "the edit is undone"
    for why in judged.undone:
        _log.error("znode %s: %s; %s", paths.topic(topic.name), why, end)
    if judged.znode is None:
        return False
    topic.znode = judged.znode.replace(absent=frozenset())
    if found.topic_id == NO_ID:
        topic.znode = topic.znode.replace(topic_id=new_topic_id(context.rng))
    if config and topic.znode.ordered_delivery != config[unseen.ORDERED_KEY]:
        await keep_ordered_delivery(context, topic.name, topic.znode.ordered_delivery)
    for index in topic.partitions.keys() - topic.znode.partitions.keys():
        del topic.partitions[index]
    if found.absent or topic.znode != found:
        topic.version = await _write_topic(context, topic.name, topic.znode, topic.version)
    return True


async def _undo(context: Context, topic: TopicImage, version: int) -> None:
    """Write what the znode was. When another edit came, its watch tells of it, and that is undone."""
    try:
        topic.version = await _write_topic(context, topic.name, topic.znode, version)
    except ImageStaleError as error:
        _log.info("%s; it is read again", error)


async def _write_topic(context: Context, name: str, znode: TopicZnode, version: int) -> int:
    return (await context.store.write([SetOp(paths.topic(name), znode.encode(), version)]))[0]
