"""ApiVersions of a controller: the features that it supports, and those of the cluster (KIP-584)."""

from __future__ import annotations

import pytest

from anabranch.controller.admin.dispatch import api_versions
from anabranch.controller.image import ClusterImage
from anabranch.protocol.errors import ErrorCode
from anabranch.zk_schemas.features import SUPPORTED, Features, FeaturesStatus, FinalizedFeature

LEVELS = {"groups": FinalizedFeature(1, 2)}


def image(features: Features) -> ClusterImage:
    return ClusterImage(1000, 3, features=features, features_epoch=7)


def test_the_active_controller_names_supported_and_finalized_features() -> None:
    found = api_versions(SUPPORTED, image(Features(features=LEVELS)))
    assert [key.name for key in found.supported_features] == sorted(SUPPORTED)
    assert [(key.name, key.min_version_level, key.max_version_level) for key in found.finalized_features] == [
        ("groups", 1, 2)
    ]
    assert found.finalized_features_epoch == 7


@pytest.mark.parametrize("known", [None, image(Features(FeaturesStatus.DISABLED, LEVELS))], ids=["standby", "disabled"])
def test_a_standby_and_a_disabled_cluster_have_no_finalized_features(known: ClusterImage | None) -> None:
    found = api_versions(SUPPORTED, known)
    assert (found.finalized_features, found.finalized_features_epoch) == ([], -1)
    assert len(found.supported_features) == len(SUPPORTED)


def test_an_unknown_version_is_answered_with_the_range_of_this_api_alone() -> None:
    found = api_versions(SUPPORTED, None, ErrorCode.UNSUPPORTED_VERSION)
    assert [key.api_key for key in found.api_keys] == [18]
