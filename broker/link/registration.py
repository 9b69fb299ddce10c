"""This broker's ephemeral znode ``/brokers/ids/<id>``; its czxid is the broker epoch.

While the znode of an earlier session exists, registering waits until it is deleted (KAFKA-7165, KAFKA-14845). If our
own session owns the znode already, the broker is registered (KAFKA-13407: the response to the create was lost). After
an expiry the broker registers again in the new session.

Each registration reads ``/features`` first (``admit``). The multi that creates the broker's znode also sets
``/brokers/registrations``, at the version that ``/brokers/registrations`` had before ``/features`` was read. An update
of the features also sets ``/brokers/registrations``. So if a registration and an update happen at the same time, one of
them fails and reads again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import structlog
import trio

from anabranch.protocol.sentinels import NO_EPOCH, NO_TIMESTAMP
from anabranch.runtime.env import (
    BadVersionError,
    CreateOp,
    NodeExistsError,
    NoNodeError,
    SessionState,
    SetOp,
    ZkConnectionError,
    ZkError,
    ZkOp,
    ZkRequestTooLargeError,
    ZkStore,
    Znode,
)
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import BrokerRegistration

logger = structlog.get_logger(__name__)

_RETRY_S = 0.2


class DuplicateBrokerError(Exception):
    """Another live process has this broker id."""


class Registrar:
    """Registers this broker and keeps it registered; ``epoch`` is -1 before the first registration.

    ``admit`` raises ``IncompatibleFeaturesError`` when the broker may not run with the finalized features.
    ``wait_s``: how long an earlier session may take to end. If ZooKeeper does not answer, the wait has no limit.
    """

    def __init__(
        self,
        zk: ZkStore,
        broker_id: int,
        describe: Callable[[], BrokerRegistration],
        admit: Callable[[], Awaitable[None]],
        wait_s: float,
    ) -> None:
        self._zk = zk
        self._admit = admit
        self._path = BrokerRegistration.path(broker_id)
        self._describe = describe
        self._wait_s = wait_s
        self._wake = trio.Event()
        self._written: BrokerRegistration | None = None
        """The content that this process wrote last, without its timestamp; None if it may not have been written."""
        self.epoch = NO_EPOCH

    async def wait_for_old_session(self) -> None:
        """Return when no other session has the id. Raises ``DuplicateBrokerError`` if another keeps it for too long."""
        while not await self._try_once(create=False):
            pass

    async def register(self) -> None:
        """Return when registered. Raises ``DuplicateBrokerError`` when another process holds the id for too long."""
        while not await self._try_once(create=True):
            pass
        logger.info("broker.registered", path=self._path, epoch=self.epoch)

    async def _try_once(self, *, create: bool) -> bool:
        """Register, or wait until an earlier session's znode is deleted; returns whether nothing is left to do."""
        gone = trio.Event()
        try:
            if create:
                await self._create()
            stat = await self._zk.exists(self._path, gone.set)
        except ZkRequestTooLargeError:
            raise
        except ZkError as error:
            logger.warning("broker.registration_delayed", path=self._path, error=str(error))
            await trio.sleep(_RETRY_S)
            return False
        if stat is None:
            return not create
        if stat.ephemeral_owner == self._zk.session_id:
            self.epoch = stat.czxid
            return True
        logger.info("broker.waiting_for_old_session", path=self._path, owner=stat.ephemeral_owner)
        with trio.move_on_after(self._wait_s):
            await gone.wait()
            return False
        raise DuplicateBrokerError(
            f"{self._path} belongs to another session that does not end: is another broker running with this broker.id?"
        )

    async def _create(self) -> None:
        """Create the znode, unless one exists or the features changed meanwhile."""
        lock = await self._zk.exists(paths.REGISTRATIONS)
        await self._admit()
        described = self._describe()
        self._written = None
        ops: list[ZkOp] = [
            CreateOp(paths.REGISTRATIONS, b"") if lock is None else SetOp(paths.REGISTRATIONS, b"", lock.version),
            CreateOp(self._path, described.encode(), ephemeral=True),
        ]
        with suppress(NodeExistsError, BadVersionError, ZkConnectionError):  # the owner of the znode shows the outcome
            await self._zk.multi(ops)
            self._written = replace(described, timestamp_ms=NO_TIMESTAMP)

    async def run(self) -> None:
        """Register again after each expiry, or when the znode was deleted by hand, until cancelled."""
        unregister = self._zk.on_state(self._on_state)
        try:
            while True:
                self._wake = trio.Event()
                stat = await self._find()
                if not self._is_held(stat):
                    await self.register()
                elif await self._bring_up_to_date(stat):
                    await self._wake.wait()
        finally:
            unregister()

    def _on_state(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._wake.set()

    def _woken(self) -> None:
        self._wake.set()

    def refresh(self) -> None:
        """Update the znode if the description has changed."""
        self._wake.set()

    async def _find(self) -> Znode | None:
        """The znode; None if there is none. Waits while ZooKeeper does not answer."""
        while True:
            try:
                return await self._zk.exists(self._path, self._woken)
            except ZkError:
                await trio.sleep(_RETRY_S)

    def _is_held(self, stat: Znode | None) -> bool:
        return stat is not None and stat.ephemeral_owner == self._zk.session_id and stat.czxid == self.epoch

    async def _bring_up_to_date(self, stat: Znode | None) -> bool:
        """Set the znode if its description is outdated; returns whether it is up to date."""
        described = self._describe()
        if stat is None or replace(described, timestamp_ms=NO_TIMESTAMP) == self._written:
            return stat is not None
        try:
            await self._zk.set(self._path, described.encode(), stat.version)
        except ZkError as error:
            logger.warning("broker.registration_not_changed", path=self._path, error=str(error))
            await trio.sleep(_RETRY_S)
            return False
        self._written = replace(described, timestamp_ms=NO_TIMESTAMP)
        logger.info("broker.registration_changed", path=self._path, endpoints=[str(e) for e in described.endpoints])
        return True

    async def remove(self) -> None:
        """Delete the znode at shutdown; the end of the session would delete it too."""
        try:
            stat = await self._zk.exists(self._path)
            if stat is not None and stat.ephemeral_owner == self._zk.session_id:
                await self._zk.delete(self._path)
        except (NoNodeError, ZkError) as error:
            logger.info("broker.registration_left_to_expire", error=str(error))
