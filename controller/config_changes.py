"""Configs of topics and brokers in the image. They are read with the cluster, and again when a notification names them.

This controller's own writes are in the image before the response to the request is sent. An edit by hand is seen when a
notification under ``/config/changes`` names its config, or when the cluster is read again. Brokers follow the same
notifications.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from anabranch.controller.config_writes import take
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.giving_up import give_up
from anabranch.controller.image import ClusterImage
from anabranch.controller.partitions import elect_offline
from anabranch.controller.reads.config_znodes import FoundConfigs
from anabranch.controller.topic_config import ORDERED_KEY, of_topic
from anabranch.runtime.env import CreateOp, DeleteOp, SetOp, ZkError, Znode
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigZnode
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.topic_keys import TOPIC_CONFIGS

logger = structlog.get_logger(__name__)
CHANGES_KEPT = 1000
"""Number of notifications that are kept for brokers to read. A broker that starts reads all configs anyway."""
_PURGED_AT_LEAST = 100


def on_configs_loaded(context: Context, found: FoundConfigs) -> Decisions[None]:
    """Take the configs of brokers and of topics that do not exist. Forget the configs that were deleted."""
    yield from ()  # nothing is written
    image = context.image
    image.config_changes_seen = found.changes[-1] if found.changes else ""
    kept = {*found.configs, *found.unread, *map(paths.topic_config, found.of_topics)}
    for path in image.configs.keys() - kept:
        del image.configs[path]
    _take(context, found)


def _take(context: Context, found: FoundConfigs) -> None:
    """Take the configs that were read. A config that ZooKeeper refused to show stays as it was in the image."""
    for path, znode in found.configs.items():
        take_read(context.image, path, znode)
    for path, error in found.unread.items():
        give_up(context, f"reading {path}", error)


def take_read(image: ClusterImage, path: str, found: Znode | None) -> None:
    """Put a config znode that was read into the image; remove it from the image when it is deleted."""
    if found is None:
        image.configs.pop(path, None)
    else:
        take(image, path, found.data, found.version)


def on_configs_changed(context: Context, found: FoundConfigs) -> Decisions[None]:
    """Take changed configs, then elect leaders for partitions that have none.

    A config may allow unclean elections now.
    """
    image = context.image
    image.config_changes_seen = found.changes[-1] if found.changes else ""
    _take(context, found)
    for name in (path.removeprefix(f"{paths.TOPIC_CONFIGS}/") for path in found.configs):
        if name in image.topics and name not in image.deletions:
            try:
                yield from keep_ordered_delivery(context, name, image.topics[name].znode.ordered_delivery)
            except ZkError as error:
                give_up(context, f"undoing an edit of the config of topic {name}", error)
    yield from elect_offline(context)
    yield Effects(groups=[[DeleteOp(f"{paths.CONFIG_CHANGES}/{name}")] for name in purged(found.changes)])


def purged(changes: Sequence[str]) -> Sequence[str]:
    """The notifications to delete: many at a time, because each deletion makes every reader read the list again.

    The last one that was read stays: the next read continues from it.
    """
    return changes[:-CHANGES_KEPT] if len(changes) >= CHANGES_KEPT + _PURGED_AT_LEAST else ()


def keep_ordered_delivery(context: Context, topic: str, settled: bool | None) -> Decisions[None]:
    """Undo a manual edit of ``enable.ordered.delivery`` after the first resize. Brokers ignore such an edit.

    Raises ``ControllerMovedError``, ``ImageStaleError``, ``ZkError``.
    """
    effects = restoring(context.image, topic, settled)
    if effects.writes:
        why = f"{ORDERED_KEY} cannot be changed any more: the topic was resized"
        logger.error("config.edit_undone", path=paths.topic_config(topic), reason=why)
        yield effects


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
