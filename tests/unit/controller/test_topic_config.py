"""The configs by which the controller decides: the topic's, the brokers' default, its own configuration."""

from __future__ import annotations

import pytest

from anabranch.controller.config_writes import take
from anabranch.controller.image import ClusterImage
from anabranch.controller.topic_config import is_autoscaled, of_topic, topic_values, unclean_election_allowed
from anabranch.protocol.topic_names import INTERNAL_TOPICS
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigZnode

UNCLEAN = "unclean.leader.election.enable"


def image(topic: dict[str, str] | bytes | None = None, brokers: dict[str, str] | bytes | None = None) -> ClusterImage:
    found = ClusterImage(1000, 1)
    for path, config in ((paths.topic_config("t"), topic), (paths.broker_config(None), brokers)):
        if config is not None:
            take(found, path, config if isinstance(config, bytes) else ConfigZnode(config).encode(), 3)
    return found


@pytest.mark.parametrize(
    ("topic", "brokers", "own", "allowed"),
    [
        (None, None, True, True),
        (None, None, False, False),
        ({}, {}, True, True),
        (None, {UNCLEAN: "false"}, True, False),
        ({UNCLEAN: "true"}, {UNCLEAN: "false"}, False, True),
        ({UNCLEAN: "false"}, {UNCLEAN: "true"}, True, False),
        ({UNCLEAN: "true", "segment.bytes": "many"}, None, False, True),
        ({UNCLEAN: "perhaps"}, None, True, False),
        (b"{", None, True, False),
        (None, b"{", True, False),
        ({UNCLEAN: "true"}, b"{", False, True),
    ],
)
def test_the_first_config_with_a_value_decides_about_unclean_elections(
    topic: dict[str, str] | bytes | None, brokers: dict[str, str] | bytes | None, own: bool, allowed: bool
) -> None:
    """A config that cannot be read allows no unclean election."""
    assert unclean_election_allowed(image(topic, brokers), "t", own) is allowed


def test_values_of_a_topic_come_before_those_of_brokers_and_defaults() -> None:
    values = topic_values(image({"retention.ms": "7"}, {"log.retention.ms": "8", "message.max.bytes": "9"}), "t")
    assert (values["retention.ms"], values["max.message.bytes"], values["cleanup.policy"]) == (7, 9, ["delete"])
    assert topic_values(image(), "u")["retention.ms"] == 7 * 24 * 3600 * 1000


@pytest.mark.parametrize("config", [b"{", {"retention.ms": "7", "segment.bytes": "many"}, {"no.such.key": "1"}])
def test_a_config_that_cannot_be_used_counts_as_empty_and_is_logged_once(
    config: dict[str, str] | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    found, path = image(config), paths.topic_config("t")
    assert topic_values(found, "t") == topic_values(image(), "t")
    assert of_topic(found, "t").version == 3
    data = config if isinstance(config, bytes) else ConfigZnode(config).encode()
    take(found, path, data, 4)
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "event=config.malformed" in line and path in line]) == 1, lines
    take(found, path, ConfigZnode({"retention.ms": "7"}).encode(), 5)
    take(found, path, data, 6)
    assert caplog.text.count("event=config.malformed") == 2


def test_internal_topics_are_not_autoscaled() -> None:
    assert is_autoscaled(image({"autoscale.enable": "true"}), "t")
    assert not is_autoscaled(image({"autoscale.enable": "false"}), "t")
    internal, name = ClusterImage(1000, 1), min(INTERNAL_TOPICS)
    take(internal, paths.topic_config(name), ConfigZnode({"autoscale.enable": "true"}).encode(), 0)
    assert not is_autoscaled(internal, name)
