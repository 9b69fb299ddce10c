"""Configs that change while the controller runs."""

from __future__ import annotations

import structlog

from anabranch.controller.context import Context
from anabranch.controller.events import ConfigsChanged
from anabranch.controller.giving_up import give_up
from anabranch.controller.partitions import elect_offline
from anabranch.controller.topic_config import ORDERED_KEY
from anabranch.runtime.env import CreateOp, SetOp, ZkError, ZkOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.config_keys import TOPIC_CONFIGS
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)


async def on_configs_changed(context: Context) -> None:
    """Partitions without a leader may get one where unclean elections were allowed just now.

    Which config changed does not matter for that: only those of topics that wait for a leader are read.
    """
    image = context.image
    changes = await context.store.children(paths.CONFIG_CHANGES, context.events.watch(ConfigsChanged()))
    await elect_offline(context)
    unseen = [name for name in changes if image.config_changes_seen is not None and name > image.config_changes_seen]
    image.config_changes_seen = changes[-1] if changes else ""
    altered = await _altered_topics(context, unseen)
    if image.configs_unread is not None:
        image.configs_unread.update(altered)
    for name in altered:
        if name in image.topics and name not in image.deletions:
            try:
                await keep_ordered_delivery(context, name, image.topics[name].znode.ordered_delivery)
            except ZkError as error:
                give_up(context, f"undoing an edit of the config of {name}", error)


async def _altered_topics(context: Context, changes: list[str]) -> list[str]:
    """Topics that these notifications name."""
    named = set()
    for change in changes:
        path = f"{paths.CONFIG_CHANGES}/{change}"
        found = await context.store.get(path)
        try:
            told = ConfigChange.decode(path, found.data) if found is not None else None
        except MalformedZnodeError as error:
            logger.error("config.change_malformed", error=str(error))
            continue
        if told is not None and told.entity_type == "topics":
            named.add(told.entity_name)
    return sorted(named)


async def keep_ordered_delivery(context: Context, topic: str, settled: bool | None) -> None:
    """Undo what an edit by hand made of ``enable.ordered.delivery`` since the first resize; brokers did not follow it.

    Raises ``ControllerMovedError``, ``ImageStaleError``.
    """
    path = paths.topic_config(topic)
    found = await context.store.get(path)
    try:
        config = ConfigZnode({}) if found is None else ConfigZnode.decode(path, found.data)
        restored = with_ordered_delivery(config, settled)
    except (MalformedZnodeError, ConfigError) as error:
        logger.error("config.malformed", path=path, error=str(error))
        return
    if restored is None:
        return
    logger.error("config.edit_undone", path=path, why=f"{ORDERED_KEY} cannot be changed any more")
    data = restored.encode()
    op: ZkOp = CreateOp(path, data) if found is None else SetOp(path, data, found.version)
    await context.store.write([op])
    await context.store.notify(paths.CONFIG_CHANGE_PREFIX, ConfigChange(f"topics/{topic}").encode())


def with_ordered_delivery(config: ConfigZnode, settled: bool | None) -> ConfigZnode | None:
    """The config as the first resize settled it; None: it is so, or not settled yet. Raises ``ConfigError``."""
    key = TOPIC_CONFIGS[ORDERED_KEY]
    if settled is None or key.parse(config.config.get(key.name, key.default)) == settled:
        return None
    return ConfigZnode({**config.config, key.name: str(settled).lower()}, config.version, config.extra)
