"""When the user's state for moved keys is loaded, and when a loaded state is given up.

A load covers the entries of a lineage that were satisfied when it was called. A batch above an entry that no load
covers needs a load first. If a position is lowered, the earlier records come again and change the state: the loads that
covered them are revoked.
"""

from __future__ import annotations

from typing import NamedTuple

from anabranch.ordered_resize.facts import Lineage
from anabranch.ordered_resize.lineage import BELOW_EVERY_EPOCH, EVERY_EPOCH


class Loaded(NamedTuple):
    """Cap and floor at the call of a partition's last load. After an assignment nothing was loaded."""

    cap: int = -1
    floor: int = -1


def loaded_up_to(known: Lineage, loaded: Loaded) -> int:
    """The highest leader epoch whose batches need no load first; ``EVERY_EPOCH``: all, ``BELOW_EVERY_EPOCH``: none.

    This is rule 13. If the floor is above both values of ``loaded``, entries were dropped that no load covered, and a
    load is due before any batch. The cap alone does not show this, because an entry that waits below the floor keeps
    the cap below the floor.
    """
    if known.floor > max(loaded.cap, loaded.floor):
        return BELOW_EVERY_EPOCH
    return next((entry.epoch - 1 for entry in known.entries if entry.epoch > loaded.cap), EVERY_EPOCH)


def is_load_due(known: Lineage, loaded: Loaded, epoch: int) -> bool:
    """Whether the user has to load before a batch of this leader epoch, which is not above the cap."""
    return epoch > loaded_up_to(known, loaded)


class PartitionLoads:
    """The loads of one partition that the consumer owns."""

    __slots__ = ("_lowest", "is_revoked", "loaded")

    def __init__(self) -> None:
        self.loaded = Loaded()
        self.is_revoked = False
        """Whether the loaded state is stale, and the user's revoke callback is due."""
        self._lowest = -1
        """The lowest cap since the call of the last load."""

    def on_cap(self, cap: int) -> None:
        """Note the cap, which may have changed. If it is below the loaded one, the loaded state may change again."""
        self._lowest = min(self._lowest, cap)
        if cap < self.loaded.cap:
            self.loaded = self.loaded._replace(cap=cap)
            self.is_revoked = True

    def called(self, cap: int, floor: int) -> Loaded:
        """The epochs that a load called now covers. The caller passes them to ``returned``."""
        self._lowest = cap
        return Loaded(cap, floor)

    def returned(self, called: Loaded) -> None:
        """Note that a load covers the epochs satisfied at its call, unless they were revoked since."""
        self.loaded = Loaded(min(called.cap, self._lowest), called.floor)
