"""Brokers that lost a disk: each is told again what it holds, and says which replicas it cannot serve (KIP-112)."""

from __future__ import annotations

import logging

from anabranch.controller.context import Context
from anabranch.controller.events import LogDirsFailed
from anabranch.controller.store import chunks
from anabranch.runtime.env import DeleteOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.log_dir_event import LogDirEvent
from anabranch.zk_schemas.znode import MalformedZnodeError

_log = logging.getLogger(__name__)


async def on_log_dirs_failed(context: Context) -> None:
    """Read the notices, ask the brokers they name, and remove them."""
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
            _log.error("%s; the notice is removed", error)
    for broker in brokers:
        if broker in context.image.brokers:
            _log.warning("broker %s lost a log dir, or has one back", broker)
            context.batch.everything_to(broker)
    for ops in chunks(read):
        await context.store.write(ops)
