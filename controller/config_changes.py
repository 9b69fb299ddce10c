"""Configs of topics and brokers in the image. They are read with the cluster, and again when a notification names them.

This controller's own writes are in the image before the response to the request is sent. An edit by hand is seen when a
notification under ``/config/changes`` names its config, or when the cluster is read again. Brokers follow the same
notifications.
"""

from __future__ import annotations

import functools

import structlog

from anabranch.controller.config_writes import take
from anabranch.controller.context import Context
from anabranch.controller.effects import Effects, carry_out
from anabranch.controller.events import ConfigsChanged
from anabranch.controller.giving_up import give_up
from anabranch.controller.image import ClusterImage
from anabranch.controller.partitions import elect_offline
from anabranch.controller.store import ImageStaleError, read_each
from anabranch.controller.topic_config import ORDERED_KEY, of_topic
from anabranch.controller.topic_names import name_problem
from anabranch.runtime.env import CreateOp, SetOp, ZkError
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.topic_keys import TOPIC_CONFIGS
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)


async def load_configs(context: Context) -> None:
    """Watch the notifications, then read the configs of brokers and of topics that do not exist.

    The configs of topics that exist are read with the topics.
    """
    image = context.image
    changes = await context.store.children(paths.CONFIG_CHANGES, context.events.watch(ConfigsChanged()))
    image.config_changes_seen = changes[-1] if changes else ""
    brokers = await context.store.children(paths.BROKER_CONFIGS)
    topics = await context.store.children(paths.TOPIC_CONFIGS)
    without = set(topics) - set(await context.store.children(paths.TOPICS))
    of_brokers = {f"{paths.BROKER_CONFIGS}/{name}" for name in brokers}
    for path in image.configs.keys() - of_brokers - set(map(paths.topic_config, topics)):
        del image.configs[path]
    unread = sorted(of_brokers | set(map(paths.topic_config, without)))
    await read_each(unread, functools.partial(read_config, context))


async def read_config(context: Context, path: str) -> None:
    """Read one config znode into the image; remove it from the image when it is deleted."""
    found = await context.store.get(path)
    if found is None:
        context.image.configs.pop(path, None)
    else:
        take(context.image, path, found.data, found.version)


async def on_configs_changed(context: Context) -> None:
    """Read the configs that new notifications name, then elect leaders for partitions that have none.

    A config may allow unclean elections now. Raises ``ImageStaleError`` when notifications were removed before they
    were read: any config may have changed.
    """
    image, seen = context.image, context.image.config_changes_seen
    changes = await context.store.children(paths.CONFIG_CHANGES, context.events.watch(ConfigsChanged()))
    if seen and seen not in changes:
        raise ImageStaleError(f"notifications after {paths.CONFIG_CHANGES}/{seen} may have been removed")
    image.config_changes_seen = changes[-1] if changes else ""
    altered = await _altered(context, [name for name in changes if name > seen])
    await read_each(altered, functools.partial(read_config, context))
    for name in (path.removeprefix(f"{paths.TOPIC_CONFIGS}/") for path in altered):
        if name in image.topics and name not in image.deletions:
            try:
                await keep_ordered_delivery(context, name, image.topics[name].znode.ordered_delivery)
            except ZkError as error:
                give_up(context, f"undoing an edit of the config of topic {name}", error)
    await elect_offline(context)


async def _altered(context: Context, changes: list[str]) -> list[str]:
    """Paths of the configs that these notifications name. Raises ``ImageStaleError`` when a notification is gone."""
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
    return sorted(named)


def is_followed(change: ConfigChange) -> bool:
    """Whether the notification names a topic or brokers. A name such as ".." makes no path that can be read."""
    if change.entity_type == "topics":
        return name_problem(change.entity_name) is None
    is_broker = change.entity_name.isascii() and change.entity_name.isdigit()
    return change.entity_type == "brokers" and (is_broker or change.entity_name == paths.DEFAULT_BROKER)


async def keep_ordered_delivery(context: Context, topic: str, settled: bool | None) -> None:
    """Undo a manual edit of ``enable.ordered.delivery`` after the first resize. Brokers ignore such an edit.

    Raises ``ControllerMovedError``, ``ImageStaleError``, ``ZkError``.
    """
    effects = restoring(context.image, topic, settled)
    if effects.writes:
        why = f"{ORDERED_KEY} cannot be changed any more: the topic was resized"
        logger.error("config.edit_undone", path=paths.topic_config(topic), reason=why)
        await carry_out(context, effects)


def restoring(image: ClusterImage, topic: str, settled: bool | None) -> Effects:
    """The effects that restore the ``settled`` value of ``enable.ordered.delivery`` in a topic's config.

    The value is settled by the first resize. There are no effects if the config has that value, if no value is settled,
    or if the config cannot be used.
    """
    path, config = paths.topic_config(topic), of_topic(image, topic)
    try:
        restored = with_ordered_delivery(config.znode, settled) if config.znode is not None else None
    except ConfigError:
        return Effects()
    if restored is None:
        return Effects()
    data = restored.encode()
    op = CreateOp(path, data) if config.version < 0 else SetOp(path, data, config.version)
    return Effects(writes=(op,), notify=(f"topics/{topic}",))


def with_ordered_delivery(config: ConfigZnode, settled: bool | None) -> ConfigZnode | None:
    """The config with the ``settled`` value; None if there is nothing to change. Raises ``ConfigError``."""
    key = TOPIC_CONFIGS[ORDERED_KEY]
    if settled is None or key.parse(config.config.get(key.name, key.default)) == settled:
        return None
    return ConfigZnode({**config.config, key.name: str(settled).lower()}, config.version, config.extra)
