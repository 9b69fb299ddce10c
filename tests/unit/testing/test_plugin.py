"""The pytest plugin's choice of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.broker.config import BrokerConfig
from anabranch.controller.config import ControllerConfig
from anabranch.testing import containers
from anabranch.testing.cluster import settings_for_tests as settings
from anabranch.testing.containers import AnabranchCluster, EngineUnavailableError, require_engine
from anabranch.testing.plugin import make_cluster
from anabranch.testing.processes import ProcessCluster
from anabranch.zk_schemas.config_def import ConfigError


class Options:
    """A ``pytest.Config`` with only these values."""

    def __init__(self, *, ini: dict[str, Any] | None = None, **options: Any) -> None:
        self._ini = ini or {}
        self._options = options

    def getoption(self, name: str) -> Any:
        return self._options.get(name.removeprefix("--anabranch-").replace("-", "_"))

    def getini(self, name: str) -> Any:
        return self._ini.get(name, [] if name == "anabranch_overrides" else "")


def made(options: Options) -> Any:
    return make_cluster(options)  # type: ignore[arg-type]


def test_options_override_the_ini_file() -> None:
    ini = {"anabranch_engine": "processes", "anabranch_brokers": "3", "anabranch_overrides": ["log.retention.hours=1"]}
    from_ini = made(Options(ini=ini))
    assert isinstance(from_ini, ProcessCluster)
    assert from_ini._sizes == ["--brokers", "3", "--controllers", "1"]
    assert from_ini._overrides["log.retention.hours"] == "1"
    by_option = made(Options(ini=ini, engine="docker", brokers=2, image="theirs:1", zookeeper_image="zk:2"))
    assert isinstance(by_option, AnabranchCluster)
    assert (by_option.broker_ids, by_option.image, by_option.zookeeper_image) == ([1, 2], "theirs:1", "zk:2")


def test_records_are_kept_unless_an_override_says_how_long() -> None:
    def times(overrides: dict[str, str]) -> dict[str, str]:
        return {key: value for key, value in settings(1, overrides).items() if key.startswith("log.retention.")}

    assert times({"num.partitions": "2"}) == {"log.retention.ms": "-1"}
    for key in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        assert times({key: "7"}) == {key: "7"}


def test_auto_takes_containers_only_where_an_engine_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_engine(image: str | None) -> None:
        raise EngineUnavailableError("none")

    monkeypatch.setattr(containers, "require_engine", lambda image: None)
    assert isinstance(made(Options()), AnabranchCluster)
    monkeypatch.setattr(containers, "require_engine", no_engine)
    assert isinstance(made(Options()), ProcessCluster)


def test_a_missing_engine_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(EngineUnavailableError, match="no container engine answers"):
        require_engine()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(engine="podman"), "it can be auto, docker, processes"),
        (Options(engine="processes", ini={"anabranch_brokers": "three"}), "anabranch_brokers is 'three'"),
        (Options(engine="processes", brokers=0), "anabranch_brokers is '0', it must be a number of at least 1"),
        (Options(engine="processes", ini={"anabranch_overrides": ["nonsense"]}), "'nonsense' is not key=value"),
    ],
)
def test_settings_that_cannot_work_are_usage_errors(options: Options, expected: str) -> None:
    with pytest.raises(pytest.UsageError, match=expected):
        made(options)


def test_an_override_that_is_no_key_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"did you mean log.retention.ms\?"):
        AnabranchCluster(overrides={"log.retention.msx": "1"}).__enter__()


def test_the_servers_in_the_containers_accept_their_settings() -> None:
    overrides = {"default.replication.factor": "2", "log.retention.ms": "1000"}
    given = containers.broker_settings(2, 3, ("host.example", 4000), overrides)
    broker = BrokerConfig.from_given(given)
    assert {name: (entry.host, entry.port) for name, entry in broker.advertised.items()} == {
        "INTERNAL": ("broker-2", 19092),
        "EXTERNAL": ("host.example", 4000),
    }
    assert broker.inter_broker_listener == "INTERNAL"
    assert broker.values.offsets_topic_replication_factor == 3
    controller = ControllerConfig.parse(containers.controller_settings(1001, overrides))
    assert (controller.host, controller.default_replication_factor) == ("controller-1001", 2)
    for connect_ms, session_ms in (
        (broker.values.zookeeper_start_timeout_ms, broker.values.zookeeper_session_timeout_ms),
        (controller.zookeeper_start_timeout_ms, controller.zookeeper_session_timeout_ms),
    ):
        assert connect_ms >= 2 * session_ms, "the time is enough for a second attempt after an unanswered first one"
    assert containers.server_command("broker", {"broker.id": "2"}) == ["broker", "--set", "broker.id=2"]
