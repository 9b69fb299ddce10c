"""The kinds of elections and of feature updates, as requests name them."""

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
