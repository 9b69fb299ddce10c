"""The two actions after a config write: the image takes the config, and a notification makes brokers read it again."""

from __future__ import annotations

import structlog

from anabranch.controller.context import Context
from anabranch.controller.image import ClusterImage
from anabranch.controller.stored_config import StoredConfig
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange

logger = structlog.get_logger(__name__)


def take(image: ClusterImage, path: str, data: bytes, version: int) -> None:
    """Put a config znode that was read or written into the image. A problem with it is logged once."""
    known = image.configs.get(path)
    config = image.configs[path] = StoredConfig.decode(path, data, version)
    if config.problem and (known is None or known.problem != config.problem):
        logger.error("config.malformed", path=path, error=config.problem)


async def notify(context: Context, entity: str) -> None:
    """Make brokers read the config of ``topics/<name>`` or ``brokers/<id>`` again."""
    await context.store.notify(paths.CONFIG_CHANGE_PREFIX, ConfigChange(entity).encode())
