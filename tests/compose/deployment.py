"""A deployment of ``docker-compose.yml`` under a project name of its own, with the installed version of Compose."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from anabranch.testing.processes import wait_for

ROOT = Path(__file__).resolve().parents[2]
BROKERS = ("broker-1", "broker-2", "broker-3")
CONTROLLERS = ("controller-1", "controller-2")
SERVICES = ("zookeeper", *CONTROLLERS, *BROKERS, "console")
DEADLINE_S = 180.0
_WHO_IS_ACTIVE = """
from kazoo.client import KazooClient
client = KazooClient("zookeeper:2181")
client.start()
print(client.get("/controller")[0].decode())
"""


def compose_command() -> list[str] | None:
    """The command of Compose v1 if it is installed, else of v2, else None. ``docker-compose.yml`` works with both."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if shutil.which("docker") and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    return None


def missing() -> str:
    """Return a text that names what this machine lacks for the container tests; empty if nothing is missing."""
    if compose_command() is None:
        return "Compose is not installed"
    answer = subprocess.run(["docker", "info"], capture_output=True, text=True)
    return f"no container engine answers: {answer.stderr.strip()}" if answer.returncode else ""


class Deployment:
    """One run of the compose file.

    ``ports`` are the brokers' published ports on this machine, ``metrics_ports`` the metrics ports of all servers.
    """

    def __init__(
        self, project: str, ports: Mapping[str, int], metrics_ports: Mapping[str, int], console_port: int
    ) -> None:
        compose = compose_command()
        assert compose is not None
        self.ports = dict(ports)
        self.metrics_ports = dict(metrics_ports)
        self.console_port = console_port
        self._compose = [*compose, "--project-name", project, "--file", str(ROOT / "docker-compose.yml")]
        self._override: list[str] = []
        self._containers: dict[str, str] = {}
        self._environment = {**os.environ, "COMPOSE_HTTP_TIMEOUT": "300", "CONSOLE_PORT": str(console_port)}
        for name, port in ports.items():
            self._environment[f"{name.upper().replace('-', '_')}_PORT"] = str(port)
        for name, port in metrics_ports.items():
            self._environment[f"{name.upper().replace('-', '_')}_METRICS_PORT"] = str(port)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def compose(self, *arguments: str) -> str:
        return run([*self._compose, *self._override, *arguments], self._environment)

    def recreate(self, service: str, override: Path | None) -> None:
        """Create a service's container again, with or without a ``docker-compose.override.yml``; its volumes stay.

        Returns when the container is healthy. The engine checks this only every five seconds, so this method checks
        itself.
        """
        self._override = [] if override is None else ["--file", str(override)]
        self.compose("up", "--detach", "--no-deps", service)
        self._containers.pop(service, None)
        check = ["python", "-m", "anabranch.health", "broker" if service in BROKERS else "controller"]
        wait_for(lambda: self.execute(service, *check).returncode == 0, DEADLINE_S, f"{service} is healthy")

    def up(self) -> None:
        """Start all services, and return when all of them are healthy."""
        self.compose("up", "--detach")
        self.wait_until_healthy(*SERVICES)

    def down(self) -> None:
        """Remove containers and network, and keep the volumes."""
        self.compose("down")
        self._containers.clear()

    def container(self, service: str) -> str:
        """The id of the service's container, running or not."""
        if service not in self._containers:
            self._containers[service] = self.compose("ps", "--all", "--quiet", service).strip()
        return self._containers[service]

    def inspect(self, service: str, what: str) -> str:
        """One field of a container, as ``docker inspect`` names it."""
        return docker("inspect", "--format", f"{{{{{what}}}}}", self.container(service)).strip()

    def health(self, service: str) -> str:
        return self.inspect(service, ".State.Health.Status")

    def wait_until_healthy(self, *services: str) -> None:
        try:
            wait_for(lambda: all(self.health(service) == "healthy" for service in services), DEADLINE_S, "healthy")
        except TimeoutError as error:
            checks = {service: self.inspect(service, "json .State.Health") for service in services}
            output = "\n".join(f"{service}: {checks[service]}\n{self.logs(service)[-2000:]}" for service in services)
            raise AssertionError(f"not healthy within {DEADLINE_S:g} s: {output}") from error

    def logs(self, service: str) -> str:
        return docker("logs", self.container(service))

    def execute(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container, and return its result whatever the exit status."""
        return subprocess.run(["docker", "exec", self.container(service), *command], capture_output=True, text=True)

    def kill(self, service: str, signal: str = "KILL") -> None:
        docker("kill", "--signal", signal, self.container(service))

    def stop(self, service: str) -> None:
        """Stop a service by SIGTERM, and by SIGKILL after the file's grace period."""
        self.compose("stop", service)

    def start(self, service: str) -> None:
        docker("start", self.container(service))

    def files(self, service: str, directory: str) -> set[str]:
        """The names of the files in a directory of a container, running or not."""
        command = ["docker", "cp", f"{self.container(service)}:{directory}/.", "-"]
        archive = subprocess.run(command, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as listing:
            return {Path(name).name for name in listing.getnames()}

    def active_controller(self) -> str:
        """The service whose controller is active."""
        answer = self.execute("broker-1", "python", "-c", _WHO_IS_ACTIVE)
        assert answer.returncode == 0, answer.stderr
        return CONTROLLERS[json.loads(answer.stdout)["brokerid"] - 1000]


def docker(*arguments: str) -> str:
    return run(["docker", *arguments], os.environ)


def run(command: list[str], environment: Mapping[str, str]) -> str:
    """Run a command, which must succeed. Returns its stdout and stderr together."""
    done = subprocess.run(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )
    assert done.returncode == 0, f"{' '.join(command)} exited with {done.returncode}: {done.stdout[-3000:]}"
    return done.stdout
