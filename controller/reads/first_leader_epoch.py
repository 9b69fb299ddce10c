"""Reads ``/first_leader_epoch``."""

from __future__ import annotations

from anabranch.controller.context import Context
from anabranch.controller.events import FirstLeaderEpochChanged
from anabranch.runtime.env import Znode
from anabranch.zk_schemas import paths


async def read_first_leader_epoch(context: Context) -> Znode | None:
    return await context.store.get(paths.FIRST_LEADER_EPOCH, context.events.watch(FirstLeaderEpochChanged()))
