"""Reads the notices of failed disks."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.controller.context import Context
from anabranch.controller.events import LogDirsFailed
from anabranch.zk_schemas import paths


async def read_log_dir_events(context: Context) -> Mapping[str, bytes]:
    """The data of each notice, by path."""
    notices = {}
    for name in await context.store.children(paths.LOG_DIR_EVENTS, context.events.watch(LogDirsFailed())):
        path = f"{paths.LOG_DIR_EVENTS}/{name}"
        found = await context.store.get(path)
        if found is not None:
            notices[path] = found.data
    return notices
