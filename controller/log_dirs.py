"""Handles failed disks: a broker gets all its partitions again, and reports replicas that it cannot serve (KIP-112)."""

from __future__ import annotations

import structlog

from anabranch.controller.context import Context
from anabranch.controller.events import LogDirsFailed
from anabranch.controller.store import chunks
from anabranch.runtime.env import DeleteOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.log_dir_event import LogDirEvent
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)


async def on_log_dirs_failed(context: Context) -> None:
    """Read the notices, send everything to the brokers they name, and remove the notices."""
    names = await context.store.children(paths.LOG_DIR_EVENTS, context.events.watch(LogDirsFailed()))
    brokers: dict[int, None] = {}
    read = []
    for name in names:
        path = f"{paths.LOG_DIR_EVENTS}/{name}"
        found = await context.store.get(path)
        if found is None:
            continue
        read.append([DeleteOp(path)])
        try:
            brokers[LogDirEvent.decode(path, found.data).broker] = None
        except MalformedZnodeError as error:
            logger.error("log_dir.notice_malformed", error=str(error))
    for broker in brokers:
        if broker in context.image.brokers:
            logger.warning("log_dir.changed", broker=broker)
            context.batch.everything_to(broker)
    for ops in chunks(read):
        await context.store.write(ops)
