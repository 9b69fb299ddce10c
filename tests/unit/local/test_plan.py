"""The properties of a local cluster's brokers and controllers."""

from __future__ import annotations

import pytest

from anabranch.local.plan import LocalClusterConfig, parse_overrides, plan_brokers, plan_controllers
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.static_keys import for_broker, for_controller


def properties(brokers: int, key: str, **overrides: str) -> list[str]:
    config = LocalClusterConfig("/d", brokers=brokers, overrides=overrides)
    plans = plan_brokers(config, "zk:2181", list(range(9092, 9092 + brokers)), list(range(9500, 9500 + brokers)))
    if key.startswith("default"):
        plans += plan_controllers(config, "zk:2181", [9000], [9600])
    return [plan.properties[key] for plan in plans]


@pytest.mark.parametrize("key", ["offsets.topic.replication.factor", "default.replication.factor"])
@pytest.mark.parametrize(("brokers", "expected"), [(1, "1"), (2, "2"), (3, "3"), (5, "3")])
def test_topics_have_three_replicas_where_there_are_enough_brokers(brokers: int, expected: str, key: str) -> None:
    assert set(properties(brokers, key)) == {expected}
    assert set(properties(brokers, key, **{key: "1"})) == {"1"}


def test_each_process_gets_only_the_settings_that_it_reads() -> None:
    given = [
        "delete.topic.enable=false",
        "unclean.leader.election.enable=true",
        "num.partitions=4",
        "log.retention.ms=1000",
        "metrics.listener=[::1]:9404",
        "partition.drain.check.interval.ms=50",
    ]
    config = LocalClusterConfig("d", 1, overrides=parse_overrides(given))
    (broker,) = plan_brokers(config, "z:1", [9092], [9500])
    (controller,) = plan_controllers(config, "z:1", [9090], [9501])
    of_broker = {"num.partitions", "log.retention.ms", "metrics.listener"}
    of_controller = {
        "delete.topic.enable",
        "unclean.leader.election.enable",
        "num.partitions",
        "partition.drain.check.interval.ms",
        "metrics.listener",
    }
    names = {setting.partition("=")[0] for setting in given}
    assert names & broker.properties.keys() == of_broker
    assert names & controller.properties.keys() == of_controller
    assert broker.properties["metrics.listener"] == "[::1]:9500"
    assert controller.properties["metrics.listener"] == "[::1]:9501"
    assert for_broker(broker.properties)[1] == for_controller(controller.properties)[1] == []


def test_the_error_for_an_unknown_setting_names_the_nearest_key() -> None:
    with pytest.raises(ConfigError, match=r"did you mean log\.retention\.ms"):
        parse_overrides(["log.retention.msx=1"])
