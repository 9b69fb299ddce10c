"""Reads ``/features``."""

from __future__ import annotations

from typing import NamedTuple

from anabranch.controller.context import Context
from anabranch.controller.events import FeaturesChanged
from anabranch.controller.reads.brokers import LockedBrokers, read_locked
from anabranch.runtime.env import Znode
from anabranch.zk_schemas import paths


class FoundFeatures(NamedTuple):
    """``/features``, and the brokers that were read after it."""

    znode: Znode | None
    brokers: LockedBrokers


async def read_features(context: Context) -> FoundFeatures:
    return FoundFeatures(await read_features_znode(context), await read_locked(context))


async def read_features_znode(context: Context) -> Znode | None:
    return await context.store.get(paths.FEATURES, context.events.watch(FeaturesChanged()))
