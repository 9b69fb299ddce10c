"""A cluster of real processes: every connection can be broken, and every process can be killed and stopped."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from anabranch.local.embedded_zookeeper import EmbeddedZookeeper
from anabranch.local.ports import held_port
from anabranch.local.supervisor import Child
from tests.soak.network import HOST, FaultyNetwork

ZOOKEEPER = "zookeeper"
CLIENTS = "clients"
SESSION_TIMEOUT_MS = 4_000
STOP_GRACE_S = 30.0
RESTART_PAUSE_S = 0.5
WATCHDOG_STATUS = 70
LOG_DIR_FAILED_STATUS = 1
NO_START_STATUS = 1
START_LIMIT_S = 60.0
_CHECK_EVERY_S = 0.1
LOG_DIR_NAMES = ("a", "b")

BROKER_KEYS = {
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INTERNAL:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "6",
    "offsets.topic.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "replica.lag.time.max.ms": "6000",
    "log.segment.bytes": str(4 * 1024 * 1024),
    "log.flush.offset.checkpoint.interval.ms": "5000",
}


@dataclass(eq=False, slots=True)
class Node:
    """One process. Whenever the process has ended, it is started again as soon as ``wanted`` is true."""

    child: Child
    wanted: bool = True
    killed: bool = False
    """Whether the next end of the process is expected. An unexpected end is reported."""

    @property
    def name(self) -> str:
        return self.child.name

    def signal(self, number: signal.Signals) -> None:
        if self.child.running:
            os.kill(self.child.pid, number)


@dataclass(eq=False, slots=True)
class SoakCluster:
    """Nodes by name: ``zookeeper``, ``controller-1000``, ``broker-1`` and so on."""

    directory: Path
    network: FaultyNetwork
    bootstrap: str
    direct: dict[int, int]
    """The brokers' client ports without the proxy, by broker id."""
    zookeeper_port: int
    on_death: Callable[[str, int], None]
    nodes: dict[str, Node] = field(default_factory=dict)

    @property
    def brokers(self) -> list[str]:
        return [name for name in self.nodes if name.startswith("broker-")]

    @property
    def controllers(self) -> list[str]:
        return [name for name in self.nodes if name.startswith("controller-")]

    def log_dirs(self, broker: str) -> list[Path]:
        return [self.directory / broker / name for name in LOG_DIR_NAMES]

    def log_size(self, name: str) -> int:
        """The size of a process's log file."""
        return self._log(name).stat().st_size

    def logged_since(self, name: str, size: int) -> str:
        """The log lines of a process since ``log_size`` was ``size``."""
        return self._log(name).read_bytes()[size:].decode(errors="replace")

    def found_no_zookeeper(self, name: str) -> bool:
        """Whether a process that has ended could not start because ZooKeeper did not answer."""
        last = self._log(name).read_text(errors="replace").rstrip().rpartition("\n")[2]
        return "no ZooKeeper server answered" in last or "not connected to ZooKeeper" in last

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    def add(self, name: str, argv: list[str], nursery: trio.Nursery) -> None:
        node = Node(Child(name, argv, str(self._log(name))))
        self.nodes[name] = node
        node.child.start()
        nursery.start_soon(self._watch, node)

    async def _watch(self, node: Node) -> None:
        while True:
            status = await node.child.wait()
            if not node.killed:
                self.on_death(node.name, status)
            node.killed = False
            await trio.sleep(RESTART_PAUSE_S)  # pause: as a supervisor waits before a restart
            while not node.wanted:
                await trio.sleep(_CHECK_EVERY_S)  # polls: until ``start`` is called
            node.child.start()

    async def kill(self, name: str) -> None:
        """Kill a process with kill -9; it stays down until ``start``."""
        node = self.nodes[name]
        node.wanted = False
        node.killed = node.child.running
        node.signal(signal.SIGKILL)
        await self._wait_down(node)

    def start(self, name: str) -> None:
        self.nodes[name].wanted = True

    async def stop(self, name: str) -> bool:
        """Stop a process by SIGTERM, and by SIGKILL after a time. Returns whether SIGTERM was enough."""
        node = self.nodes[name]
        node.wanted = False
        node.killed = node.child.running
        node.signal(signal.SIGCONT)
        node.signal(signal.SIGTERM)
        with trio.move_on_after(STOP_GRACE_S):
            await self._wait_down(node)
            return True
        node.signal(signal.SIGKILL)
        await self._wait_down(node)
        return False

    async def _wait_down(self, node: Node) -> None:
        while node.child.running:
            await trio.sleep(_CHECK_EVERY_S)  # polls: until it is gone


@asynccontextmanager
async def run_cluster(
    directory: Path,
    nursery: trio.Nursery,
    *,
    on_death: Callable[[str, int], None],
    overrides: Mapping[str, str],
    brokers: int = 3,
    controllers: int = 2,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
) -> AsyncIterator[SoakCluster]:
    """Start all processes and yield; processes that still run at the end are killed."""
    directory = directory.resolve()
    (directory / "logs").mkdir(parents=True)
    with ExitStack() as held:

        def port() -> int:
            return held.enter_context(held_port(HOST))

        server = EmbeddedZookeeper(str(directory / ZOOKEEPER), client_port=port())
        server.prepare()
        network = FaultyNetwork(nursery)
        cluster = SoakCluster(directory, network, "", {}, server.client_port, on_death)
        try:
            cluster.add(ZOOKEEPER, server.command, nursery)
            await server.wait_until_serving(START_LIMIT_S)
            for controller_id in range(1000, 1000 + controllers):
                name = f"controller-{controller_id}"
                keys = {
                    "controller.id": str(controller_id),
                    "zookeeper.connect": f"{HOST}:{await network.route(ZOOKEEPER, server.client_port, name)}",
                    "zookeeper.session.timeout.ms": str(session_timeout_ms),
                    "controller.listener": f"PLAINTEXT://{HOST}:{port()}",
                    "inter.broker.listener.name": "INTERNAL",
                }
                cluster.add(name, _command(directory, "controller", name, keys), nursery)
            bootstrap = []
            for broker_id in range(1, brokers + 1):
                name = f"broker-{broker_id}"
                clients, internal = port(), port()
                outside = await network.route(name, clients, CLIENTS)
                inside = await network.route(name, internal)
                keys = {
                    "broker.id": str(broker_id),
                    "zookeeper.connect": f"{HOST}:{await network.route(ZOOKEEPER, server.client_port, name)}",
                    "listeners": f"CLIENTS://{HOST}:{clients},INTERNAL://{HOST}:{internal}",
                    "advertised.listeners": f"CLIENTS://{HOST}:{outside},INTERNAL://{HOST}:{inside}",
                    "log.dirs": ",".join(map(str, cluster.log_dirs(name))),
                    **BROKER_KEYS,
                    "zookeeper.session.timeout.ms": str(session_timeout_ms),
                    **overrides,
                }
                bootstrap.append(f"{HOST}:{outside}")
                cluster.direct[broker_id] = clients
                cluster.add(name, _command(directory, "broker", name, keys), nursery)
            cluster.bootstrap = ",".join(bootstrap)
            yield cluster
        finally:
            for node in cluster.nodes.values():
                node.wanted, node.killed = False, True
                node.signal(signal.SIGKILL)
            with trio.CancelScope(shield=True):
                for node in cluster.nodes.values():
                    await cluster._wait_down(node)


def _command(directory: Path, role: str, name: str, keys: Mapping[str, str]) -> list[str]:
    path = directory / f"{name}.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    return [sys.executable, "-m", role, "--config", str(path)]
