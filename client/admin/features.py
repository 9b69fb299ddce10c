"""Converts feature levels (KIP-584) between protocol messages and the types of ``Admin``. No IO."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.client.admin.codec import code_error
from anabranch.client.admin.types import FeatureMetadata, FeatureUpdate, LevelRange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.api_versions import ApiVersionsResponse
from anabranch.protocol.generated.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse


def read_features(response: ApiVersionsResponse) -> FeatureMetadata:
    return FeatureMetadata(
        supported={key.name: LevelRange(key.min_version, key.max_version) for key in response.supported_features},
        finalized={
            key.name: LevelRange(key.min_version_level, key.max_version_level) for key in response.finalized_features
        },
        epoch=None if response.finalized_features_epoch < 0 else response.finalized_features_epoch,
    )


def update_request(
    updates: Mapping[str, FeatureUpdate], timeout_ms: int, *, validate_only: bool
) -> UpdateFeaturesRequest:
    """A request for version 1, which distinguishes safe downgrades from unsafe ones."""
    keys = [
        FeatureUpdateKey(feature=name, max_version_level=update.max_version_level, upgrade_type=int(update.type))
        for name, update in updates.items()
    ]
    return UpdateFeaturesRequest(timeout_ms=timeout_ms, feature_updates=keys, validate_only=validate_only)


def read_results(response: UpdateFeaturesResponse) -> dict[str, KafkaError | None]:
    """Each feature's error, None if its update was applied. Raises the error of the whole request."""
    error = code_error(response.error_code, message=response.error_message)
    if error is not None:
        raise error
    return {result.feature: code_error(result.error_code, message=result.error_message) for result in response.results}
