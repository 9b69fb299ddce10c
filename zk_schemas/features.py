"""``/features``: the finalized feature levels of the cluster (KIP-584). Its zkVersion is the features epoch."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from zk_schemas import paths
from zk_schemas.znode import MalformedZnodeError, ZnodeReader, encode_fields

ORDERED_RESIZE = "ordered_resize"
"""The feature of brokers that check partition layouts, so that topics may be resized (KIP-253)."""


class FeaturesStatus(enum.IntEnum):
    DISABLED = 0
    ENABLED = 1


@dataclass(frozen=True, slots=True)
class FinalizedFeature:
    """The levels every broker of the cluster must support."""

    min_version_level: int
    max_version_level: int
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Features:
    """All finalized features by name."""

    status: FeaturesStatus = FeaturesStatus.ENABLED
    features: dict[str, FinalizedFeature] = field(default_factory=dict)
    version: int = 1
    extra: dict[str, Any] = field(default_factory=dict)

    PATH = paths.FEATURES

    @classmethod
    def decode(cls, path: str, data: bytes) -> Features:
        """Raises ``MalformedZnodeError``."""
        reader = ZnodeReader.parse(path, data)
        version = reader.integer("version", 1, low=1)
        status = FeaturesStatus(reader.integer("status", high=1))
        features = {}
        for name, nested in reader.objects("features").items():
            low, high = nested.integer("min_version_level", low=1), nested.integer("max_version_level", low=1)
            if low > high:
                raise MalformedZnodeError(path, f"features.{name}", "min_version_level is above max_version_level")
            features[name] = FinalizedFeature(low, high, nested.rest())
        return cls(status, features, version, reader.rest())

    def encode(self) -> bytes:
        levels = {
            name: {
                **feature.extra,
                "min_version_level": feature.min_version_level,
                "max_version_level": feature.max_version_level,
            }
            for name, feature in self.features.items()
        }
        return encode_fields({"version": self.version, "status": int(self.status), "features": levels}, self.extra)
