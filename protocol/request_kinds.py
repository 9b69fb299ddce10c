"""The kinds of elections, of feature updates, and of checks of a partition count, as requests name them."""

from __future__ import annotations

import enum


class ElectionType(enum.IntEnum):
    """The replicas that ElectLeaders may elect."""

    PREFERRED = 0
    """The first replica, when it is in sync."""
    UNCLEAN = 1
    """Any live replica of a partition without a leader: records may be lost."""


class UpgradeType(enum.IntEnum):
    """The kinds of updates of a feature (UpdateFeatures version 1)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    """Refused if something would be lost."""
    UNSAFE_DOWNGRADE = 3


class StockCheck(enum.IntEnum):
    """The check for stock clients that a CreatePartitions request asks for."""

    NONE = 0
    """The response warns of stock producers that cannot follow the count."""
    RECORDS = 1
    """A stock admin client sent the request: the topic must have no records, or a count that stock clients follow."""
    PRODUCERS = 2
    """A dry run refuses the count if a stock producer that cannot follow it wrote lately."""
