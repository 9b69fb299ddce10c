"""Reads configs of topics and brokers, and the notifications that name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog

from anabranch.controller.context import Context
from anabranch.controller.events import ConfigsChanged
from anabranch.controller.store import ImageStaleError, read_all
from anabranch.controller.topic_names import name_problem
from anabranch.runtime.env import ZkError, Znode
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)


class FoundConfigs(NamedTuple):
    """The names of all notifications, in order, and the config znodes that were read after them, by path."""

    changes: Sequence[str]
    configs: Mapping[str, Znode | None]
    unread: Mapping[str, ZkError]
    """The config znodes that ZooKeeper refused to show, by path."""
    of_topics: Sequence[str] = ()
    """All topics that have a config znode, if all configs were read."""


async def read_all_configs(context: Context) -> FoundConfigs:
    """Read the configs of brokers and of topics that do not exist.

    The configs of topics that exist are read with the topics.
    """
    changes = await context.store.children(paths.CONFIG_CHANGES, context.events.watch(ConfigsChanged()))
    brokers = await context.store.children(paths.BROKER_CONFIGS)
    topics = await context.store.children(paths.TOPIC_CONFIGS)
    without = set(topics) - set(await context.store.children(paths.TOPICS))
    of_brokers = {f"{paths.BROKER_CONFIGS}/{name}" for name in brokers}
    found, unread = await read_all(sorted(of_brokers | set(map(paths.topic_config, without))), context.store.get)
    return FoundConfigs(changes, found, unread, topics)


async def read_changed_configs(context: Context) -> FoundConfigs:
    """Read the configs that new notifications name.

    Raises ``ImageStaleError`` when notifications were removed before they were read: any config may have changed.
    """
    seen = context.image.config_changes_seen
    changes = await context.store.children(paths.CONFIG_CHANGES, context.events.watch(ConfigsChanged()))
    if seen and seen not in changes:
        raise ImageStaleError(f"notifications after {paths.CONFIG_CHANGES}/{seen} may have been removed")
    altered = await _altered(context, [name for name in changes if name > seen])
    return FoundConfigs(changes, *await read_all(sorted(altered), context.store.get))


async def _altered(context: Context, changes: list[str]) -> set[str]:
    """Paths of the configs that these notifications name.

    Raises ``ImageStaleError`` when a notification was removed.
    """
    named = set()
    for name in changes:
        path = f"{paths.CONFIG_CHANGES}/{name}"
        found = await context.store.get(path)
        if found is None:
            raise ImageStaleError(f"{path} was removed before it was read")
        try:
            change = ConfigChange.decode(path, found.data)
        except MalformedZnodeError as error:
            logger.error("config.change_malformed", error=str(error))
            continue
        if is_followed(change):
            named.add(f"{paths.CONFIG}/{change.entity_path}")
    return named


def is_followed(change: ConfigChange) -> bool:
    """Whether the notification names a topic or brokers. A name such as ".." makes no path that can be read."""
    if change.entity_type == "topics":
        return name_problem(change.entity_name) is None
    is_broker = change.entity_name.isascii() and change.entity_name.isdigit()
    return change.entity_type == "brokers" and (is_broker or change.entity_name == paths.DEFAULT_BROKER)
