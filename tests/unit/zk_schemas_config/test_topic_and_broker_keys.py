"""The tables of topic and broker keys agree with each other and with Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.config_def import LONG_MAX, REQUIRED, ConfigError
from anabranch.zk_schemas.topic_keys import TOPIC_CONFIGS, check_topic_values, topic_defaults

PER_TOPIC = {
    *(key.name for key in TOPIC_CONFIGS if key.name.startswith("autoscale.")),
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "enable.ordered.delivery",
    "delete.latest.values.when.drained",
    "delete.records.when.drained",
    "ordered.delivery.retention.waits",
    "ordered.delivery.stock.admin",
    "ordered.delivery.retention.waits.max.ms",
}
"""Topic keys without a default in a broker's configuration: their values depend on the topic."""
MINIMAL = {"broker.id": "1", "zookeeper.connect": "localhost:2181"}


def test_every_default_passes_its_own_rule() -> None:
    for table in (TOPIC_CONFIGS, BROKER_CONFIGS):
        for key in table:
            if key.default is not None and key.default is not REQUIRED:
                assert key.parse(key.default) == key.default
                assert key.parse(key.format(key.default)) == key.default


def test_every_synonym_is_a_broker_key_of_the_same_type() -> None:
    for key in TOPIC_CONFIGS:
        assert bool(key.synonyms) != (key.name in PER_TOPIC), key.name
        for synonym in key.synonyms:
            broker_key = BROKER_CONFIGS[synonym.name]
            if synonym.factor == 1:
                assert broker_key.type == key.type, key.name


def test_a_broker_with_defaults_gives_topics_kafkas_defaults() -> None:
    assert topic_defaults(BROKER_CONFIGS.parse(MINIMAL)) == {key.name: key.default for key in TOPIC_CONFIGS}


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({"log.retention.hours": "2"}, "retention.ms", 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, "retention.ms", 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, "retention.ms", 4),
        ({"log.retention.hours": "-1"}, "retention.ms", -1),
        ({"log.roll.hours": "1"}, "segment.ms", 3_600_000),
        ({"log.roll.jitter.hours": "1"}, "segment.jitter.ms", 3_600_000),
        ({"log.flush.scheduler.interval.ms": "9"}, "flush.ms", 9),
        ({"log.segment.bytes": "1000"}, "segment.bytes", 1000),
        ({"log.flush.interval.ms": "0"}, "flush.ms", 0),
    ],
)
def test_broker_keys_give_topics_their_defaults(given: dict[str, str], key: str, value: Any) -> None:
    assert topic_defaults(BROKER_CONFIGS.parse({**MINIMAL, **given}))[key] == value


@pytest.mark.parametrize(
    "name",
    ["remote.storage.enable", "local.retention.ms"],
)
def test_keys_of_features_that_do_not_exist_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no such topic config key"):
        TOPIC_CONFIGS.parse_given({name: "x"})


@pytest.mark.parametrize("name", ["leader.replication.throttled.replicas", "follower.replication.throttled.replicas"])
def test_throttled_replicas_are_partition_and_broker_or_all(name: str) -> None:
    assert TOPIC_CONFIGS.parse_given({name: "0:1,12:3"}) == {name: ["0:1", "12:3"]}
    assert TOPIC_CONFIGS.parse_given({name: "*"}) == {name: ["*"]}
    with pytest.raises(ConfigError, match="'1' is not"):
        TOPIC_CONFIGS.parse_given({name: "0:1,1"})


def test_compaction_lags_must_agree() -> None:
    check_topic_values({"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 5})
    check_topic_values({"min.compaction.lag.ms": LONG_MAX})
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms: 6 is above"):
        check_topic_values({"min.compaction.lag.ms": 6, "max.compaction.lag.ms": 5})


def test_only_compacted_topics_may_give_up_their_latest_values() -> None:
    key = "delete.latest.values.when.drained"
    for policies in (["compact"], ["compact", "delete"]):
        check_topic_values({key: True, "cleanup.policy": policies})
    check_topic_values({key: False})
    for given in ({}, {"cleanup.policy": ["delete"]}):
        with pytest.raises(ConfigError, match="that includes compact"):
            check_topic_values({key: True, **given})
