"""A cluster of real processes for tests: ``anabranch up`` as a user runs it, for blocking code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import TracebackType
from typing import Any

from anabranch.health import UnhealthyError, known_brokers
from anabranch.protocol.addresses import split_address

READY_DEADLINE_S = 120.0
STOP_DEADLINE_S = 90.0
CHECK_EVERY_S = 0.02


class ProcessCluster:
    """``with ProcessCluster(brokers=3) as cluster: cluster.bootstrap``.

    It takes free ports and a directory of its own, which is removed at the end unless the caller gave it. ``overrides``
    are broker config keys. Raises ``RuntimeError`` with the end of the output when the cluster does not start.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        controllers: int = 1,
        directory: Path | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="anabranch-") if directory is None else None
        self.directory = Path(self._temporary.name) if self._temporary is not None else Path(directory or ".")
        self._sizes = ["--brokers", str(brokers), "--controllers", str(controllers)]
        self._overrides = dict(overrides or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def _ready_file(self) -> Path:
        return self.directory / "ready.json"

    @property
    def output(self) -> Path:
        """The file with the output of ``anabranch up``."""
        return self.directory / "up.log"

    def __enter__(self) -> ProcessCluster:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        with self.output.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_for(self._is_ready, READY_DEADLINE_S, "the cluster serves")
        except BaseException as error:
            log_end = self._tail()
            self.__exit__(None, None, None)
            raise RuntimeError(f"anabranch up did not start the cluster: {log_end}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "anabranch.cli.main", "up", *self._sizes, "--port", "0", "--no-console"]
        command += ["--dir", str(self.directory / "data"), "--ready-file", str(self._ready_file)]
        for key, value in self._overrides.items():
            command += ["--set", f"{key}={value}"]
        return command

    def _environment(self) -> dict[str, str] | None:
        """The environment of the processes; None for that of this one."""
        return None

    def _is_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError("anabranch up exited")
        return self._ready_file.exists()

    def _tail(self) -> str:
        return " | ".join(self.output.read_text(errors="replace").splitlines()[-15:])

    @property
    def state(self) -> dict[str, Any]:
        """The present content of the ready file: bootstrap, zookeeper, pids, log_dirs and more."""
        state: dict[str, Any] = json.loads(self._ready_file.read_text())
        return state

    @property
    def bootstrap(self) -> str:
        """Bootstrap servers, comma-separated."""
        return str(self.state["bootstrap"])

    @property
    def bootstrap_servers(self) -> str:
        """``bootstrap`` under the name of the clients' setting."""
        return self.bootstrap

    @property
    def metrics(self) -> dict[str, str]:
        """The address (``host:port``) of each process's metrics and health, by names such as ``broker-1``."""
        return dict(self.state["metrics"])

    @property
    def broker_ids(self) -> list[int]:
        return sorted(self.broker_pids())

    def broker_pids(self) -> dict[int, int]:
        return {int(broker_id): int(pid) for broker_id, pid in self.state["pids"]["brokers"].items()}

    def log_dir(self, broker_id: int) -> Path:
        return Path(self.state["log_dirs"][str(broker_id)])

    def broker_log(self, broker_id: int) -> str:
        """The output of a broker, over all its restarts."""
        return (self.directory / "data" / "logs" / f"broker-{broker_id}.log").read_text(errors="replace")

    def restart_broker(self, broker_id: int) -> None:
        """Stop a broker cleanly, start it again, and return when it serves."""
        self.kill_broker(broker_id, signal.SIGTERM)
        host, port = split_address(self.bootstrap.split(",")[self.broker_ids.index(broker_id)])
        wait_for(lambda: serves(host, port, {broker_id}), READY_DEADLINE_S, f"broker {broker_id} serves again")

    def kill_broker(self, broker_id: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a broker and wait until the supervisor has restarted it."""
        old = self.broker_pids()[broker_id]
        os.kill(old, number)
        wait_for(lambda: self.broker_pids()[broker_id] != old, READY_DEADLINE_S, f"broker {broker_id} is restarted")


def serves(host: str, port: int, broker_ids: AbstractSet[int]) -> bool:
    """Whether a broker responds at this address and knows all of ``broker_ids``."""
    try:
        return broker_ids <= set(known_brokers(host, port))
    except UnhealthyError:
        return False


def wait_for(condition: Callable[[], Any], deadline_s: float, what: str) -> None:
    """Poll until ``condition()`` is true. Raises ``TimeoutError`` naming ``what`` at the deadline."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true after {deadline_s:g} s: {what}")
        time.sleep(CHECK_EVERY_S)
