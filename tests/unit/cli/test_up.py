"""Output of ``anabranch up`` once the cluster serves, and its end when a port is taken."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from anabranch.cli.up import welcome
from anabranch.command_error import CommandError
from anabranch.local.cluster import LocalCluster, run_local_cluster
from anabranch.local.embedded_zookeeper import EmbeddedZookeeper
from anabranch.local.plan import LocalClusterConfig, plan_brokers, plan_controllers, validate
from anabranch.local.supervisor import Supervisor
from anabranch.zk_schemas.config_def import ConfigError


def test_the_addresses_of_controllers_are_printed() -> None:
    config = LocalClusterConfig("d", brokers=1, controllers=2, console_port=8480)
    cluster = LocalCluster(
        config,
        "127.0.0.1:2181",
        plan_brokers(config, "127.0.0.1:2181", [9092], [9404]),
        plan_controllers(config, "127.0.0.1:2181", [9100, 9101], [9405, 9406]),
        Supervisor(report_line=print, on_restart=print),
    )
    output = welcome(cluster, "anabranch")
    assert "\nControllers 1000 at 127.0.0.1:9100, 1001 at 127.0.0.1:9101 (for --bootstrap-controller)\n" in output


@pytest.mark.trio
async def test_a_taken_port_leaves_no_directory_behind(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = LocalClusterConfig(str(tmp_path / "new" / "data"), brokers=1, port=taken.getsockname()[1])
        with pytest.raises(CommandError, match="Address already in use"):
            async with run_local_cluster(config, report_line=print):
                raise AssertionError("the cluster started")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.trio
@pytest.mark.parametrize("has_data", [False, True])
async def test_data_of_an_earlier_run_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_data: bool
) -> None:
    def stop(zookeeper: EmbeddedZookeeper) -> None:
        raise CommandError("this test starts no process")

    monkeypatch.setattr(EmbeddedZookeeper, "prepare", stop)
    if has_data:
        (tmp_path / "zookeeper").mkdir()
    lines: list[str] = []
    config = LocalClusterConfig(str(tmp_path), brokers=1, port=0)
    with pytest.raises(CommandError, match="starts no process"):
        await run_local_cluster(config, report_line=lines.append).__aenter__()
    expected = [f"using the data of an earlier run in {tmp_path}; --dir names another directory"]
    assert lines == (expected if has_data else [])


@pytest.mark.trio
async def test_the_start_has_a_limit_and_a_ready_file_of_an_earlier_run_is_removed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a script that waits for the file would use a cluster that does not serve yet."""
    ready = tmp_path / "ready.json"
    ready.write_text("{}")
    found: list[tuple[float, bool]] = []

    async def wait(zookeeper: EmbeddedZookeeper, deadline_s: float) -> None:
        found.append((deadline_s, ready.exists()))
        raise CommandError("this test starts no process")

    monkeypatch.setattr(EmbeddedZookeeper, "prepare", lambda zookeeper: None)
    monkeypatch.setattr(EmbeddedZookeeper, "wait_until_serving", wait)
    monkeypatch.setattr(Supervisor, "add", lambda supervisor, child, nursery: None)
    config = LocalClusterConfig(str(tmp_path / "d"), brokers=1, ready_file=ready, start_timeout_ms=1_500)
    with pytest.RaisesGroup(pytest.RaisesExc(CommandError, match="starts no process")):
        await run_local_cluster(config, report_line=print).__aenter__()
    assert found == [(1.5, False)]


def test_a_limit_of_the_start_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="--start-timeout-ms: 0 is below 1"):
        validate(LocalClusterConfig("d", start_timeout_ms=0))
