"""One broker's view of the finalized features (KIP-584): read before it registers, then followed by a watch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
import trio

from anabranch.protocol.generated.api_versions import FinalizedFeatureKey, SupportedFeatureKey
from anabranch.protocol.sentinels import NO_EPOCH
from anabranch.runtime.env import NoNodeError, Watch, ZkStore
from anabranch.runtime.znode_watch import follow
from anabranch.zk_schemas.broker_registration import VersionRange
from anabranch.zk_schemas.feature_keys import finalized_keys, supported_keys
from anabranch.zk_schemas.features import Features, FeaturesStatus, IncompatibleFeaturesError, misfits
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)

_NOTHING = Features(FeaturesStatus.DISABLED)


class FinalizedFeatureCache:
    """The finalized features. ``run`` raises ``IncompatibleFeaturesError`` once this broker is incompatible with them.

    ``epoch`` is the zkVersion of ``/features``, -1 while the status is disabled.
    """

    def __init__(self, zk: ZkStore, supported: Mapping[str, VersionRange]) -> None:
        self._zk = zk
        self._features = _NOTHING
        self._is_read = False
        self.supported = supported
        self.epoch = NO_EPOCH
        self.changed = trio.Event()
        """Set, and replaced by a new event, when ``/features`` was read again."""

    def level(self, name: str) -> int:
        """The finalized level; 0: none."""
        return self._features.level(name)

    def supported_keys(self) -> list[SupportedFeatureKey]:
        return supported_keys(self.supported)

    def finalized_keys(self) -> list[FinalizedFeatureKey]:
        return finalized_keys(self._features)

    async def load(self, watch: Watch | None = None) -> None:
        """Read ``/features``. Raises ``IncompatibleFeaturesError`` if this broker is incompatible, and ``ZkError``.

        At the start a malformed znode is an error, because its content is not known. Later, the features that were read
        last stay in force.
        """
        try:
            found = await self._zk.get(Features.PATH, watch)
            features, epoch = Features.decode(Features.PATH, found.data), found.version
        except NoNodeError:
            features, epoch = _NOTHING, NO_EPOCH
        except MalformedZnodeError as error:
            if not self._is_read:
                raise IncompatibleFeaturesError(str(error)) from error
            logger.error("features.malformed", error=str(error))
            return
        if problems := misfits(self.supported, features):
            raise IncompatibleFeaturesError("; ".join(problems))
        if features.status is FeaturesStatus.DISABLED:
            epoch = NO_EPOCH
        if (features, epoch) != (self._features, self.epoch) or not self._is_read:
            levels = {name: features.level(name) for name in sorted(features.features)}
            logger.info("features.finalized", epoch=epoch, **levels)
        self._features, self.epoch, self._is_read = features, epoch, True
        self.changed.set()
        self.changed = trio.Event()

    async def run(self) -> None:
        """Follow ``/features`` until cancelled. Raises ``IncompatibleFeaturesError``."""
        await follow(self._zk, self._read, lambda error: logger.warning("features.not_read", error=str(error)))

    async def _read(self, watch: Watch) -> None:
        await self._zk.exists(Features.PATH, watch)  # its watch notices a creation, too
        await self.load(watch)

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``condition()`` holds for the finalized features; returns whether it does."""
        with trio.move_on_after(timeout_s):
            while not condition():
                await self.changed.wait()
        return condition()
