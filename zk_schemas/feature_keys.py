"""The features in a response to ApiVersions (KIP-584), of a broker and of a controller."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.protocol.generated.api_versions import FinalizedFeatureKey, SupportedFeatureKey
from anabranch.zk_schemas.broker_registration import VersionRange
from anabranch.zk_schemas.features import Features


def supported_keys(supported: Mapping[str, VersionRange]) -> list[SupportedFeatureKey]:
    return [
        SupportedFeatureKey(name=name, min_version=own.min_version, max_version=own.max_version)
        for name, own in sorted(supported.items())
    ]


def finalized_keys(features: Features) -> list[FinalizedFeatureKey]:
    """The features in force: none while the status is disabled."""
    return [
        FinalizedFeatureKey(
            name=name, min_version_level=found.min_version_level, max_version_level=found.max_version_level
        )
        for name, found in sorted(features.in_force().features.items())
    ]
