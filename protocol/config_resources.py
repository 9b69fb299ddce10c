"""The types of config resources on the wire (KIP-226, KIP-412)."""

from __future__ import annotations

import enum


class ResourceType(enum.IntEnum):
    """The resource whose configs are described or changed."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
