"""A broker's static configuration: its sources, and rules between keys."""

from __future__ import annotations

import pytest

from anabranch.broker.config import BrokerConfig, ListenerAddress
from anabranch.zk_schemas.config_def import ConfigError

MINIMAL = {"broker.id": "1", "zookeeper.connect": "zk:2181"}


def test_the_error_for_an_unknown_key_names_the_nearest_key() -> None:
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        BrokerConfig.from_given({**MINIMAL, "num.partition": "3"})


def test_listeners_without_a_host_are_advertised_by_host_name() -> None:
    config = BrokerConfig.from_given({**MINIMAL, "listeners": "plaintext://:9092"}, host_name="box")
    assert config.listeners == (ListenerAddress("PLAINTEXT", "", 9092),)
    assert config.advertised == {"PLAINTEXT": ListenerAddress("PLAINTEXT", "box", 9092)}
    assert config.inter_broker_listener == "PLAINTEXT"


def test_two_listeners_may_have_the_same_protocol() -> None:
    given = {
        **MINIMAL,
        "listeners": "IN://0.0.0.0:9092,OUT://0.0.0.0:9093",
        "advertised.listeners": "IN://a:9092,OUT://[::1]:19093",
        "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT",
        "inter.broker.listener.name": "IN",
    }
    config = BrokerConfig.from_given(given)
    assert config.advertised["OUT"] == ListenerAddress("OUT", "::1", 19093)
    assert config.inter_broker_listener == "IN"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"listeners": "PLAINTEXT:9092"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "twice"),
        ({"listeners": "SSL://h:1"}, "SSL is not supported"),
        ({"listeners": "X://h:1"}, "listener.security.protocol.map"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "wildcard"),
        ({"advertised.listeners": "SSL://h:1"}, "SSL"),
        ({"inter.broker.listener.name": "OTHER"}, "OTHER"),
        ({"log.dirs": "/a,/a"}, "twice"),
    ],
)
def test_invalid_listeners_and_repeated_log_dirs_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BrokerConfig.from_given({**MINIMAL, **given})


def test_advertised_listeners_may_change_their_addresses_but_not_their_names() -> None:
    given = {
        "broker.id": "1",
        "zookeeper.connect": "z:1",
        "listeners": "IN://:1,OUT://:2",
        "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT",
        "advertised.listeners": "IN://a:1,OUT://b:2",
    }
    config = BrokerConfig.from_given(given, host_name="box")
    assert config.advertised_as(None) == config.advertised
    moved = config.advertised_as(["IN://c:3", "OUT://:4"])
    assert moved == {"IN": ListenerAddress("IN", "c", 3), "OUT": ListenerAddress("OUT", "box", 4)}
    for refused in (["IN://c:3"], ["IN://c:3", "OUT://0.0.0.0:4"], ["IN://c:3", "NEW://d:4"], ["c:3"]):
        with pytest.raises(ConfigError, match=r"advertised\.listeners"):
            config.advertised_as(refused)
