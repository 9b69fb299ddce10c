"""A cluster in containers, by testcontainers: ``pip install 'anabranch[testing]'`` and a container engine.

with AnabranchCluster(brokers=3) as cluster:
    producer = Producer(bootstrap_servers=cluster.bootstrap_servers)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import docker.errors
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.network import Network

from anabranch.local.ports import held_port
from anabranch.testing.cluster import settings_for_tests
from anabranch.testing.processes import serves, wait_for
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS, FIRST_CONTROLLER_ID

IMAGE_VARIABLE = "ANABRANCH_IMAGE"
ZOOKEEPER_IMAGE_VARIABLE = "ZOOKEEPER_IMAGE"
DEFAULT_IMAGE = "anabranch"
DEFAULT_ZOOKEEPER_IMAGE = "zookeeper:3.9"
READY_DEADLINE_S = 120.0
STOP_GRACE_S = 60
_ZOOKEEPER_TIMEOUTS = {
    "zookeeper.session.timeout.ms": "6000",
    # A ZooKeeper that is starting may leave the first request unanswered, so the servers must connect again.
    "zookeeper.connection.timeout.ms": str(int(READY_DEADLINE_S * 1000)),
}
_INSIDE_PORT = 19092
_OUTSIDE_PORT = 9092
_CONTROLLER_PORT = 9090
_ZOOKEEPER_PORT = 2181
_LOG_LINES = 15


class EngineUnavailableError(RuntimeError):
    """No container engine responds, or the engine lacks the image. The message has the remedy."""


def require_engine(image: str | None = None) -> None:
    """Raise ``EngineUnavailableError`` unless an engine responds and has ``image`` (default: ours), or can pull it."""
    image = image or os.environ.get(IMAGE_VARIABLE, DEFAULT_IMAGE)
    try:
        client = DockerClient().client
        client.ping()
    except (docker.errors.DockerException, OSError) as error:
        raise EngineUnavailableError(f"no container engine answers: {error}") from error
    try:
        client.images.get(image)
    except docker.errors.ImageNotFound:
        try:
            client.images.pull(image)
        except docker.errors.APIError as error:
            raise EngineUnavailableError(
                f"there is no image {image}: build it with `docker build -t {image} .` in a checkout of Anabranch "
                f"or name another ({error.explanation or error})"
            ) from error


class AnabranchContainer(DockerContainer):
    """One server: ``command`` is the arguments of ``anabranch``, ``name`` its host name in the network.

    ``publish`` is ``(port in the container, port on the host)``. The ports are fixed: a restart does not change them.
    """

    def __init__(
        self, image: str, command: list[str], name: str, network: Network, publish: tuple[int, int] | None = None
    ) -> None:
        super().__init__(image)
        self.with_command(command).with_network(network).with_network_aliases(name)
        if publish is not None:
            publish_port(self, *publish)


def publish_port(container: DockerContainer, inside: int, outside: int) -> None:
    """Publish a port on the tests' machine: only on the loopback interface, when the engine runs there too."""
    # testcontainers' own with_bind_ports takes no address, and listens on all addresses.
    ports: dict[str, Any] = container.ports
    local = container.get_docker_client().host() == "localhost"
    ports[f"{inside}/tcp"] = ("127.0.0.1", outside) if local else outside


def server_command(role: str, settings: Mapping[str, str]) -> list[str]:
    """The command of a container. An unknown key ends the server with a line that names the nearest key."""
    command = [role]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    return command


def broker_settings(
    broker_id: int, brokers: int, outside: tuple[str, int], overrides: Mapping[str, str]
) -> dict[str, str]:
    """One broker's keys. ``outside`` is its host and port for clients outside of the network."""
    host, port = outside
    return settings_for_tests(
        brokers,
        {
            "broker.id": str(broker_id),
            "zookeeper.connect": f"zookeeper:{_ZOOKEEPER_PORT}",
            **_ZOOKEEPER_TIMEOUTS,
            "listeners": f"INTERNAL://:{_INSIDE_PORT},EXTERNAL://:{_OUTSIDE_PORT}",
            "advertised.listeners": f"INTERNAL://broker-{broker_id}:{_INSIDE_PORT},EXTERNAL://{host}:{port}",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
            **{key: value for key, value in overrides.items() if key in BROKER_CONFIGS},
        },
    )


def controller_settings(controller_id: int, overrides: Mapping[str, str]) -> dict[str, str]:
    """One controller's keys, with the ``overrides`` that are also keys of a controller."""
    return {
        "controller.id": str(controller_id),
        "controller.listener": f"PLAINTEXT://controller-{controller_id}:{_CONTROLLER_PORT}",
        "zookeeper.connect": f"zookeeper:{_ZOOKEEPER_PORT}",
        **_ZOOKEEPER_TIMEOUTS,
        "inter.broker.listener.name": "INTERNAL",
        **{key: value for key, value in overrides.items() if key in CONTROLLER_CONFIGS},
    }


class AnabranchCluster:
    """ZooKeeper, controllers and brokers in containers, in a network of their own.

    ``overrides`` are broker config keys. Images default to the variables ``ANABRANCH_IMAGE`` and ``ZOOKEEPER_IMAGE``,
    then to ``anabranch`` and ``zookeeper:3.9``. Starting raises ``EngineUnavailableError``, ``ConfigError`` for invalid
    overrides, and ``RuntimeError`` with the ends of the logs when the cluster does not start.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        controllers: int = 1,
        image: str | None = None,
        zookeeper_image: str | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self.image = image or os.environ.get(IMAGE_VARIABLE, DEFAULT_IMAGE)
        self.zookeeper_image = zookeeper_image or os.environ.get(ZOOKEEPER_IMAGE_VARIABLE, DEFAULT_ZOOKEEPER_IMAGE)
        self.broker_ids = list(range(1, brokers + 1))
        self._controller_ids = range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + controllers)
        self._overrides = dict(overrides or {})
        self._stack = ExitStack()
        self._containers: dict[str, DockerContainer] = {}
        self._host = ""
        self._ports: dict[int, int] = {}
        self._zookeeper_port = 0

    @property
    def bootstrap_servers(self) -> str:
        """Bootstrap servers for clients on this machine, comma-separated."""
        return ",".join(f"{self._host}:{self._ports[broker_id]}" for broker_id in self.broker_ids)

    @property
    def bootstrap(self) -> str:
        return self.bootstrap_servers

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's address for clients on this machine."""
        return f"{self._host}:{self._zookeeper_port}"

    def __enter__(self) -> AnabranchCluster:
        BROKER_CONFIGS.parse_given(
            {key: value for key, value in self._overrides.items() if key not in CONTROLLER_CONFIGS}
        )
        require_engine(self.image)
        with ExitStack() as stack:
            self._start(stack)
            try:
                for broker_id in self.broker_ids:
                    self._wait_until_serving(broker_id, set(self.broker_ids))
            except TimeoutError as error:
                raise RuntimeError(
                    f"the cluster did not start: {error}; the ends of the logs: {self._tails()}"
                ) from error
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._containers.clear()

    def _start(self, stack: ExitStack) -> None:
        """Start all containers at once: brokers and controllers wait for ZooKeeper."""
        network = stack.enter_context(Network())
        zookeeper = DockerContainer(self.zookeeper_image).with_network(network).with_network_aliases("zookeeper")
        zookeeper.with_env("ZOO_ADMINSERVER_ENABLED", "false")
        host = zookeeper.get_docker_client().host()
        self._host = "127.0.0.1" if host == "localhost" else host
        self._zookeeper_port = stack.enter_context(held_port("127.0.0.1"))
        publish_port(zookeeper, _ZOOKEEPER_PORT, self._zookeeper_port)
        self._containers["zookeeper"] = stack.enter_context(zookeeper)
        for controller_id in self._controller_ids:
            name = f"controller-{controller_id}"
            command = server_command("controller", controller_settings(controller_id, self._overrides))
            self._containers[name] = stack.enter_context(AnabranchContainer(self.image, command, name, network))
        for broker_id in self.broker_ids:
            name = f"broker-{broker_id}"
            port = self._ports[broker_id] = stack.enter_context(held_port("127.0.0.1"))
            settings = broker_settings(broker_id, len(self.broker_ids), (self._host, port), self._overrides)
            container = AnabranchContainer(
                self.image, server_command("broker", settings), name, network, (_OUTSIDE_PORT, port)
            )
            self._containers[name] = stack.enter_context(container)

    def container(self, name: str) -> DockerContainer:
        """The container of ``broker-1``, ``controller-1000`` or ``zookeeper``."""
        return self._containers[name]

    def broker_log(self, broker_id: int) -> str:
        """The output of a broker, over all its restarts."""
        return self._log(f"broker-{broker_id}")

    def kill_broker(self, broker_id: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal that ends a broker, and start its container again, without waiting until it serves."""
        container = self._containers[f"broker-{broker_id}"].get_wrapped_container()
        container.kill(signal=number.name)
        container.wait()
        container.start()

    def restart_broker(self, broker_id: int) -> None:
        """Stop a broker cleanly, start it again, and return when it serves."""
        container = self._containers[f"broker-{broker_id}"].get_wrapped_container()
        container.stop(timeout=STOP_GRACE_S)
        container.start()
        self._wait_until_serving(broker_id, {broker_id})

    def _wait_until_serving(self, broker_id: int, known: set[int]) -> None:
        port = self._ports[broker_id]
        wait_for(lambda: serves(self._host, port, known), READY_DEADLINE_S, f"broker {broker_id} knows {known}")

    def _log(self, name: str) -> str:
        return b"".join(self._containers[name].get_logs()).decode(errors="replace")

    def _tails(self) -> str:
        return " | ".join(
            f"{name}: {line}" for name in self._containers for line in self._log(name).splitlines()[-_LOG_LINES:]
        )
