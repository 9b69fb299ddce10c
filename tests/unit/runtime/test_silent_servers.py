"""Every client of a channel closes its connection to a server that reads and never answers.

A caller may have a deadline of its own, which ends before the channel's. The connection must not outlive the request's
time limit then: every later request would wait on it.
"""

from __future__ import annotations

import random
import re
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from anabranch import Consumer, Producer, TopicPartition
from anabranch.broker.link.controller_client import ControllerClient
from anabranch.broker.replication.fetcher import ReplicaFetcher
from anabranch.broker.replication.fetcher_config import FetcherConfig
from anabranch.cli import controller_loggers
from anabranch.client.cluster import Node
from anabranch.client.net.connections import Connections, ConnectionSettings
from anabranch.command_error import CommandError
from anabranch.controller.image import LiveBroker
from anabranch.controller.senders import Senders
from anabranch.local import cluster as local_cluster
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.heartbeat import HeartbeatRequest
from anabranch.protocol.generated.metadata import MetadataRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.runtime.channel import Channel
from anabranch.runtime.env import Env
from anabranch.runtime.progress_reader import ProgressReader
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint
from anabranch.zk_schemas.controller import ControllerZnode
from sim.clock import SimClock
from sim.network import SimFabric, SimStream
from sim.zk import FakeZk
from tests.support.broker.replica_cluster import ReplicaCluster
from tests.unit.client.fake_broker import FakeBroker

ROOT = Path(__file__).parents[3]
SERVER = ("server", 1)
LIMIT_S = 2.0
IMPATIENT_S = 1.0
ENDPOINT = Endpoint("PLAINTEXT", *SERVER)
BROKER = LiveBroker(2, 1, BrokerRegistration([ENDPOINT], {"PLAINTEXT": "PLAINTEXT"}))


class Machine:
    """The client's machine, which remembers its connections."""

    def __init__(self) -> None:
        self.fabric = SimFabric(random.Random(1), delay_s=lambda: 0.001)
        self._network = self.fabric.node("client")
        self.made: list[SimStream] = []
        self.env = Env(SimClock(), self, random.Random(1), zk=FakeZk().session())
        self.listen = self._network.listen

    async def connect(self, host: str, port: int, *, attempt: int = 0) -> SimStream:
        self.made.append(await self._network.connect(host, port, attempt=attempt))
        return self.made[-1]

    async def until_closed(self) -> None:
        """Return when a connection is closed; fail after the limit."""
        with trio.fail_after(LIMIT_S + 1):
            while not any(stream.closed for stream in self.made):
                await trio.sleep(0.01)  # virtual time: until the limit is over


@asynccontextmanager
async def silent_server(machine: Machine) -> AsyncIterator[trio.Nursery]:
    async def read(stream: Any) -> None:
        buffer = memoryview(bytearray(1_000))
        try:
            while await stream.receive_into(buffer):
                pass
        except OSError:
            pass

    async def accept() -> None:
        while True:
            nursery.start_soon(read, await listener.accept())

    listener = await machine.fabric.node(SERVER[0]).listen("0.0.0.0", SERVER[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        yield nursery
        nursery.cancel_scope.cancel()


async def impatient(ask: Callable[[], Awaitable[Any]]) -> None:
    """Ask with a deadline that ends first."""
    with trio.move_on_after(IMPATIENT_S) as scope:
        await ask()
    assert scope.cancelled_caught


# ------------------------------------------------------------ the clients


async def controller_client(machine: Machine, nursery: trio.Nursery) -> None:
    assert machine.env.zk is not None
    await machine.env.zk.create(ControllerZnode.PATH, ControllerZnode(1, *SERVER).encode())
    client = ControllerClient(machine.env, machine.env.zk, "broker-1", silence_s=60)
    await nursery.start(client.run)
    with pytest.raises(KafkaError, match="no controller answered within 1 s"):
        await client.request(HeartbeatRequest(), 1, LIMIT_S / 2, lambda _: False)


async def progress_reader(machine: Machine, nursery: trio.Nursery) -> None:
    reader = ProgressReader(machine.env, "broker-1-holds", lambda _: ENDPOINT, LIMIT_S)
    reader.open(nursery)
    await impatient(lambda: reader.ask(2, HeartbeatRequest()))


async def replica_fetcher(machine: Machine, nursery: trio.Nursery) -> None:
    cluster = ReplicaCluster()
    cluster.elect(1, 0, [1, 2])
    config = FetcherConfig(2, 1 << 20, 1, 1 << 20, 500, 1.0, LIMIT_S, flushes=False)
    fetcher = ReplicaFetcher(1, config, machine.env.clock, machine, lambda: SERVER, lambda: 1, cluster.throttle)
    fetcher.follow(cluster[2].partition)
    nursery.start_soon(fetcher.run)


async def senders(machine: Machine, nursery: trio.Nursery) -> None:
    sending = Senders(machine, "controller-1", LIMIT_S, lambda *_: None)
    sending.open(nursery)
    sending.add(BROKER, ENDPOINT)
    sending.send({2: [UpdateMetadataRequest()]})


async def client_connections(machine: Machine, nursery: trio.Nursery) -> None:
    async with FakeBroker({"t": 1}).running(machine.env) as broker:
        settings = ConnectionSettings("c", LIMIT_S * 1000, 1, 1, 1000, 60_000)
        connections = Connections(machine.env, settings, nursery)
        node = Node(1, "127.0.0.1", broker.port)
        await connections.get(node)
        broker.is_silent = True
        await impatient(lambda: connections.request(node, MetadataRequest()))
        await machine.until_closed()


async def producer(machine: Machine, nursery: trio.Nursery) -> None:
    async with (
        FakeBroker({"t": 1}).running(machine.env) as broker,
        Producer(bootstrap_servers=broker.address, request_timeout_ms=int(LIMIT_S * 1000), env=machine.env) as sending,
    ):
        await sending.send_and_wait("t", b"1")
        broker.is_silent = True
        await impatient(lambda: sending.send_and_wait("t", b"2"))
        await machine.until_closed()
        broker.is_silent = False


async def consumer(machine: Machine, nursery: trio.Nursery) -> None:
    settings: dict[str, Any] = {"request_timeout_ms": 1_000, "fetch_max_wait_ms": 500, "env": machine.env}
    async with (
        FakeBroker({"t": 1}).running(machine.env) as broker,
        Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest", **settings) as reading,
    ):
        reading.assign([TopicPartition("t", 0)])
        await reading.getmany(timeout_ms=100)
        broker.is_silent = True
        await impatient(lambda: reading.getmany(timeout_ms=60_000))
        await machine.until_closed()
        broker.is_silent = False


CLIENTS = {
    "broker/link/controller_client.py": controller_client,
    "broker/replication/fetcher.py": replica_fetcher,
    "controller/senders.py": senders,
    "runtime/progress_reader.py": progress_reader,
    "client/net/connections.py": client_connections,
    "client/producer/sender.py": producer,
    "client/consumer/fetcher.py": consumer,
}


@pytest.mark.trio
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
async def test_a_connection_to_a_silent_server_is_closed_at_the_time_limit(
    client: Callable[[Machine, trio.Nursery], Awaitable[None]], autojump_clock: MockClock
) -> None:
    machine = Machine()
    async with silent_server(machine) as nursery:
        await client(machine, nursery)
        await machine.until_closed()


# ------------------------------------------------------------ clients that open their own network


@contextmanager
def silent_port() -> Iterator[tuple[int, threading.Event]]:
    """A port whose server reads and never answers, and an event that is set when the client has closed."""
    closed = threading.Event()

    def read() -> None:
        stream, _ = listener.accept()
        with stream:
            while stream.recv(1000):
                pass
        closed.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=read)
        thread.start()
        yield listener.getsockname()[1], closed
        thread.join()


def test_the_loggers_of_a_silent_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_TIMEOUT_MS", "50")
    with silent_port() as (port, closed):
        with pytest.raises(CommandError, match=r"API_VERSIONS was not answered within 0\.05 s"):
            controller_loggers.describe(f"127.0.0.1:{port}", 1000)
        assert closed.wait(10)


def test_a_silent_local_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "CHECK_TIMEOUT_S", 0.05)
    asked: Any = SimpleNamespace(brokers=[])
    with silent_port() as (port, closed):
        plan: Any = SimpleNamespace(port=port)
        assert not trio.run(local_cluster.LocalCluster._ask_for_all, asked, plan)
        assert closed.wait(10)


OWN_NETWORK = {"anabranch/cli/controller_loggers.py", "anabranch/local/cluster.py"}


def test_no_module_with_a_channel_is_left_out() -> None:
    packages = [ROOT / name for name in ("broker", "controller", "client", "anabranch", "audit", "runtime")]
    sources = [path for package in packages for path in package.rglob("*.py")]  # rglob follows no link to a directory
    imports = re.compile(rf"^from anabranch\.runtime\.channel import .*\b{Channel.__name__}\b", re.MULTILINE)
    users = {str(path.relative_to(ROOT)) for path in sources if imports.search(path.read_text())}
    assert users == CLIENTS.keys() | OWN_NETWORK
