"""The effects of UpdateFeatures, and of features that the cluster finalizes without a request (KIP-584).

Each decision is made from an image and the registered brokers; ``test_feature_level_rules.py`` has the rules by
themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from anabranch.controller import features
from anabranch.controller.admin.update_features import decide, update_features
from anabranch.controller.carry_out import carry_out_all
from anabranch.controller.effects import Effects
from anabranch.controller.events import FeaturesChanged
from anabranch.controller.feature_level_rules import Update, for_new_cluster
from anabranch.controller.features import decide_settled
from anabranch.controller.image import ClusterImage, LiveBroker
from anabranch.controller.reads.brokers import LockedBrokers
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from anabranch.protocol.request_kinds import UpgradeType
from anabranch.runtime.env import CreateOp, SetOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint, VersionRange
from anabranch.zk_schemas.features import (
    CONSUMER_OFFSETS_TOPIC_SCHEMA,
    GROUP_COORDINATOR,
    ORDERED_RESIZE,
    SUPPORTED,
    Features,
    FeaturesStatus,
    FinalizedFeature,
)
from tests.support.controller.decisions import CONFIG, cluster, context_of, state
from tests.support.controller.topic_images import asked, image_of, resized

Ranges = Mapping[str, VersionRange]
UPGRADE, SAFE, UNSAFE = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE
PREVIOUS = {CONSUMER_OFFSETS_TOPIC_SCHEMA: VersionRange(1, 1), GROUP_COORDINATOR: VersionRange(1, 1)}
"""The levels that a release before ordered resize supports."""
TWO_ONLY = {**SUPPORTED, GROUP_COORDINATOR: VersionRange(2, 2)}
RISEN = Features(FeaturesStatus.ENABLED, {GROUP_COORDINATOR: FinalizedFeature(2, 2)})
EPOCH, LOCK = 3, 8
"""The zkVersions of ``/features`` and ``/brokers/registrations``."""


def brokers(*supported: Ranges, version: int = LOCK) -> LockedBrokers:
    endpoints = [Endpoint("PLAINTEXT", "a", 9092)]
    live = {
        id: LiveBroker(id, 5, BrokerRegistration(endpoints, features=dict(ranges)))
        for id, ranges in enumerate(supported or (SUPPORTED, SUPPORTED), 1)
    }
    return LockedBrokers(live, version)


def image_with(finalized: Features | None = None, epoch: int = EPOCH) -> ClusterImage:
    """Return an image without topics, by default with every feature finalized."""
    image = cluster()
    image.topics.clear()
    image.features, image.features_epoch = finalized or for_new_cluster(SUPPORTED), epoch
    return image


def update(
    wanted: Mapping[str, int],
    kind: UpgradeType = UPGRADE,
    image: ClusterImage | None = None,
    registered: LockedBrokers | None = None,
    **more: Any,
) -> Effects:
    updates = [Update(name, level, kind) for name, level in wanted.items()]
    return decide(image or image_with(), CONFIG, updates, registered or brokers(), **more)


def codes(effects: Effects) -> dict[str, int]:
    assert effects.response.error_code == ErrorCode.NONE
    return {result.feature: result.error_code for result in effects.response.results}


def written(effects: Effects) -> dict[str, int]:
    """Return the levels in ``effects``; assert that the writes expect the znode versions that were read."""
    lock, op = effects.writes
    assert lock == SetOp(paths.REGISTRATIONS, b"", LOCK)
    assert isinstance(op, SetOp) and (op.path, op.version) == (paths.FEATURES, EPOCH)
    found = Features.decode(op.path, op.data)
    assert found == effects.features
    return {name: found.level(name) for name in found.features}


DOWN = {ORDERED_RESIZE: 0, CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}


def test_levels_are_written_and_the_next_version_of_the_znode_is_answered() -> None:
    image = image_with()
    effects = update(DOWN, SAFE, image)
    assert written(effects) == {CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}
    assert codes(effects) == dict.fromkeys(DOWN, ErrorCode.NONE)
    assert (effects.response.features_epoch, effects.events) == (EPOCH + 1, ())
    assert image == image_with(), "a decision changed the image"


def test_each_write_of_the_features_changes_the_version_of_the_registrations_znode() -> None:
    """Model: off_controller_sets. A broker that read the old features cannot register with them."""
    raised = decide_settled(image_with(), CONFIG, brokers(TWO_ONLY, TWO_ONLY))
    for effects in (update(DOWN, SAFE), raised):
        lock, op = effects.writes
        assert lock == SetOp(paths.REGISTRATIONS, b"", LOCK)
        assert op.path == paths.FEATURES


def test_valid_updates_are_written_although_others_are_refused() -> None:
    effects = update({ORDERED_RESIZE: 0, "unknown": 1}, SAFE)
    assert ORDERED_RESIZE not in written(effects)
    assert codes(effects) == {ORDERED_RESIZE: ErrorCode.NONE, "unknown": ErrorCode.INVALID_REQUEST}


def test_a_validation_has_the_same_response_and_writes_nothing() -> None:
    effects = update({ORDERED_RESIZE: 0, "unknown": 1}, SAFE, validate_only=True)
    assert effects == Effects(response=effects.response)
    assert codes(effects) == {ORDERED_RESIZE: ErrorCode.NONE, "unknown": ErrorCode.INVALID_REQUEST}
    assert effects.response.features_epoch == -1


def test_the_first_update_creates_the_znodes_that_are_missing_and_has_them_watched() -> None:
    image = image_with(Features(FeaturesStatus.DISABLED), -1)
    effects = update({GROUP_COORDINATOR: 1}, image=image, registered=brokers(SUPPORTED, version=-1))
    assert effects.features is not None and effects.features.status is FeaturesStatus.ENABLED
    assert effects.writes == (
        CreateOp(paths.REGISTRATIONS, b""),
        CreateOp(paths.FEATURES, effects.features.encode()),
    )
    assert (effects.response.features_epoch, effects.events) == (0, (FeaturesChanged(),))


@dataclass(frozen=True)
class Refusal:
    """An update that is refused: the requested levels, the error code, and a part of its message.

    ``second``: the levels that the second broker supports. ``finalized``: None means every feature.
    """

    wanted: Mapping[str, int]
    kind: UpgradeType
    code: ErrorCode
    message_part: str
    second: Ranges | None = None
    finalized: Features | None = None


INVALID, FAILED = ErrorCode.INVALID_REQUEST, ErrorCode.FEATURE_UPDATE_FAILED
REFUSALS = {
    "feature without a name": Refusal({"": 1}, UPGRADE, INVALID, "needs a name"),
    "unknown feature": Refusal({"unknown": 1}, UPGRADE, INVALID, "'unknown' is not supported"),
    "unknown feature deleted": Refusal({"unknown": 0}, SAFE, INVALID, "'unknown' is not finalized"),
    "level out of range": Refusal({GROUP_COORDINATOR: 9}, UPGRADE, INVALID, "supports levels 1 to 2"),
    "level in force": Refusal({GROUP_COORDINATOR: 2}, UPGRADE, INVALID, "finalized at level 2 already"),
    "downgrade without permission": Refusal({GROUP_COORDINATOR: 1}, UPGRADE, INVALID, "allow the downgrade"),
    "deletion without permission": Refusal({ORDERED_RESIZE: 0}, UPGRADE, INVALID, "allow the downgrade"),
    "upgrade as a downgrade": Refusal({ORDERED_RESIZE: 1}, SAFE, INVALID, "nothing to downgrade", finalized=RISEN),
    "below the finalized minimum": Refusal({GROUP_COORDINATOR: 1}, UNSAFE, INVALID, "minimum level 2", finalized=RISEN),
    "below a broker's minimum": Refusal(
        {GROUP_COORDINATOR: 1}, SAFE, FAILED, "broker 2 supports levels 2 to 2", TWO_ONLY
    ),
    "broker that does not support the level": Refusal(
        {ORDERED_RESIZE: 1}, UPGRADE, FAILED, "broker 2 supports no level of it", PREVIOUS, RISEN
    ),
    "broker znode without features": Refusal(
        {GROUP_COORDINATOR: 1}, SAFE, FAILED, "broker 2 supports no level of it", {}
    ),
    "needed by another feature": Refusal({GROUP_COORDINATOR: 1}, UNSAFE, FAILED, "'ordered_resize' needs"),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_an_update_that_is_refused_returns_a_reason_and_has_no_effect(refusal: Refusal) -> None:
    """Each refusal has the KIP's error."""
    registered = brokers(SUPPORTED, refusal.second) if refusal.second is not None else brokers()
    effects = update(refusal.wanted, refusal.kind, image_with(refusal.finalized), registered)
    assert effects == Effects(response=effects.response)
    (result,) = effects.response.results
    assert (result.error_code, refusal.message_part in result.error_message) == (refusal.code, True), (
        result.error_message
    )
    assert effects.response.features_epoch == -1


def test_an_update_fails_while_a_broker_of_a_release_without_features_is_registered() -> None:
    """The broker's registration has no field ``features`` at all."""
    content = json.loads(brokers().live[1].registration.encode())
    del content["features"]
    registration = BrokerRegistration.decode(paths.broker_id(2), json.dumps(content).encode())
    registered = brokers()
    live = {**registered.live, 2: LiveBroker(2, 5, registration)}
    effects = update({GROUP_COORDINATOR: 1}, SAFE, registered=LockedBrokers(live, LOCK))
    assert (codes(effects), effects.writes) == ({GROUP_COORDINATOR: FAILED}, ())
    assert "broker 2 supports no level of it" in effects.response.results[0].error_message


def test_a_downgrade_that_loses_the_order_of_resized_topics_needs_force() -> None:
    """KIP-915: the refusal names the loss."""
    image = image_with()
    image.topics["t"] = image_of(resized(4, 6))
    refused = update(DOWN, SAFE, image)
    assert (set(codes(refused).values()), refused.writes) == ({FAILED}, ())
    assert all(
        "not safe: topics t were resized or could not be loaded, and " in result.error_message
        for result in refused.response.results
    )
    forced = update(DOWN, UNSAFE, image)
    assert set(codes(forced).values()) == {ErrorCode.NONE}
    assert written(forced) == {CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}


def test_the_topics_that_a_downgrade_concerns_are_read_from_the_image() -> None:
    image = image_with()
    image.topics["t"] = image_of(resized(4, 6))
    effects = update({ORDERED_RESIZE: 0}, SAFE, image)
    assert (codes(effects), list(effects.writes)) == ({ORDERED_RESIZE: FAILED}, [])
    assert "topics t were resized" in effects.response.results[0].error_message
    assert ORDERED_RESIZE not in written(update({ORDERED_RESIZE: 0}, UNSAFE, image))
    image.topics["t"] = image_of(asked(4, 6))
    effects = update({ORDERED_RESIZE: 0}, UNSAFE, image)
    assert "Topics t are being resized" in effects.response.results[0].error_message
    assert "(t: partitions 4, 5 gain keys when" in effects.response.results[0].error_message


@pytest.mark.parametrize("kind", [SAFE, UNSAFE])
def test_a_topic_that_is_being_deleted_does_not_hold_a_downgrade(kind: UpgradeType) -> None:
    """The deletion may take as long as the resize, for example until a broker with its replicas comes back."""
    image = image_with()
    image.topics["t"] = image_of(asked(4, 6))
    image.deletions["t"] = {}
    assert set(codes(update(DOWN, kind, image)).values()) == {ErrorCode.NONE}


def test_a_lost_leader_of_a_topic_that_was_resized_long_ago_does_not_hold_a_forced_downgrade() -> None:
    image = image_with()
    image.topics["t"] = image_of(resized(4, 6), silent=[0])
    assert set(codes(update(DOWN, UNSAFE, image)).values()) == {ErrorCode.NONE}


# ---------------------------------------------------------------- without a request


def test_a_new_cluster_finalizes_everything_that_every_broker_supports() -> None:
    image = image_with(Features(FeaturesStatus.DISABLED), -1)
    effects = decide_settled(image, CONFIG, brokers(version=-1))
    assert (effects.features, effects.events) == (for_new_cluster(SUPPORTED), (FeaturesChanged(),))


def test_a_new_cluster_is_finalized_before_its_first_broker_registers() -> None:
    image = image_with(Features(FeaturesStatus.DISABLED), -1)
    assert decide_settled(image, CONFIG, LockedBrokers({}, -1)).features == for_new_cluster(SUPPORTED)


def test_a_new_cluster_with_a_broker_of_the_previous_release_finalizes_nothing() -> None:
    image = image_with(Features(FeaturesStatus.DISABLED), -1)
    older = decide_settled(image, CONFIG, brokers(SUPPORTED, PREVIOUS))
    assert older.features == Features(FeaturesStatus.DISABLED)


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_cluster_with_topics_and_without_features_is_disabled(is_readable: bool) -> None:
    image = image_with(Features(FeaturesStatus.DISABLED), -1)
    if is_readable:
        image.topics = cluster(state(1, [1])).topics
    else:
        image.malformed["t"] = 7
    effects = decide_settled(image, CONFIG, brokers())
    assert effects.features == Features(FeaturesStatus.DISABLED)
    assert effects.writes[1] == CreateOp(paths.FEATURES, effects.features.encode())


def test_the_minimum_level_rises_once_no_broker_supports_the_old_level() -> None:
    assert decide_settled(image_with(), CONFIG, brokers(SUPPORTED, TWO_ONLY)) == Effects()
    effects = decide_settled(image_with(), CONFIG, brokers(TWO_ONLY, TWO_ONLY))
    assert written(effects)[GROUP_COORDINATOR] == 2
    assert effects.features is not None
    assert effects.features.features[GROUP_COORDINATOR].min_version_level == 2


# ---------------------------------------------------------------- carrying out


async def carried_out(context: Any, *keys: FeatureUpdateKey, version: int = 1) -> Any:
    """Carry out a request while broker 1 is registered, and return the response."""
    request = UpdateFeaturesRequest(feature_updates=list(keys))
    return (await carry_out_all(context, update_features(context, request, version, brokers(SUPPORTED)))).response


@pytest.mark.trio
@pytest.mark.parametrize(("allowed", "code"), [(False, INVALID), (True, ErrorCode.NONE)])
async def test_version_0_allows_a_downgrade_by_its_flag(allowed: bool, code: ErrorCode) -> None:
    context = context_of(image_with())
    key = FeatureUpdateKey(feature=ORDERED_RESIZE, max_version_level=0, allow_downgrade=allowed)
    response = await carried_out(context, key, version=0)
    assert [result.error_code for result in response.results] == [code]
    assert bool(context.image.features.level(ORDERED_RESIZE)) is not allowed


@pytest.mark.trio
@pytest.mark.parametrize(
    ("keys", "problem", "code", "said"),
    [
        ([], "", INVALID, "names no feature"),
        (
            [FeatureUpdateKey(feature=GROUP_COORDINATOR, max_version_level=1, upgrade_type=9)],
            "",
            INVALID,
            "Upgrade type 9 of 'group_coordinator'",
        ),
        (
            [FeatureUpdateKey(feature=ORDERED_RESIZE, max_version_level=0, upgrade_type=SAFE)],
            "znode /features: field status: 7",
            FAILED,
            "/features: field status: 7: repair it first.",
        ),
    ],
    ids=["no feature", "unknown type", "malformed /features"],
)
async def test_an_invalid_request_is_refused_as_a_whole(
    keys: list[FeatureUpdateKey], problem: str, code: ErrorCode, said: str
) -> None:
    context = context_of(image_with())
    context.image.features_problem = problem
    response = await carried_out(context, *keys)
    assert (response.error_code, said in response.error_message) == (code, True), response.error_message
    assert (response.features_epoch, context.store.multis) == (-1, [])


@pytest.mark.trio
async def test_the_image_has_the_written_features_with_the_version_of_their_znode() -> None:
    context = context_of(image_with())
    with structlog.testing.capture_logs() as logs:
        await carry_out_all(context, features.write(context, update(DOWN, SAFE, context.image)))
        await carry_out_all(context, features.write(context, Effects()))
    (multi,) = context.store.multis
    assert [op.path for op in multi] == [paths.REGISTRATIONS, paths.FEATURES]
    assert context.image.features_epoch == EPOCH + 1
    levels = {CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}
    assert {name: context.image.features.level(name) for name in context.image.features.features} == levels
    (line,) = logs
    assert (line["event"], line["epoch"], line["levels"]) == ("features.written", EPOCH + 1, levels)
