"""Reads topics with their configs and partition states."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from anabranch.controller.context import Context
from anabranch.controller.events import TopicChanged, TopicListChanged, WatchedStateChanged
from anabranch.controller.store import read_all, read_each
from anabranch.runtime.env import ZkError, Znode
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.topic import TopicZnode
from anabranch.zk_schemas.znode import MalformedZnodeError


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """One topic. If its znode is malformed, no states are read."""

    name: str
    read: Znode
    znode: TopicZnode | MalformedZnodeError
    config: Znode | None
    present: Collection[str] = ()
    """The names of the partition znodes, which are the parents of the states."""
    states: Mapping[int, Znode | None] = field(default_factory=dict)
    """The states of assigned partitions, and of partitions that an edit removed from the assignment."""
    present_after: Collection[str] = ()
    """``present``, read again after the states; empty if every assigned partition has a state."""


class FoundTopics(NamedTuple):
    """The names of all topics that have a znode, and the topics that are not in the image yet."""

    names: Sequence[str]
    new: Sequence[FoundTopic]
    unread: Mapping[str, ZkError] = MappingProxyType({})
    """New topics that ZooKeeper refused to show."""


class FoundChange(NamedTuple):
    """The znode of one topic; the whole topic too if it is not in the image yet or was created again."""

    znode: Znode | None
    new: FoundTopic | None


async def read_topic_list(context: Context) -> FoundTopics:
    names = await context.store.children(paths.TOPICS, context.events.watch(TopicListChanged()))
    new = [name for name in names if name not in context.image.topics]
    found, unread = await read_all(new, functools.partial(_read_topic, context))
    return FoundTopics(names, [topic for topic in found.values() if topic is not None], unread)


async def read_topic_change(context: Context, event: TopicChanged) -> FoundChange:
    name = event.name
    found = await context.store.get(paths.topic(name), context.events.watch(event))
    known = context.image.topics.get(name)
    if found is None or name in context.image.deletions or (known is not None and known.czxid == found.czxid):
        return FoundChange(found, None)
    return FoundChange(found, await _read_topic(context, name))


async def read_watched_state(context: Context, event: WatchedStateChanged) -> Znode | None:
    return await context.store.get(paths.partition_state(*event.tp), context.events.watch(event))


async def _read_topic(context: Context, name: str) -> FoundTopic | None:
    """Read a topic. Returns None if the znode is gone, or is known as malformed and has not changed."""
    found = await context.store.get(paths.topic(name), context.events.watch(TopicChanged(name)))
    if found is None or context.image.malformed.get(name) == found.mzxid:
        return None
    config = await context.store.get(paths.topic_config(name))
    try:
        znode = TopicZnode.decode(paths.topic(name), found.data)
    except MalformedZnodeError as error:
        return FoundTopic(name, found, error, config)
    present = set(await context.store.children(paths.partitions(name)))
    stray = {int(each) for each in present if each.isdigit()} - znode.partitions.keys()
    states: dict[int, Znode | None] = {}

    async def read_state(index: int) -> None:
        states[index] = await context.store.get(paths.partition_state(name, index))

    await read_each([*(index for index in znode.partitions if str(index) in present), *sorted(stray)], read_state)
    is_complete = all(states.get(index) is not None for index in znode.partitions)
    after = () if is_complete else set(await context.store.children(paths.partitions(name)))
    return FoundTopic(name, found, znode, config, present, states, after)
