"""The records of a resized topic for which partitions wait, and how long retention keeps such records."""

from __future__ import annotations

import pytest

from anabranch.controller import config_writes
from anabranch.controller.image import ClusterImage
from anabranch.controller.resize.unread_expiry import ALL, Rules, awaited, rules_of
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigZnode
from tests.support.controller.decisions import CONFIG
from tests.support.controller.topic_images import asked, image_of, resized
from tests.support.resize.resized_topic import Topic

NOW_MS = 10_000_000_000
WEEK_MS = 7 * 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("topic", "epochs"),
    [
        (Topic(4), {}),
        (resized(4, 6), {0: 0, 1: 0}),
        (resized(4, 6, 4), {0: 0, 1: 0, 4: ALL, 5: ALL}),
        (asked(4, 6), {0: ALL, 1: ALL}),
        (resized(4, 8, 16), {0: 1, 1: 1, 2: 1, 3: 1, 4: 0, 5: 0, 6: 0, 7: 0}),
    ],
    ids=["never resized", "split", "marked", "not split yet", "split twice"],
)
def test_losers_are_awaited_up_to_their_newest_epoch_and_marked_partitions_as_a_whole(
    topic: Topic, epochs: dict[int, int]
) -> None:
    image = image_of(topic)
    assert awaited(ClusterImage(1000, 1, topics={"t": image}), image) == epochs


def test_an_incarnation_that_is_over_is_not_awaited() -> None:
    topic = resized(4, 6, 4)
    topic.carry_out(drained=[4, 5])
    topic.carry_out(deleted={4: 7, 5: 7})
    assert topic.states[0].lineage
    image = image_of(topic)
    assert awaited(ClusterImage(1000, 1, topics={"t": image}), image) == {}


def rules(**config: str) -> Rules | None:
    image = ClusterImage(1000, 1)
    names = {name.replace("_", "."): value for name, value in config.items()}
    config_writes.take(image, paths.topic_config("t"), ConfigZnode(names).encode(), 3)
    return rules_of(image, CONFIG, "t", NOW_MS)


@pytest.mark.parametrize(
    "config", [{"retention_ms": "-1"}, {"cleanup_policy": "compact"}], ids=["nothing expires", "nothing is deleted"]
)
def test_retention_does_not_wait_where_no_record_expires(config: dict[str, str]) -> None:
    assert rules(**config, ordered_delivery_retention_waits="true") is None


def test_retention_waits_only_if_the_topics_config_enables_it_and_no_longer_than_its_bound() -> None:
    """A warning is given ``retention.warning.ms`` before the bound ends."""
    kept_after_ms = NOW_MS - WEEK_MS + CONFIG.retention_warning_ms
    assert rules() == Rules(kept_after_ms, waits=False)
    bound = {"ordered_delivery_retention_waits": "true", "ordered_delivery_retention_waits_max_ms": "3600000"}
    assert rules(**bound) == Rules(kept_after_ms - 3_600_000, waits=True)


def test_a_young_cluster_has_no_record_that_is_old_enough_for_a_warning() -> None:
    image = ClusterImage(1000, 1)
    assert rules_of(image, CONFIG, "t", WEEK_MS - CONFIG.retention_warning_ms) is None
