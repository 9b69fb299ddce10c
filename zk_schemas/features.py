"""``/features``: the finalized feature levels of the cluster (KIP-584). Its zkVersion is the features epoch.

``SUPPORTED`` has the levels of each feature that this release supports; ``docs/upgrading.md`` explains each level to
operators.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import VersionRange
from anabranch.zk_schemas.znode import MalformedZnodeError, ZnodeReader, encode_fields

ORDERED_RESIZE = "ordered_resize"
"""Level 1: brokers check partition layouts (KIP-253); no topic is resized.
Level 2: topics may be resized, and order is kept by the lineage of each partition."""
LINEAGE_LEVEL = 2
"""From this level of ``ordered_resize`` on, state znodes have lineages."""
GROUP_COORDINATOR = "group_coordinator"
"""Level 1: Kafka's classic groups.
Level 2: coordinators also answer a group's position in a partition, which the hand-over of moved keys needs."""
CONSUMER_OFFSETS_TOPIC_SCHEMA = "consumer_offsets_topic_schema"
"""The record versions of ``__consumer_offsets`` (KIP-915).

Level 1: the highest versions without tagged fields. Level 2: flexible versions, where a committed offset has its
partition's incarnation.
"""

SUPPORTED: Mapping[str, VersionRange] = {
    CONSUMER_OFFSETS_TOPIC_SCHEMA: VersionRange(1, 2),
    GROUP_COORDINATOR: VersionRange(1, 2),
    ORDERED_RESIZE: VersionRange(1, LINEAGE_LEVEL),
}
REQUIRED: Mapping[tuple[str, int], Mapping[str, int]] = {
    (ORDERED_RESIZE, 1): {CONSUMER_OFFSETS_TOPIC_SCHEMA: 2, GROUP_COORDINATOR: 2},
}
"""By feature and level: the other features that must be finalized, at least at the given levels, from this level on."""
WITHOUT_MINIMUMS = MAX_VERSION = 2
"""Kafka writes ``/features`` in version 2 from 3.3 on (KIP-778): without minimum levels, which count as 1."""
MAX_LEVEL = 2**15 - 1
"""Requests and responses have levels as int16."""


class IncompatibleFeaturesError(Exception):
    """A process does not support the finalized features; the message names each of them."""


class FeaturesStatus(enum.IntEnum):
    DISABLED = 0
    ENABLED = 1


@dataclass(frozen=True, slots=True)
class FinalizedFeature:
    """The levels every broker of the cluster must support."""

    min_version_level: int
    max_version_level: int
    extra: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Features:
    """All finalized features by name."""

    status: FeaturesStatus = FeaturesStatus.ENABLED
    features: dict[str, FinalizedFeature] = field(default_factory=dict)
    version: int = 1
    extra: dict[str, Any] = field(default_factory=dict)

    PATH = paths.FEATURES

    def level(self, name: str) -> int:
        """The level in force. It is 0 if the feature is not finalized or the status is disabled."""
        found = self.in_force().features.get(name)
        return found.max_version_level if found is not None else 0

    def in_force(self) -> Features:
        """These features; without levels while the status is disabled, because written levels do not count then."""
        return self if self.status is FeaturesStatus.ENABLED or not self.features else replace(self, features={})

    @classmethod
    def decode(cls, path: str, data: bytes) -> Features:
        """Raises ``MalformedZnodeError``."""
        reader = ZnodeReader.parse(path, data)
        version = reader.integer("version", 1, low=1, high=MAX_VERSION)
        status = FeaturesStatus(reader.integer("status", high=1))
        if not reader.has("features"):
            reader.fail("features", "the field is missing")
        features = {}
        for name, nested in reader.objects("features").items():
            default = {} if version < WITHOUT_MINIMUMS else {"default": 1}
            low = nested.integer("min_version_level", low=1, high=MAX_LEVEL, **default)
            high = nested.integer("max_version_level", low=1, high=MAX_LEVEL)
            if low > high:
                raise MalformedZnodeError(
                    path, f"features.{name}", f"min_version_level is above max_version_level: {low} > {high}"
                )
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


def misfits(supported: Mapping[str, VersionRange], finalized: Features, who: str = "this process") -> list[str]:
    """Why a process with these ranges may not run with the finalized features, one line each; empty if it may run."""
    return [
        f"{name} is finalized at level {level}, {who} supports {described(supported.get(name))}"
        for name in sorted(finalized.features)
        if (level := finalized.level(name)) and not supports(supported, name, level)
    ]


def supports(supported: Mapping[str, VersionRange], name: str, level: int) -> bool:
    """Whether a process with these ranges knows the level."""
    return name in supported and supported[name].min_version <= level <= supported[name].max_version


def highest_level(name: str) -> int:
    """The highest level of a feature that this release has."""
    return SUPPORTED[name].max_version


def described(supported: VersionRange | None) -> str:
    """A range in words."""
    return "no level of it" if supported is None else f"levels {supported.min_version} to {supported.max_version}"


def parse_ranges(entries: Iterable[str]) -> dict[str, VersionRange]:
    """Parse entries ``name:min-max``. Raises ``ValueError`` for a range that this release does not support."""
    ranges: dict[str, VersionRange] = {}
    for entry in entries:
        name, _, levels = entry.partition(":")
        low, separator, high = levels.partition("-")
        if not separator or not low.isdigit() or not high.isdigit() or int(low) > int(high) or not int(low):
            raise ValueError(f"{entry!r} is not FEATURE:MIN-MAX with 1 <= MIN <= MAX")
        if name not in SUPPORTED:
            raise ValueError(f"{name!r} is not a feature of this release; it has {', '.join(sorted(SUPPORTED))}")
        if not all(supports(SUPPORTED, name, int(level)) for level in (low, high)):
            raise ValueError(f"{entry!r} is not within the {described(SUPPORTED[name])} that this release supports")
        if name in ranges:
            raise ValueError(f"{name!r} is named twice")
        ranges[name] = VersionRange(int(low), int(high))
    return ranges


@dataclass(frozen=True, slots=True)
class FeatureRanges:
    """Validates the entries of ``supported.features``."""

    def problem(self, value: Any) -> str | None:
        try:
            parse_ranges(value)
        except ValueError as error:
            return str(error)
        return None


def supported_by(entries: Iterable[str] | None) -> Mapping[str, VersionRange]:
    """The ranges of a process with this ``supported.features``, which is valid."""
    return SUPPORTED if entries is None else parse_ranges(entries)
