"""The rules of UpdateFeatures (KIP-584), one test each: the errors, and the znode's content afterwards."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller.feature_level_rules import (
    FeatureFacts,
    Update,
    for_new_cluster,
    judge,
    with_risen_minimums,
)
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.request_kinds import UpgradeType
from anabranch.zk_schemas.broker_registration import VersionRange
from anabranch.zk_schemas.features import (
    CONSUMER_OFFSETS_TOPIC_SCHEMA,
    GROUP_COORDINATOR,
    LINEAGE_LEVEL,
    ORDERED_RESIZE,
    SUPPORTED,
    Features,
    FeaturesStatus,
    FinalizedFeature,
    misfits,
    parse_ranges,
)

SAFE, UNSAFE, UPGRADE = UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE, UpgradeType.UPGRADE
TRANSACTIONS, GROUPS = "transaction_coordinator", "group_coordinator"
RANGES = {GROUPS: VersionRange(1, 3), TRANSACTIONS: VersionRange(1, 5)}
"""Features without requirements between them."""


def finalized(**levels: tuple[int, int]) -> Features:
    return Features(FeaturesStatus.ENABLED, {name: FinalizedFeature(*found) for name, found in levels.items()})


def cluster(*brokers: Mapping[str, VersionRange], supported: Mapping[str, VersionRange] = RANGES) -> FeatureFacts:
    return FeatureFacts(supported, dict(enumerate(brokers or [RANGES, RANGES], 1)))


def code(before: Features, update: Update, among: FeatureFacts | None = None) -> ErrorCode:
    """Return the error of one update, or NONE. Checks that a refused update changes nothing."""
    after, errors = judge(before, [update], among or cluster())
    error = errors[update.feature]
    assert error is None or after == before
    assert error is None or error.message
    return ErrorCode.NONE if error is None else error.code


def test_a_feature_that_is_not_finalized_is_added_with_the_lowest_minimum() -> None:
    older = {**RANGES, GROUPS: VersionRange(2, 3)}
    after, errors = judge(finalized(), [Update(GROUPS, 3, UPGRADE)], cluster(RANGES, older))
    assert errors == {GROUPS: None}
    assert after == finalized(group_coordinator=(1, 3))


def test_an_upgrade_raises_the_maximum_level_alone() -> None:
    after, _ = judge(finalized(group_coordinator=(1, 1)), [Update(GROUPS, 2, UPGRADE)], cluster())
    assert after == finalized(group_coordinator=(1, 2))


@pytest.mark.parametrize("kind", [SAFE, UNSAFE])
def test_a_downgrade_needs_permission(kind: UpgradeType) -> None:
    before = finalized(group_coordinator=(1, 3))
    assert code(before, Update(GROUPS, 2, UPGRADE)) is ErrorCode.INVALID_REQUEST
    after, errors = judge(before, [Update(GROUPS, 2, kind)], cluster())
    assert errors == {GROUPS: None} and after == finalized(group_coordinator=(1, 2))


@pytest.mark.parametrize("level", [0, -1])
def test_a_level_below_1_deletes_a_feature_with_permission(level: int) -> None:
    before = finalized(group_coordinator=(1, 3))
    assert code(before, Update(GROUPS, level, UPGRADE)) is ErrorCode.INVALID_REQUEST
    after, errors = judge(before, [Update(GROUPS, level, SAFE)], cluster())
    assert errors == {GROUPS: None} and after == finalized()


def test_a_feature_that_the_controller_does_not_know_can_only_be_deleted() -> None:
    assert code(finalized(), Update("unknown", 1, UPGRADE)) is ErrorCode.INVALID_REQUEST
    after, errors = judge(finalized(unknown=(1, 1)), [Update("unknown", 0, SAFE)], cluster())
    assert errors == {"unknown": None} and after == finalized()


def test_the_level_in_force_is_no_update_and_a_higher_one_no_downgrade() -> None:
    before = finalized(group_coordinator=(1, 2))
    assert code(before, Update(GROUPS, 2, UPGRADE)) is ErrorCode.INVALID_REQUEST
    assert code(before, Update(GROUPS, 2, SAFE)) is ErrorCode.INVALID_REQUEST
    assert code(before, Update(GROUPS, 3, SAFE)) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("lacking", [{GROUPS: VersionRange(1, 2)}, {GROUPS: VersionRange(4, 9)}, {}])
def test_a_level_that_a_live_broker_does_not_support_is_refused(lacking: Mapping[str, VersionRange]) -> None:
    """Model: off_judge."""
    among = cluster(RANGES, lacking)
    assert code(finalized(), Update(GROUPS, 3, UPGRADE), among) is ErrorCode.FEATURE_UPDATE_FAILED
    _, errors = judge(finalized(), [Update(GROUPS, 3, UPGRADE)], among)
    assert "broker 2" in str(errors[GROUPS])


def test_without_a_broker_nothing_is_finalized() -> None:
    nobody = FeatureFacts(RANGES, {})
    assert code(finalized(), Update(GROUPS, 1, UPGRADE), nobody) is ErrorCode.FEATURE_UPDATE_FAILED


def test_each_feature_has_its_own_error_and_valid_updates_are_applied() -> None:
    updates = [Update(GROUPS, 9, UPGRADE), Update(TRANSACTIONS, 4, UPGRADE), Update("", 1, UPGRADE)]
    after, errors = judge(finalized(), updates, cluster())
    assert after == finalized(transaction_coordinator=(1, 4))
    assert {name: error and error.code for name, error in errors.items()} == {
        GROUPS: ErrorCode.INVALID_REQUEST,
        TRANSACTIONS: None,
        "": ErrorCode.INVALID_REQUEST,
    }


def test_a_feature_named_twice_is_refused_once() -> None:
    after, errors = judge(finalized(), [Update(GROUPS, 1, UPGRADE), Update(GROUPS, 2, UPGRADE)], cluster())
    assert after == finalized() and [error and error.code for error in errors.values()] == [ErrorCode.INVALID_REQUEST]


def test_a_safe_downgrade_that_loses_something_is_refused_and_an_unsafe_one_is_not() -> None:
    """KIP-915: the operator may force a downgrade that is not backward compatible."""
    losing = FeatureFacts(RANGES, {1: RANGES}, lost=lambda feature, level: f"{feature} {level} loses it.")
    before = finalized(group_coordinator=(1, 3))
    for level in (1, 0):
        assert code(before, Update(GROUPS, level, SAFE), losing) is ErrorCode.FEATURE_UPDATE_FAILED
        _, errors = judge(before, [Update(GROUPS, level, SAFE)], losing)
        assert f"{GROUPS} {level} loses it." in str(errors[GROUPS])
        assert code(before, Update(GROUPS, level, UNSAFE), losing) is ErrorCode.NONE


def test_a_blocked_downgrade_is_refused_even_if_it_is_unsafe() -> None:
    blocked = FeatureFacts(RANGES, {1: RANGES}, blocked=lambda feature, level: "wait")
    assert code(finalized(group_coordinator=(1, 3)), Update(GROUPS, 1, UNSAFE), blocked) is (
        ErrorCode.FEATURE_UPDATE_FAILED
    )


def test_ordered_resize_is_finalized_together_with_the_features_that_it_needs() -> None:
    release = cluster(SUPPORTED, supported=SUPPORTED)
    alone, errors = judge(finalized(), [Update(ORDERED_RESIZE, LINEAGE_LEVEL, UPGRADE)], release)
    assert alone == finalized()
    error = errors[ORDERED_RESIZE]
    assert error is not None and error.code is ErrorCode.FEATURE_UPDATE_FAILED
    together = [Update(name, SUPPORTED[name].max_version, UPGRADE) for name in SUPPORTED]
    after, errors = judge(finalized(), together, release)
    assert set(errors.values()) == {None}
    assert after.level(ORDERED_RESIZE) == LINEAGE_LEVEL


@pytest.mark.parametrize(("needed", "level"), [(CONSUMER_OFFSETS_TOPIC_SCHEMA, 1), (GROUP_COORDINATOR, 0)])
def test_a_feature_that_ordered_resize_needs_is_not_lowered(needed: str, level: int) -> None:
    release = cluster(SUPPORTED, supported=SUPPORTED)
    everything = for_new_cluster(SUPPORTED)
    after, errors = judge(everything, [Update(needed, level, UNSAFE)], release)
    error = errors[needed]
    assert after == everything and error is not None and error.code is ErrorCode.FEATURE_UPDATE_FAILED
    both = [Update(needed, level, UNSAFE), Update(ORDERED_RESIZE, 0, UNSAFE)]
    after, errors = judge(everything, both, release)
    assert set(errors.values()) == {None} and after.level(ORDERED_RESIZE) == 0


def test_an_update_that_needs_a_refused_update_is_refused_too() -> None:
    release = cluster(SUPPORTED, supported=SUPPORTED)
    updates = [
        Update(ORDERED_RESIZE, 1, UPGRADE),
        Update(GROUP_COORDINATOR, 2, UPGRADE),
        Update(CONSUMER_OFFSETS_TOPIC_SCHEMA, 9, UPGRADE),
    ]
    after, errors = judge(finalized(), updates, release)
    assert [name for name, error in errors.items() if error is None] == [GROUP_COORDINATOR]
    assert after == finalized(group_coordinator=(1, 2))


def test_the_first_update_enables_a_cluster_of_an_earlier_release() -> None:
    before = Features(FeaturesStatus.DISABLED)
    after, _ = judge(before, [Update(GROUPS, 1, UPGRADE)], cluster())
    assert after.status is FeaturesStatus.ENABLED and after.level(GROUPS) == 1
    refused, _ = judge(before, [Update(GROUPS, 9, UPGRADE)], cluster())
    assert refused == before


def test_a_disabled_status_finalizes_nothing() -> None:
    disabled = Features(FeaturesStatus.DISABLED, {GROUPS: FinalizedFeature(1, 3)})
    assert disabled.level(GROUPS) == 0 and misfits({}, disabled) == []


def test_levels_behind_a_disabled_status_decide_no_update() -> None:
    """They are shown to nobody, so an update is judged as if there were none. The first update drops them."""
    disabled = Features(FeaturesStatus.DISABLED, {GROUPS: FinalizedFeature(1, 2), TRANSACTIONS: FinalizedFeature(1, 1)})
    for level in (1, 2, 3):
        after, errors = judge(disabled, [Update(GROUPS, level, UPGRADE)], cluster())
        assert errors == {GROUPS: None} and after == finalized(group_coordinator=(1, level))
    for level in (0, 1):
        after, errors = judge(disabled, [Update(GROUPS, level, UNSAFE)], cluster())
        assert "not finalized" in str(errors[GROUPS]) and after == disabled
    assert with_risen_minimums(disabled, [{GROUPS: VersionRange(2, 9)}]) == disabled


@pytest.mark.parametrize(
    ("minimums", "risen"), [((1, 1), 1), ((2, 1), 1), ((2, 2), 2), ((3, 2), 2), ((9, 9), 3), ((), 1)]
)
def test_the_minimum_level_follows_the_lowest_of_the_brokers_and_never_passes_the_maximum(
    minimums: tuple[int, ...], risen: int
) -> None:
    brokers = [{GROUPS: VersionRange(low, 9)} for low in minimums]
    assert with_risen_minimums(finalized(group_coordinator=(1, 3)), brokers) == finalized(group_coordinator=(risen, 3))


def test_the_minimum_level_never_falls_and_does_not_rise_past_a_broker_without_the_feature() -> None:
    before = finalized(group_coordinator=(2, 3))
    assert with_risen_minimums(before, [{GROUPS: VersionRange(1, 3)}]) == before
    assert with_risen_minimums(before, [{GROUPS: VersionRange(3, 3)}, {}]) == before


def test_a_process_fits_when_it_supports_the_level_in_force() -> None:
    before = finalized(group_coordinator=(1, 3))
    assert misfits({GROUPS: VersionRange(3, 9)}, before) == []
    for own in ({}, {GROUPS: VersionRange(1, 2)}, {GROUPS: VersionRange(4, 9)}):
        [line] = misfits(own, before)
        assert GROUPS in line and "level 3" in line


levels = st.integers(-1, 4)
updates = st.lists(
    st.builds(Update, st.sampled_from([*SUPPORTED, "unknown"]), levels, st.sampled_from(UpgradeType)), max_size=4
)
ranges = st.dictionaries(
    st.sampled_from(sorted(SUPPORTED)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)).map(lambda pair: VersionRange(min(pair), max(pair))),
)


@given(updates=st.lists(updates, max_size=4), brokers=st.lists(ranges, max_size=3))
def test_any_requests_leave_levels_that_every_broker_supports(
    updates: list[list[Update]], brokers: list[Mapping[str, VersionRange]]
) -> None:
    """At first nothing is finalized. Each request is checked against the outcome of the previous request."""
    found = finalized()
    among = FeatureFacts(SUPPORTED, dict(enumerate(brokers)))
    for asked in updates:
        found, errors = judge(found, asked, among)
        assert errors.keys() == {update.feature for update in asked}
        assert all(isinstance(error, KafkaError | None) for error in errors.values())
        assert not any(misfits(own, found) for own in brokers)
        assert all(f.min_version_level <= f.max_version_level for f in found.features.values())
        if found.level(ORDERED_RESIZE):
            assert found.level(CONSUMER_OFFSETS_TOPIC_SCHEMA) >= 2 <= found.level(GROUP_COORDINATOR)
        found = with_risen_minimums(found, brokers)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (["group_coordinator"], "FEATURE:MIN-MAX"),
        (["group_coordinator:1"], "FEATURE:MIN-MAX"),
        (["group_coordinator:0-1"], "FEATURE:MIN-MAX"),
        (["group_coordinator:2-1"], "FEATURE:MIN-MAX"),
        (["group_coordinator:1-9"], "is not within the levels 1 to 2"),
        (["other:1-1"], "not a feature"),
        (["group_coordinator:1-1", "group_coordinator:1-2"], "twice"),
    ],
)
def test_malformed_or_unsupported_feature_ranges_are_refused(entries: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_ranges(entries)
    assert parse_ranges(["group_coordinator:1-1"]) == {GROUPS: VersionRange(1, 1)}
