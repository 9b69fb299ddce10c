"""``anabranch up``: the ready file, restarts, and the end of all processes that it started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from anabranch.testing.processes import ProcessCluster, wait_for

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def all_pids(cluster: ProcessCluster) -> list[int]:
    pids = cluster.state["pids"]
    return [pids["zookeeper"], *pids["controller"], *pids["brokers"].values()]


def test_the_ready_file_lists_the_processes_and_follows_restarts() -> None:
    with ProcessCluster(brokers=2, controllers=2) as cluster:
        state = cluster.state
        assert len(state["bootstrap"].split(",")) == 2
        assert sorted(state["pids"]["brokers"]) == ["1", "2"] == sorted(state["log_dirs"])
        assert len(state["pids"]["controller"]) == 2
        assert all((Path(path) / "meta.properties").exists() for path in state["log_dirs"].values())
        before = cluster.broker_pids()
        cluster.kill_broker(1)
        after = cluster.broker_pids()
        assert after[1] != before[1] and after[2] == before[2]
        assert cluster.bootstrap == state["bootstrap"]
        assert "broker-1" in cluster.output.read_text() and "SIGKILL" in cluster.output.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_anabranch_up(number: signal.Signals) -> None:
    with ProcessCluster(brokers=1) as cluster:
        pids = all_pids(cluster)
        process = cluster._process
        assert process is not None
        process.send_signal(number)
        status = process.wait(DEADLINE_S)
        assert status == (0 if number is not signal.SIGKILL else -signal.SIGKILL)
        wait_for(lambda: not any(alive(pid) for pid in pids), DEADLINE_S, "all processes have ended")


def test_a_second_cluster_in_the_same_directory_is_refused_and_the_first_continues(tmp_path: Path) -> None:
    with ProcessCluster(brokers=1, directory=tmp_path) as cluster:
        data = tmp_path / "data"
        before = {path: path.read_bytes() for path in data.glob("*.properties")}
        command = [sys.executable, "-m", "anabranch.cli.main", "up", "--port", "0", "--dir", str(data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        process = cluster._process
        assert process is not None
        assert (done.returncode, done.stdout, done.stderr) == (
            1,
            "",
            f"anabranch: a cluster runs in {data}: process {process.pid} holds {data / '.lock'}; stop it, or choose "
            "another --dir\n",
        )
        assert before and {path: path.read_bytes() for path in data.glob("*.properties")} == before
        cluster.restart_broker(1)  # the broker still finds its ZooKeeper


def test_a_port_in_use_is_reported_in_one_line_that_names_the_option(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "anabranch.cli.main", "up", "--port", port, "--dir", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"cannot listen on 127.0.0.1:{port}: " in done.stderr and "--port" in done.stderr


def test_the_console_starts_and_ends_with_the_cluster(tmp_path: Path) -> None:
    pytest.importorskip("starlette", reason="the console needs the extra [console]")
    ready, command = tmp_path / "ready.json", [sys.executable, "-m", "anabranch.cli.main", "up", "--brokers", "1"]
    command += ["--port", "0", "--dir", str(tmp_path / "d"), "--ready-file", str(ready)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_for(ready.exists, DEADLINE_S, "the cluster serves")
            address = json.loads(ready.read_text())["console"]
            wait_for(lambda: "Nothing. Every partition has" in page(f"http://{address}/"), DEADLINE_S, "the page")
        finally:
            process.terminate()
            output = process.communicate(timeout=DEADLINE_S)[0]
    assert f"Console: http://{address}/" in output
    assert page(f"http://{address}/") == "" and not ready.exists()


def page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
            return answer.read().decode()
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "log.retention.hour=1"], "did you mean log.retention.hours?"),
        (["--set", "num.partitions=0"], "num.partitions"),
        (["--set", "num.partitions"], "key=value"),
        (["--brokers", "0"], "--brokers"),
        (["--port", "65535", "--brokers", "2"], "65535"),
    ],
)
def test_bad_settings_are_refused_before_anything_starts(tmp_path: Path, arguments: list[str], expected: str) -> None:
    command = [sys.executable, "-m", "anabranch.cli.main", "up", "--dir", str(tmp_path / "d"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert expected in done.stderr
    assert not (tmp_path / "d").exists()
