"""Each accepted config key has an effect: code reads its field, its name, or a topic key that has it as its default."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import structlog

from anabranch.broker import __main__ as broker_main
from anabranch.controller import __main__ as controller_main
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS, BrokerKeys
from anabranch.zk_schemas.config_def import REQUIRED, ConfigKey, ConfigType, ConfigValues, UpdateMode
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS, ControllerKeys
from anabranch.zk_schemas.kafka_keys import KAFKA_BROKER_KEYS, why_without_effect
from anabranch.zk_schemas.process_keys import ProcessKeys
from anabranch.zk_schemas.static_keys import for_broker, for_controller
from anabranch.zk_schemas.topic_keys import AUTOSCALE_KEY, TOPIC_CONFIGS, TopicKeys

ROOT = Path(__file__).resolve().parents[2]
TOPIC_DEFAULTS = {synonym.name for key in TOPIC_CONFIGS for synonym in key.synonyms}


def sources(package: str) -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / package).rglob("*.py")))


OF_BOTH = sources("runtime") + (ROOT / "zk_schemas" / "process_keys.py").read_text()
BROKER, CONTROLLER = sources("broker") + OF_BOTH, sources("controller") + OF_BOTH
DECISIONS = sources("ordered_resize")


def is_read(key: ConfigKey, code: str) -> bool:
    """Whether ``code`` reads the key, as an attribute or by its name."""
    return re.search(rf"\.{key.name.replace('.', '_')}\b", code) is not None or f'"{key.name}"' in code


@pytest.mark.parametrize("key", list(BROKER_CONFIGS), ids=lambda key: key.name)
def test_a_broker_key_is_read_by_brokers(key: ConfigKey) -> None:
    """Each broker key is read by the broker's code.

    The controller's code does not count, because it never sees a broker's file.
    """
    if key.update_mode is UpdateMode.ALL_BROKERS:
        assert is_read(key, CONTROLLER)
    else:
        assert is_read(key, BROKER) or key.name in TOPIC_DEFAULTS


@pytest.mark.parametrize("key", list(CONTROLLER_CONFIGS), ids=lambda key: key.name)
def test_a_controller_key_is_read_by_controllers(key: ConfigKey) -> None:
    assert is_read(key, CONTROLLER)


@pytest.mark.parametrize("key", list(TOPIC_CONFIGS), ids=lambda key: key.name)
def test_a_topic_key_is_read(key: ConfigKey) -> None:
    code = BROKER + CONTROLLER + DECISIONS
    assert is_read(key, code) or (key.name == AUTOSCALE_KEY and "AUTOSCALE_KEY" in code)


@pytest.mark.parametrize("key", [key for key in BROKER_CONFIGS if key.dynamic], ids=lambda key: key.name)
def test_a_dynamic_key_is_not_read_from_the_static_file(key: ConfigKey) -> None:
    """``config.values`` holds the values that the process started with, and never changes."""
    assert not re.search(rf"config\.values\.{key.name.replace('.', '_')}\b", BROKER)


@pytest.mark.parametrize("table", [BrokerKeys, ControllerKeys, TopicKeys], ids=lambda table: table.__name__)
def test_a_fields_type_is_the_keys_type(table: type[ConfigValues]) -> None:
    """A type checker sees the field's annotation, and the parser uses the key's type."""
    names = {
        ConfigType.BOOLEAN: "bool",
        ConfigType.STRING: "str",
        ConfigType.DOUBLE: "float",
        ConfigType.LIST: "list[str]",
    }
    wanted = {
        key.name.replace(".", "_"): names.get(key.type, "int") + (" | None" if key.default is None else "")
        for key in table.all_keys()
    }
    assert {field.name: field.type for field in dataclasses.fields(table)} == wanted


def test_values_have_the_defaults_of_their_keys() -> None:
    values = ControllerKeys(controller_id=1000, zookeeper_connect="z").by_key()
    assert values == CONTROLLER_CONFIGS.parse({"controller.id": "1000", "zookeeper.connect": "z"})
    required = {key.name for key in CONTROLLER_CONFIGS if key.default is REQUIRED}
    assert required == {"controller.id", "zookeeper.connect"}


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
    assert all(key.name in BROKER_CONFIGS and key.name in CONTROLLER_CONFIGS for key in ProcessKeys.all_keys())


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
