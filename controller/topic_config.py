"""Topic configs that the controller decides by. They are read when they are needed, never remembered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog

from anabranch.controller.context import Context
from anabranch.controller.store import read_each
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigZnode
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.config_keys import AUTOSCALE_KEY, BROKER_CONFIGS, TOPIC_CONFIGS, topic_defaults
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)
ORDERED_KEY = "enable.ordered.delivery"
UNCLEAN = "unclean.leader.election.enable"


async def unclean_election_allowed(context: Context, topics: Iterable[str]) -> set[str]:
    """Which of the topics may have a leader that was not in sync: by the topic, by the brokers' default, by this
    controller's configuration, the first of them that says. Raises ``ControllerMovedError``.
    """
    names = sorted(set(topics))
    if not names:
        return set()
    default = await _read_flag(context, paths.broker_config(None))
    if default is None:
        default = context.config.unclean_leader_election_enable
    found: dict[str, bool | None] = {}

    async def read(name: str) -> None:
        found[name] = await _read_flag(context, paths.topic_config(name))

    await read_each(names, read)
    return {name for name in names if (default if found[name] is None else found[name])}


async def autoscaled_topics(context: Context, names: Iterable[str]) -> set[str]:
    """Which of the topics have ``autoscale.enable``. Raises ``ControllerMovedError``."""
    found = set()

    async def read(name: str) -> None:
        if TOPIC_CONFIGS.parse_given(await _read_config(context, paths.topic_config(name))).get(AUTOSCALE_KEY):
            found.add(name)

    await read_each(sorted(names), read)
    return found


async def topic_values(context: Context, name: str) -> dict[str, Any]:
    """Every topic key with the value in force, as far as ZooKeeper says: defaults in brokers' files are not known.

    A malformed config znode counts as empty. Raises ``ControllerMovedError``.
    """
    broker_values = BROKER_CONFIGS.parse_given(await _read_config(context, paths.broker_config(None)))
    given = TOPIC_CONFIGS.parse_given(await _read_config(context, paths.topic_config(name)))
    return topic_defaults(broker_values) | given


async def _read_config(context: Context, path: str) -> dict[str, str]:
    """The keys of a config znode that can be used."""
    znode = await context.store.get(path)
    if znode is None:
        return {}
    table = BROKER_CONFIGS if path == paths.broker_config(None) else TOPIC_CONFIGS
    try:
        config = ConfigZnode.decode(path, znode.data).config
        table.parse_given(config)
    except (MalformedZnodeError, ConfigError) as error:
        logger.error("config.malformed", path=path, error=str(error))
        return {}
    return config


async def _read_flag(context: Context, path: str) -> bool | None:
    """None: the znode does not say. One that is malformed does not allow it."""
    znode = await context.store.get(path)
    if znode is None:
        return None
    try:
        value = ConfigZnode.decode(path, znode.data).config.get(UNCLEAN)
        return None if value is None else bool(TOPIC_CONFIGS[UNCLEAN].parse(value))
    except (MalformedZnodeError, ConfigError) as error:
        logger.error("config.malformed", path=path, error=str(error))
        return False
