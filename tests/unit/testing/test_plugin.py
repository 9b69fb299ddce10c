"""The pytest plugin: what it costs those who do not use it, and which cluster it makes for those who do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anabranch.testing import containers
from anabranch.testing.containers import AnabranchCluster, EngineUnavailableError, require_engine
from anabranch.testing.plugin import make_cluster
from anabranch.testing.processes import ProcessCluster
from broker.config import BrokerConfig
from controller.config import ControllerConfig
from zk_schemas.config_def import ConfigError


class Options:
    """A ``pytest.Config`` with these values and nothing else."""

    def __init__(self, *, ini: dict[str, Any] | None = None, **options: Any) -> None:
        self._ini = ini or {}
        self._options = options

    def getoption(self, name: str) -> Any:
        return self._options.get(name.removeprefix("--anabranch-").replace("-", "_"))

    def getini(self, name: str) -> Any:
        return self._ini.get(name, [] if name == "anabranch_overrides" else "")


def made(options: Options) -> Any:
    return make_cluster(options)  # type: ignore[arg-type]


def run_pytest(directory: Path, *arguments: str, prelude: str = "") -> subprocess.CompletedProcess[str]:
    """pytest in a project of its own, with Anabranch's plugin found as a user's pytest finds it."""
    code = f"{prelude}\nimport sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "-p", "no:cacheprovider", "--rootdir", str(directory), *arguments]
    return subprocess.run([*command, str(directory)], capture_output=True, text=True, cwd=directory)


def test_a_project_that_does_not_use_the_plugin_pays_nothing_for_it(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "import sys\n"
        "def test_nothing_heavy_came_along():\n"
        "    heavy = {'testcontainers', 'docker', 'trio', 'kazoo', 'client', 'broker'}\n"
        "    assert not heavy & {name.split('.')[0] for name in sys.modules}\n"
    )
    done = run_pytest(tmp_path, "-p", "no:trio", "-p", "no:anyio", "-p", "no:hypothesispytest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("engine", ["docker", "processes"])
def test_without_testcontainers_only_containers_are_refused(tmp_path: Path, engine: str) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "def test_it(pytestconfig):\n"
        "    from anabranch.testing.plugin import make_cluster\n"
        "    assert type(make_cluster(pytestconfig)).__name__ == 'ProcessCluster'\n"
    )
    prelude = "import sys; sys.modules['testcontainers'] = None"
    done = run_pytest(tmp_path, f"--anabranch-engine={engine}", prelude=prelude)
    if engine == "docker":
        assert "pip install 'anabranch[testing]'" in done.stdout
        assert done.returncode != 0
    else:
        assert done.returncode == 0, done.stdout + done.stderr


def test_options_win_over_the_ini_file() -> None:
    ini = {"anabranch_engine": "processes", "anabranch_brokers": "3", "anabranch_overrides": ["log.retention.hours=1"]}
    from_ini = made(Options(ini=ini))
    assert isinstance(from_ini, ProcessCluster)
    assert from_ini._sizes == ["--brokers", "3", "--controllers", "1"]
    assert from_ini._overrides["log.retention.hours"] == "1"
    by_option = made(Options(ini=ini, engine="docker", brokers=2, image="theirs:1", zookeeper_image="zk:2"))
    assert isinstance(by_option, AnabranchCluster)
    assert (by_option.broker_ids, by_option.image, by_option.zookeeper_image) == ([1, 2], "theirs:1", "zk:2")


def test_auto_takes_containers_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_engine(image: str | None) -> None:
        raise EngineUnavailableError("none")

    monkeypatch.setattr(containers, "require_engine", lambda image: None)
    assert isinstance(made(Options()), AnabranchCluster)
    monkeypatch.setattr(containers, "require_engine", no_engine)
    assert isinstance(made(Options()), ProcessCluster)


def test_no_engine_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(EngineUnavailableError, match="no container engine answers"):
        require_engine()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(engine="podman"), "it can be auto, docker, processes"),
        (Options(engine="processes", ini={"anabranch_overrides": ["nonsense"]}), "'nonsense' is not key=value"),
    ],
)
def test_settings_that_cannot_work_are_usage_errors(options: Options, said: str) -> None:
    with pytest.raises(pytest.UsageError, match=said):
        made(options)


def test_an_override_that_is_no_key_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"did you mean log.retention.ms\?"):
        AnabranchCluster(overrides={"log.retention.msx": "1"}).__enter__()


def test_the_servers_in_the_containers_take_their_settings() -> None:
    overrides = {"default.replication.factor": "2", "log.retention.ms": "1000"}
    given = containers.broker_settings(2, 3, ("host.example", 4000), overrides)
    broker = BrokerConfig.from_given(given)
    assert {name: (entry.host, entry.port) for name, entry in broker.advertised.items()} == {
        "INTERNAL": ("broker-2", 19092),
        "EXTERNAL": ("host.example", 4000),
    }
    assert broker.inter_broker_listener == "INTERNAL"
    assert broker.values["offsets.topic.replication.factor"] == 3
    controller = ControllerConfig.parse(containers.controller_settings(1001, overrides))
    assert (controller.host, controller.default_replication_factor) == ("controller-1001", 2)
    assert containers.server_command("broker", {"broker.id": "2"}) == ["broker", "--set", "broker.id=2"]
