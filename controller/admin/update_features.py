"""UpdateFeatures (57): upgrade, downgrade or delete finalized features (KIP-584, Proposed Changes).

Each feature has its own error, and the valid updates are written together. In version 0, ``allow_downgrade`` means the
safe downgrade of version 1, which loses nothing. An invalid request is refused as a whole.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from anabranch.controller import feature_level_rules, features
from anabranch.controller.config import ControllerConfig
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.feature_level_rules import FeatureFacts, Update, judge
from anabranch.controller.image import ClusterImage
from anabranch.controller.outcome import Outcome
from anabranch.controller.reads.brokers import LockedBrokers
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from anabranch.protocol.request_kinds import UpgradeType
from anabranch.protocol.sentinels import NO_EPOCH

MOST_UPDATES = 1_000
"""More features than there will ever be. The updates of a request are judged together, in one piece."""


def update_features(
    context: Context, request: UpdateFeaturesRequest, version: int, brokers: LockedBrokers
) -> Decisions[Outcome]:
    """Raises ``ControllerMovedError``, ``ImageStaleError``; ``ZkError`` when ``/features`` cannot be written."""
    try:
        if (count := len(request.feature_updates)) > MOST_UPDATES:
            many = f"The request names {count} features; at most {MOST_UPDATES} are updated at once."
            raise KafkaError(ErrorCode.INVALID_REQUEST, many)
        updates = [_update(asked, version) for asked in request.feature_updates]
        if not updates:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names no feature.")
        if context.image.features_problem:
            raise KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, f"{context.image.features_problem}: repair it first.")
    except KafkaError as error:
        return Outcome(UpdateFeaturesResponse(error_code=error.code, error_message=error.message))
    effects = decide(context.image, context.config, updates, brokers, validate_only=request.validate_only)
    yield from features.write(context, effects)
    return Outcome(effects.response)


def decide(
    image: ClusterImage,
    config: ControllerConfig,
    updates: Sequence[Update],
    brokers: LockedBrokers,
    *,
    validate_only: bool = False,
) -> Effects:
    """The effects of the updates that are valid, given the registered brokers."""
    cluster = FeatureFacts(
        config.features,
        {id: broker.registration.features for id, broker in brokers.live.items()},
        lost=functools.partial(feature_level_rules.lost, image),
        blocked=functools.partial(feature_level_rules.blocked, image),
    )
    finalized, errors = judge(image.features, updates, cluster)
    results = [
        UpdatableFeatureResult(feature=name)
        if error is None
        else UpdatableFeatureResult(feature=name, error_code=error.code, error_message=error.message)
        for name, error in errors.items()
    ]
    if validate_only or finalized == image.features:
        return Effects(response=UpdateFeaturesResponse(results=results, features_epoch=NO_EPOCH))
    response = UpdateFeaturesResponse(results=results, features_epoch=image.features_epoch + 1)
    return replace(features.becoming(image, finalized, brokers), response=response)


def _update(asked: FeatureUpdateKey, version: int) -> Update:
    """Convert one update of a request. Raises ``KafkaError`` for an unknown upgrade type."""
    if version == 0:
        kind = UpgradeType.SAFE_DOWNGRADE if asked.allow_downgrade else UpgradeType.UPGRADE
        return Update(asked.feature, asked.max_version_level, kind)
    try:
        return Update(asked.feature, asked.max_version_level, UpgradeType(asked.upgrade_type))
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Upgrade type {asked.upgrade_type} of {asked.feature!r} is not 1 (upgrade), 2 (safe downgrade) or 3"
            " (unsafe downgrade).",
        ) from None
