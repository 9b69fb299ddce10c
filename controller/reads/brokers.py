"""Reads the registrations of brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from anabranch.controller.context import Context
from anabranch.controller.events import BrokersChanged
from anabranch.controller.image import LiveBroker
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import BrokerRegistration
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LockedBrokers:
    """The live brokers, and the version of ``/brokers/registrations`` that was read before them; -1 if missing."""

    live: Mapping[int, LiveBroker]
    version: int


async def read_locked(context: Context) -> LockedBrokers:
    """Read the registered brokers, and set watches on them."""
    lock = await context.store.exists(paths.REGISTRATIONS)
    return LockedBrokers(await _registrations(context), -1 if lock is None else lock.version)


async def _registrations(context: Context) -> dict[int, LiveBroker]:
    present = {}
    for name in await context.store.children(paths.BROKER_IDS, context.events.watch(BrokersChanged())):
        path = f"{paths.BROKER_IDS}/{name}"
        found = await context.store.get(path, context.events.watch(BrokersChanged()))
        if found is None:
            continue
        try:
            if not name.isdigit():
                raise MalformedZnodeError(path, "", "its name is not a broker id, which is a number")
            registration = BrokerRegistration.decode(path, found.data)
        except MalformedZnodeError as error:
            logger.error("broker.malformed", error=str(error))
            continue
        present[int(name)] = LiveBroker(int(name), found.czxid, registration)
    return present
