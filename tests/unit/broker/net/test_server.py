"""The connection limit across several listeners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.config import BrokerConfig
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.net.connection import Connection
from anabranch.broker.net.dispatch import Dispatcher
from anabranch.broker.net.server import Server
from anabranch.runtime.background import Background
from anabranch.runtime.decoded_requests import DecodedRequests
from anabranch.runtime.memory_budget import MemoryBudget

pytestmark = pytest.mark.trio
LIMIT = 2


class FakeStream:
    """A connection that sends nothing."""

    peer = "192.0.2.1:5"

    def __init__(self) -> None:
        self._closed = trio.Event()

    def close(self) -> None:
        self._closed.set()

    async def wait_readable(self) -> None:
        await self._closed.wait()
        raise OSError("closed")


class FakeListener:
    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[FakeStream](10)
        self.accepted = 0

    def offer(self, stream: FakeStream) -> None:
        self._send.send_nowait(stream)

    async def accept(self) -> FakeStream:
        stream = await self._receive.receive()
        self.accepted += 1
        return stream


def fake_node(values: SimpleNamespace, listeners: Mapping[str, FakeListener]) -> Any:
    """A node with these listeners, each on the host of its name."""

    async def listen(host: str, _port: int, **_options: int) -> FakeListener:
        return listeners[host]

    config = BrokerConfig.from_given({"broker.id": "1", "zookeeper.connect": "zk:2181", "log.dirs": "/none"})
    known = replace(config.values, **vars(values))
    return SimpleNamespace(
        decoded_requests=DecodedRequests(),
        request_memory=MemoryBudget(-1),
        metrics=BrokerMetrics(),
        hosted=SimpleNamespace(fetch_sessions=SimpleNamespace(connection_ended=lambda owner: None)),
        config=SimpleNamespace(
            values=known,
            inter_broker_listener="INTERNAL",
            listeners=[SimpleNamespace(name=name, host=name, port=0) for name in listeners],
        ),
        dynamic=SimpleNamespace(values=values),
        env=SimpleNamespace(clock=SimpleNamespace(monotonic=trio.current_time), network=SimpleNamespace(listen=listen)),
    )


def connected(server: Server) -> int:
    """The number of open connections."""
    return server.accepted.total() - server.closed.total()


async def test_every_listener_accepts_again_below_the_limit(mock_clock: trio.testing.MockClock) -> None:
    """The listeners do not need the check that runs once a second: the clock stands still."""
    values = SimpleNamespace(max_connections=LIMIT, max_connections_per_ip=1000)
    listeners = {name: FakeListener() for name in ("A", "B", "INTERNAL")}
    server = Server(fake_node(values, listeners), Dispatcher(), Background(propagate_bugs=True))
    await server.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        held = [FakeStream() for _ in range(3)]
        for name, stream in zip("AAB", held, strict=True):  # listener B waited in accept when the limit was reached
            listeners[name].offer(stream)
            await trio.testing.wait_all_tasks_blocked()
        assert connected(server) == LIMIT + 1, "a listener that was waiting in accept takes one more"
        for stream in held:
            stream.close()
        await trio.testing.wait_all_tasks_blocked()
        assert connected(server) == 0
        for name in "AB":
            listeners[name].offer(FakeStream())
        await trio.testing.wait_all_tasks_blocked()
        assert (listeners["A"].accepted, listeners["B"].accepted) == (3, 2)
        for name in "AB":
            listeners[name].offer(FakeStream())
        await trio.testing.wait_all_tasks_blocked()
        assert connected(server) <= LIMIT + 1, "a listener that was waiting in accept takes one more"
        values.max_connections = LIMIT + 5
        mock_clock.jump(2)
        await trio.testing.wait_all_tasks_blocked()
        assert (listeners["A"].accepted, listeners["B"].accepted) == (4, 3), "a raised limit is noticed"
        nursery.cancel_scope.cancel()


async def test_connections_whose_clients_are_gone_are_closed_also_without_a_limit_of_idle_time(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "overdue", lambda self, now, max_idle_s: "closed by the client")
    values = SimpleNamespace(max_connections=LIMIT, max_connections_per_ip=1000, connections_max_idle_ms=-1)
    listener = FakeListener()
    server = Server(fake_node(values, {"A": listener}), Dispatcher(), Background(propagate_bugs=True))
    await server.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        listener.offer(FakeStream())
        await trio.testing.wait_all_tasks_blocked()
        assert connected(server) == 1
        mock_clock.jump(10)
        await trio.testing.wait_all_tasks_blocked()
        assert connected(server) == 0
        nursery.cancel_scope.cancel()
