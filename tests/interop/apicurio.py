"""Apicurio Registry from Maven Central: a schema registry that stores its schemas in topics of the cluster."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from anabranch.local.ports import held_port
from anabranch.testing.processes import wait_for
from bench.maven import CACHE, resolved

VERSION = "3.0.9"
"""The newest version on Maven Central that runs on Java 17."""
HOST = "127.0.0.1"
READY_DEADLINE_S = 120.0
ANSWER_DEADLINE_S = 10.0
STOP_DEADLINE_S = 20.0


def program() -> Path:
    """The jar of the server, fetched and unpacked once. Raises ``PeerUnavailable``."""
    artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
    directory = CACHE / "interop" / f"apicurio-registry-{VERSION}"
    resolved(directory, "Apicurio Registry", "dependency:copy", f"-Dartifact={artifact}")
    jar = directory / f"apicurio-registry-app-{VERSION}-runner.jar"
    for archive in directory.glob("*.tar.gz"):
        shutil.unpack_archive(archive, directory)
        archive.unlink()
    return jar


class SchemaRegistry:
    """A schema registry that can be killed and started again at the same address."""

    def __init__(self, bootstrap: str, topics: str, port: int, directory: Path) -> None:
        """``topics`` is the prefix of the registry's topics. ``directory`` is for its log and its temporary files."""
        self.url = f"http://{HOST}:{port}/apis/ccompat/v7"
        self._health = f"http://{HOST}:{port}/health/ready"
        self.log = directory / "registry.log"
        self._directory = directory
        self._settings = {
            "QUARKUS_HTTP_HOST": HOST,
            "QUARKUS_HTTP_PORT": str(port),
            "APICURIO_STORAGE_KIND": "kafkasql",
            "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": bootstrap,
            "APICURIO_KAFKASQL_TOPIC": f"{topics}-journal",
            "APICURIO_KAFKASQL_SNAPSHOTS_TOPIC": f"{topics}-snapshots",
            "APICURIO_EVENTS_KAFKA_TOPIC": f"{topics}-events",
            "APICURIO_KAFKASQL_CONSUMER_POLL_TIMEOUT": "1000",  # how long it reads its topics before it serves
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the registry in a process group of its own, and return when it has read its topics."""
        options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={self._directory}")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["java", *options, "-jar", str(program())],
                cwd=self._directory,
                env=os.environ | self._settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_for(self._is_ready, READY_DEADLINE_S, "the schema registry has read its topics")

    def _is_ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self.log.read_text()[-3000:]
        with suppress(OSError), urllib.request.urlopen(self._health, timeout=ANSWER_DEADLINE_S) as answer:
            return answer.status == 200
        return False

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the registry's process group, and return when the registry has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def schema_registry(bootstrap: str, topics: str, directory: Path) -> Iterator[SchemaRegistry]:
    with held_port(HOST) as port:
        registry = SchemaRegistry(bootstrap, topics, port, directory)
        try:
            registry.start()
            yield registry
        finally:
            registry.kill(signal.SIGTERM)
