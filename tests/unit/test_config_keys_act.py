"""Each accepted config key has an effect: code reads the key by name, or as the default of a topic key."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from anabranch.broker import __main__ as broker_main
from anabranch.broker.log.log_config import LogConfig
from anabranch.controller import __main__ as controller_main
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.config_def import ConfigKey, UpdateMode
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS, SHARED_KEYS
from anabranch.zk_schemas.kafka_keys import KAFKA_BROKER_KEYS, why_without_effect
from anabranch.zk_schemas.static_keys import for_broker, for_controller
from anabranch.zk_schemas.topic_keys import AUTOSCALE_KEY, TOPIC_CONFIGS

ROOT = Path(__file__).resolve().parents[2]
LOG_KEYS = {name.replace("_", ".") for name in LogConfig.__slots__}
TOPIC_DEFAULTS = {synonym.name for key in TOPIC_CONFIGS for synonym in key.synonyms}


def sources(package: str) -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / package).rglob("*.py")))


BROKER, CONTROLLER = sources("broker"), sources("controller")
DECISIONS = sources("ordered_resize")


@pytest.mark.parametrize("key", list(BROKER_CONFIGS), ids=lambda key: key.name)
def test_a_broker_key_is_read_by_brokers(key: ConfigKey) -> None:
    """Each broker key is read by the broker's code.

    The controller's code does not count, because it never sees a broker's file.
    """
    if key.update_mode is UpdateMode.ALL_BROKERS:
        assert f'"{key.name}"' in CONTROLLER
    else:
        assert f'"{key.name}"' in BROKER or key.name in TOPIC_DEFAULTS


@pytest.mark.parametrize("key", list(CONTROLLER_CONFIGS), ids=lambda key: key.name)
def test_a_controller_key_is_read_by_controllers(key: ConfigKey) -> None:
    assert f'"{key.name}"' in CONTROLLER


@pytest.mark.parametrize("key", list(TOPIC_CONFIGS), ids=lambda key: key.name)
def test_a_topic_key_is_read(key: ConfigKey) -> None:
    is_named = "AUTOSCALE_KEY" if key.name == AUTOSCALE_KEY else f'"{key.name}"'
    assert is_named in BROKER + CONTROLLER + DECISIONS or key.name in LOG_KEYS


@pytest.mark.parametrize("key", [key for key in BROKER_CONFIGS if key.dynamic], ids=lambda key: key.name)
def test_a_dynamic_key_is_not_read_from_the_static_file(key: ConfigKey) -> None:
    """``config.values`` holds the values that the process started with, and never changes."""
    assert f'config.values["{key.name}"]' not in BROKER


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("num.network.threads", "event loop"),
        ("queued.max.requests", "queued.max.request.bytes"),
        ("ssl.keystore.location", "plaintext"),
        ("listener.name.internal.ssl.client.auth", "plaintext"),
        ("authorizer.class.name", "no authorizer"),
        ("process.roles", "ZooKeeper"),
        ("quota.window.num", "does not have it"),
        ("delete.topic.enable", "read from a controller's file"),
        ("auto.leader.rebalance.enable", "read from a controller's file"),
        ("leader.imbalance.check.interval.seconds", "read from a controller's file"),
        ("leader.imbalance.per.broker.percentage", "read from a controller's file"),
        ("unclean.leader.election.enable", "read from a controller's file"),
        ("partition.drain.check.interval.ms", "read from a controller's file"),
    ],
)
def test_a_key_without_effect_in_a_brokers_file_is_named(name: str, why: str) -> None:
    kept, warnings = for_broker({"broker.id": "1", name: "3"})
    assert kept == {"broker.id": "1"}
    (warning,) = warnings
    assert warning.startswith(f"{name} has no effect: ")
    assert why in warning


@pytest.mark.parametrize("name", ["log.retention.ms", "listeners", "ssl.keystore.location", "broker.id"])
def test_a_key_without_effect_in_a_controllers_file_is_named(name: str) -> None:
    kept, warnings = for_controller({"controller.id": "1000", "unclean.leader.election.enable": "true", name: "3"})
    assert kept == {"controller.id": "1000", "unclean.leader.election.enable": "true"}
    assert [warning.partition(" ")[0] for warning in warnings] == [name]


@pytest.mark.parametrize("split", [for_broker, for_controller])
def test_an_unknown_key_is_not_reported_as_a_key_without_effect(split: object) -> None:
    assert split({"log.retention.msx": "1"}) == ({"log.retention.msx": "1"}, [])  # type: ignore[operator]


def test_every_kafka_key_has_an_effect_or_a_reason() -> None:
    acting = {key.name for table in (BROKER_CONFIGS, CONTROLLER_CONFIGS) for key in table}
    assert all(why_without_effect(name) for name in KAFKA_BROKER_KEYS - acting)
    assert all(name in BROKER_CONFIGS and name in CONTROLLER_CONFIGS for name in SHARED_KEYS)


@pytest.mark.parametrize(
    ("server", "settings"),
    [
        (broker_main, ["broker.id=1", "zookeeper.connect=nowhere:1", "num.io.threads=8"]),
        (controller_main, ["controller.id=1000", "zookeeper.connect=nowhere:1", "num.io.threads=8"]),
    ],
    ids=["broker", "controller"],
)
def test_strict_refuses_keys_without_effect(
    server: object, settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word for setting in settings for word in ("--set", setting)]
    try:
        assert server.main(["--strict", *given]) == 2  # type: ignore[attr-defined]
    finally:
        structlog.reset_defaults()
    assert "num.io.threads has no effect" in capsys.readouterr().err
