"""The properties that a local cluster's brokers get."""

from __future__ import annotations

import pytest

from anabranch.local.plan import LocalClusterConfig, plan_brokers


def properties(brokers: int, **overrides: str) -> list[str]:
    config = LocalClusterConfig("/d", brokers=brokers, overrides=overrides)
    plans = plan_brokers(config, "zk:2181", list(range(9092, 9092 + brokers)))
    return [plan.properties["offsets.topic.replication.factor"] for plan in plans]


@pytest.mark.parametrize(("brokers", "expected"), [(1, "1"), (2, "2"), (3, "3"), (5, "3")])
def test_committed_offsets_have_three_replicas_where_there_are_brokers_enough(brokers: int, expected: str) -> None:
    assert properties(brokers) == [expected] * brokers


def test_a_setting_of_the_user_comes_before_that() -> None:
    assert properties(3, **{"offsets.topic.replication.factor": "1"}) == ["1"] * 3
