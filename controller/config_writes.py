"""The two actions after a config write: the image takes the config, and a notification makes brokers read it again."""

from __future__ import annotations

import structlog

from anabranch.controller.context import Context
from anabranch.controller.image import ClusterImage
from anabranch.controller.store import chunks
from anabranch.controller.stored_config import StoredConfig
from anabranch.runtime.env import DeleteOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange

logger = structlog.get_logger(__name__)
CHANGES_KEPT = 1000
"""Number of notifications that are kept for brokers to read. A broker that starts reads all configs anyway."""
_PURGE_EVERY = 100


def take(image: ClusterImage, path: str, data: bytes, version: int) -> None:
    """Put a config znode that was read or written into the image. A problem with it is logged once."""
    known = image.configs.get(path)
    config = image.configs[path] = StoredConfig.decode(path, data, version)
    if config.problem and (known is None or known.problem != config.problem):
        logger.error("config.malformed", path=path, error=config.problem)


async def notify(context: Context, entity: str) -> None:
    """Make brokers read the config of ``topics/<name>`` or ``brokers/<id>`` again."""
    created = await context.store.notify(paths.CONFIG_CHANGE_PREFIX, ConfigChange(entity).encode())
    number = created.removeprefix(paths.CONFIG_CHANGE_PREFIX)
    if number.isdigit() and int(number) % _PURGE_EVERY == 0:
        await _purge_changes(context)


async def _purge_changes(context: Context) -> None:
    """Delete old notifications. The last one read by this controller stays: the next read continues from it."""
    names = await context.store.children(paths.CONFIG_CHANGES)
    old = [name for name in names[:-CHANGES_KEPT] if name < context.image.config_changes_seen]
    for ops in chunks([[DeleteOp(f"{paths.CONFIG_CHANGES}/{name}")] for name in old]):
        await context.store.write(ops)
