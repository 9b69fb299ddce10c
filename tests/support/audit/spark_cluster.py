"""A standalone Spark cluster of processes: a master and workers from PySpark's wheel."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark

from anabranch.testing.processes import wait_for

SPARK_HOME = Path(pyspark.__file__).parent
START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 30.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


@contextlib.contextmanager
def standalone_cluster(directory: Path, workers: int = 2) -> Iterator[str]:
    """A running cluster; yields the master's URL. Every worker has one core. The end stops all processes."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(_daemon("master.Master", directory / "master", []))
        url = _logged(master, _MASTER)[1]
        logs = [
            stack.enter_context(
                _daemon("worker.Worker", directory / f"worker-{n}", ["--cores", "1", "--memory", "1g", url])
            )
            for n in range(workers)
        ]
        for log in logs:
            _logged(log, _REGISTERED)
        yield url


@contextlib.contextmanager
def _daemon(name: str, directory: Path, arguments: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process of Spark, and its log."""
    directory.mkdir(parents=True)
    log = directory / "log"
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    command += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments]
    settings = "-Dspark.master.rest.enabled=false -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    env = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": settings,
        "SPARK_WORKER_DIR": str(directory),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)
    try:
        yield process, log
    finally:
        process.terminate()
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _logged(daemon: tuple[subprocess.Popen[bytes], Path], line: re.Pattern[str]) -> re.Match[str]:
    process, log = daemon
    found: list[re.Match[str]] = []

    def is_logged() -> bool:
        text = log.read_text(errors="replace")
        assert process.poll() is None, f"it ended: {text[-2000:]}"
        found.extend(line.finditer(text))
        return bool(found)

    wait_for(is_logged, START_DEADLINE_S, f"{log} has {line.pattern!r}")
    return found[0]
