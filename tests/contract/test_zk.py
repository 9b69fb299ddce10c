"""The contract of ``ZkStore``: a real ZooKeeper and the simulated one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from kazoo.client import KazooClient

from anabranch.local.embedded_zookeeper import EmbeddedZookeeper, free_port
from anabranch.runtime.env import (
    BadVersionError,
    CheckOp,
    CreateOp,
    DeleteOp,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionState,
    SetOp,
    ZkConnectionError,
    ZkError,
    ZkRequestTooLargeError,
    ZkSessionExpiredError,
    ZkStore,
)
from anabranch.runtime.zk_kazoo import KazooZk, open_zk
from anabranch.runtime.zk_requests import request_bytes
from sim.zk import FakeZk
from tests.contract.zookeepers import SESSION_TIMEOUT_MS, TICK_TIME_MS

DEADLINE_S = 10.0
RESTART_DEADLINE_S = 25.0
"""A starting server may leave the request of a new connection unanswered, and closes the connection after 10 s."""


class RealServer:
    """Sessions on a real server, with faults that an operator or the network can cause."""

    def __init__(self, connect_string: str) -> None:
        self.connect_string = connect_string
        self.chroot = connect_string[connect_string.index("/") :]

    @asynccontextmanager
    async def session(self) -> AsyncIterator[ZkStore]:
        async with open_zk(self.connect_string, SESSION_TIMEOUT_MS) as zk:
            yield zk

    async def expire(self, zk: Any) -> None:
        """End the session: a second client takes it over and closes it."""
        assert isinstance(zk, KazooZk)
        client_id = zk._client.client_id
        await trio.to_thread.run_sync(self._take_over_and_close, client_id)

    def _take_over_and_close(self, client_id: tuple[int, bytes]) -> None:
        intruder = KazooClient(self.connect_string, timeout=SESSION_TIMEOUT_MS / 1000, client_id=client_id)
        intruder.start(DEADLINE_S)
        intruder.stop()
        intruder.close()

    def break_connection(self, zk: Any) -> None:
        zk._client._connection._socket.shutdown(2)


class SimulatedServer:
    """Sessions on a ``FakeZk``."""

    chroot = ""

    def __init__(self) -> None:
        self.server = FakeZk(delay_s=lambda: 0.001)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[ZkStore]:
        session = self.server.session(SESSION_TIMEOUT_MS)
        try:
            yield session
        finally:
            session.close()

    async def expire(self, zk: Any) -> None:
        zk.expire()

    def break_connection(self, zk: Any) -> None:
        zk.disconnect()
        trio.lowlevel.spawn_system_task(self._come_back, zk)

    async def _come_back(self, zk: Any) -> None:
        await trio.sleep(0.02)  # pause: the length of the outage
        zk.reconnect()


@pytest.fixture(params=["real", "simulated"])
def server(request: pytest.FixtureRequest) -> RealServer | SimulatedServer:
    if request.param == "simulated":
        return SimulatedServer()
    return RealServer(request.getfixturevalue("zookeeper_root"))


class Signals:
    """Counts calls of watches and state callbacks, and lets a test wait for them."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self._changed = trio.Event()

    def __call__(self, *what: Any) -> None:
        self.seen.append(what[0] if what else None)
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, condition: Callable[[list[Any]], bool], deadline_s: float = DEADLINE_S) -> None:
        with trio.fail_after(deadline_s):
            while not condition(self.seen):
                await self._changed.wait()

    async def count(self, number: int) -> None:
        await self.until(lambda seen: len(seen) >= number)


@pytest.mark.trio
async def test_a_znode_is_created_read_written_and_deleted(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        assert await zk.create("/a", b"one") == "/a"
        first = await zk.get("/a")
        assert (first.data, first.version, first.ephemeral_owner) == (b"one", 0, 0)
        assert first.czxid == first.mzxid > 0
        assert await zk.set("/a", b"two") == 1
        second = await zk.get("/a")
        assert (second.data, second.version, second.czxid) == (b"two", 1, first.czxid)
        assert second.mzxid > first.mzxid
        await zk.delete("/a")
        assert await zk.exists("/a") is None
        await zk.sync("/")


@pytest.mark.trio
async def test_exists_gives_the_stat_without_the_data(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        await zk.create("/a", b"one")
        found = await zk.exists("/a")
        assert found is not None
        assert (found.data, found.version) == (b"", 0)
        assert found.czxid == (await zk.get("/a")).czxid


@pytest.mark.trio
async def test_a_recreated_znode_has_a_greater_czxid(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        await zk.create("/a", b"")
        first = (await zk.get("/a")).czxid
        await zk.delete("/a")
        await zk.create("/a", b"")
        again = await zk.get("/a")
        assert again.czxid > first
        assert again.version == 0


@pytest.mark.trio
async def test_children_are_sorted(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        for name in ("b", "a10", "a9", "c"):
            await zk.create(f"/t/{name}", b"", make_parents=True)
        assert await zk.children("/t") == ["a10", "a9", "b", "c"]


@pytest.mark.trio
async def test_every_error_has_its_type_and_names_the_path(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        await zk.create("/a", b"")
        await zk.create("/a/b", b"")
        cases: list[tuple[Any, type[ZkError]]] = [
            (lambda: zk.get("/none"), NoNodeError),
            (lambda: zk.children("/none"), NoNodeError),
            (lambda: zk.set("/none", b""), NoNodeError),
            (lambda: zk.delete("/none"), NoNodeError),
            (lambda: zk.create("/none/child", b""), NoNodeError),
            (lambda: zk.create("/a", b""), NodeExistsError),
            (lambda: zk.create("/a", b"", make_parents=True), NodeExistsError),
            (lambda: zk.set("/a", b"", 7), BadVersionError),
            (lambda: zk.delete("/a/b", 7), BadVersionError),
            (lambda: zk.delete("/a"), NotEmptyError),
        ]
        for call, expected in cases:
            with pytest.raises(expected) as caught:
                await call()
            assert caught.value.path in ("/none", "/none/child", "/a", "/a/b")
            assert caught.value.path in str(caught.value)
        assert (await zk.get("/a")).version == 0


@pytest.mark.trio
async def test_an_ephemeral_is_deleted_with_its_session_and_has_no_children(
    server: RealServer | SimulatedServer,
) -> None:
    async with server.session() as watcher:
        gone = Signals()
        async with server.session() as zk:
            await zk.create("/e", b"", ephemeral=True)
            assert (await zk.get("/e")).ephemeral_owner == zk.session_id != 0
            with pytest.raises(ZkError):
                await zk.create("/e/child", b"")
            assert await watcher.exists("/e", gone) is not None
        await gone.count(1)
        assert await watcher.exists("/e") is None


@pytest.mark.trio
async def test_sequence_numbers_grow_and_are_not_given_twice(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        await zk.create("/s", b"")
        paths = [await zk.create("/s/n_", b"", sequence=True) for _ in range(3)]
        await zk.delete(paths[-1])
        paths.append(await zk.create("/s/n_", b"", sequence=True))
        assert all(len(path) == len("/s/n_") + 10 and path[5:].isdigit() for path in paths)
        assert sorted(set(paths)) == paths


# ---------------------------------------------------------------- multi


@pytest.mark.trio
async def test_multi_applies_all_and_returns_versions(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        await zk.create("/a", b"")
        await zk.create("/b", b"")
        ops = [SetOp("/a", b"1", 0), CheckOp("/a", 1), CreateOp("/c", b"c"), CreateOp("/c/d", b""), DeleteOp("/b", 0)]
        assert await zk.multi(ops) == [1, -1, 0, 0, -1]
        assert (await zk.get("/a")).data == b"1"
        assert (await zk.get("/c")).data == b"c"
        assert await zk.exists("/b") is None
        assert (await zk.get("/c")).czxid == (await zk.get("/c/d")).czxid == (await zk.get("/a")).mzxid
        assert await zk.multi([]) == []


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (CheckOp("/a", 5), BadVersionError),
        (SetOp("/a", b"", 0), BadVersionError),
        (SetOp("/none", b""), NoNodeError),
        (CheckOp("/none", 0), NoNodeError),
        (CreateOp("/a", b""), NodeExistsError),
        (CreateOp("/none/b", b""), NoNodeError),
        (DeleteOp("/a"), NotEmptyError),
    ],
)
@pytest.mark.trio
async def test_multi_applies_nothing_when_one_op_fails(
    server: RealServer | SimulatedServer, bad: Any, error: type[ZkError]
) -> None:
    async with server.session() as zk:
        await zk.create("/a", b"before")
        await zk.create("/a/x", b"x")
        before = await zk.get("/a")
        ops = [SetOp("/a", b"after", 0), DeleteOp("/a/x"), CreateOp("/new", b""), CreateOp("/a/y", b""), bad]
        with pytest.raises(error) as caught:
            await zk.multi([*ops, CreateOp("/later", b"")])
        assert caught.value.path == bad.path
        assert await zk.get("/a") == before
        assert await zk.children("/a") == ["x"]
        assert (await zk.get("/a/x")).data == b"x"
        assert await zk.exists("/new") is None


@pytest.mark.trio
async def test_a_failed_multi_fires_no_watch(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        await zk.create("/a", b"")
        fired = Signals()
        await zk.get("/a", fired)
        with pytest.raises(NoNodeError):
            await zk.multi([SetOp("/a", b"1"), DeleteOp("/none")])
        await zk.sync("/")
        assert fired.seen == []
        await zk.set("/a", b"2")
        await fired.count(1)


@pytest.mark.trio
async def test_ephemerals_can_be_made_in_a_multi(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        await zk.multi([CreateOp("/e", b"", ephemeral=True), CreateOp("/p", b"")])
        assert (await zk.get("/e")).ephemeral_owner == zk.session_id
        assert (await zk.get("/p")).ephemeral_owner == 0


# ---------------------------------------------------------------- watches


@pytest.mark.trio
async def test_a_data_watch_fires_once(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk, server.session() as other:
        await zk.create("/a", b"")
        fired = Signals()
        await zk.get("/a", fired)
        await other.set("/a", b"1")
        await fired.count(1)
        await other.set("/a", b"2")
        await zk.sync("/")
        assert (await zk.get("/a")).data == b"2"
        assert len(fired.seen) == 1


@pytest.mark.trio
async def test_an_exists_watch_fires_on_creation_and_deletion(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        fired = Signals()
        assert await zk.exists("/a", fired) is None
        await zk.create("/a", b"")
        await fired.count(1)
        assert await zk.exists("/a", fired) is not None
        await zk.delete("/a")
        await fired.count(2)


@pytest.mark.trio
async def test_a_children_watch_sees_names_not_data(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        await zk.create("/p", b"")
        await zk.create("/p/a", b"")
        fired = Signals()
        await zk.children("/p", fired)
        await zk.set("/p/a", b"1")
        await zk.set("/p", b"1")
        await zk.sync("/")
        assert fired.seen == []
        await zk.delete("/p/a")
        await fired.count(1)
        await zk.children("/p", fired)
        await zk.create("/p/b", b"")
        await fired.count(2)


@pytest.mark.trio
async def test_a_watch_has_fired_before_its_change_can_be_read(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk, server.session() as other:
        await zk.create("/a", b"")
        fired = Signals()
        await zk.get("/a", fired)
        await other.set("/a", b"new")
        while (await zk.get("/a")).data != b"new":
            pass
        assert len(fired.seen) == 1


@pytest.mark.trio
async def test_reading_again_with_the_same_watch_does_not_add_one(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        await zk.create("/a", b"")
        fired = Signals()
        for _ in range(5):
            await zk.get("/a", fired)
        await zk.set("/a", b"1")
        await fired.count(1)
        await zk.sync("/")
        assert len(fired.seen) == 1


@pytest.mark.trio
async def test_watches_of_two_callers_both_fire(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        await zk.create("/a", b"")
        first, second = Signals(), Signals()
        await zk.get("/a", first)
        await zk.exists("/a", second)
        await zk.set("/a", b"1")
        await first.count(1)
        await second.count(1)


# ---------------------------------------------------------------- sessions


@pytest.mark.trio
async def test_expiry_is_reported_and_a_new_session_follows(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk, server.session() as other:
        states = Signals()
        zk.on_state(states)
        first = zk.session_id
        await zk.create("/e", b"", ephemeral=True)
        gone, watch = Signals(), Signals()
        await other.exists("/e", gone)
        await zk.get("/e", watch)
        await server.expire(zk)
        await states.until(lambda seen: SessionState.LOST in seen and seen[-1] is SessionState.CONNECTED)
        assert states.seen == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
        assert zk.state is SessionState.CONNECTED
        assert zk.session_id not in (0, first)
        await gone.count(1)
        await watch.count(1)
        await zk.create("/e", b"again", ephemeral=True)
        assert (await other.get("/e")).ephemeral_owner == zk.session_id


@pytest.mark.trio
async def test_a_broken_connection_keeps_session_and_ephemerals(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk, server.session() as other:
        states, watch = Signals(), Signals()
        first = zk.session_id
        await zk.create("/e", b"", ephemeral=True)
        await zk.get("/e", watch)
        zk.on_state(states)
        server.break_connection(zk)
        await states.until(lambda seen: len(seen) == 2)
        assert states.seen == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert zk.session_id == first
        assert await other.exists("/e") is not None
        await watch.count(1)  # every watch fires, because changes may have been missed


@pytest.mark.trio
async def test_a_call_without_a_connection_fails_at_once(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        outcome: list[type[BaseException]] = []
        done = trio.Event()

        async def try_to_write() -> None:
            try:
                await zk.create("/x", b"")
            except ZkError as error:
                outcome.append(type(error))
            done.set()

        async with trio.open_nursery() as nursery:

            def on_state(state: SessionState) -> None:
                if state is SessionState.SUSPENDED:
                    nursery.start_soon(try_to_write)

            zk.on_state(on_state)
            server.break_connection(zk)
            with trio.fail_after(DEADLINE_S):
                await done.wait()
        assert outcome == [ZkConnectionError]


@pytest.mark.trio
async def test_an_unregistered_state_callback_is_not_called(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        kept, dropped = Signals(), Signals()
        unregister = zk.on_state(dropped)
        zk.on_state(kept)
        unregister()
        unregister()
        server.break_connection(zk)
        await kept.count(2)
        assert dropped.seen == []


@pytest.mark.trio
async def test_a_cancelled_call_leaves_the_session_usable(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        await zk.create("/a", b"")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(zk.set, "/a", b"1")
                scope.cancel()
        await zk.sync("/")
        await zk.set("/a", b"2")
        assert (await zk.get("/a")).data == b"2"


@pytest.mark.trio
async def test_calls_of_one_session_are_applied_in_order(server: RealServer | SimulatedServer) -> None:
    async with server.session() as zk:
        await zk.create("/a", b"0")
        started: list[int] = []

        async def write(number: int) -> None:
            started.append(number)
            await zk.set("/a", b"%d" % number)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(write, number)
        assert (await zk.get("/a")).data == b"%d" % started[-1]


@pytest.mark.trio
async def test_a_closed_store_fires_no_callback_and_refuses_calls(server: RealServer | SimulatedServer) -> None:
    async with server.session() as other:
        calls = Signals()
        async with server.session() as zk:
            await zk.create("/a", b"")
            await zk.get("/a", calls)
            await zk.children("/", calls)
            zk.on_state(calls)
        await other.set("/a", b"1")
        await other.sync("/")
        with pytest.raises(ZkSessionExpiredError):
            await zk.get("/a")
        await trio.lowlevel.checkpoint()
        assert calls.seen == []


@pytest.mark.trio
async def test_a_request_of_the_largest_size_is_accepted_and_a_larger_one_is_not_sent(
    server: RealServer | SimulatedServer,
) -> None:
    async with server.session() as zk:
        states = Signals()
        zk.on_state(states)
        await zk.create("/a", b"")
        free = zk.max_request_bytes - request_bytes([SetOp("/a", b"")], server.chroot)
        assert await zk.set("/a", bytes(free)) == 1
        session_id = zk.session_id
        for call in (
            zk.set("/a", bytes(free + 1)),
            zk.create("/b", bytes(free + 1)),
            zk.multi([CreateOp("/b", b""), SetOp("/a", bytes(free))]),
            zk.get("/" + "b" * zk.max_request_bytes),
            zk.exists("/" + "b" * zk.max_request_bytes),
            zk.children("/" + "b" * zk.max_request_bytes),
        ):
            with pytest.raises(ZkRequestTooLargeError, match=r"takes \d+ bytes in one request; .* 1048575 .*maxbuffer"):
                await call
        assert (await zk.get("/a")).version == 1
        assert await zk.exists("/b") is None
        assert (states.seen, zk.session_id) == ([], session_id)


@pytest.mark.trio
async def test_a_response_may_be_larger_than_the_largest_request(server: RealServer | SimulatedServer) -> None:
    names = [f"{'n' * 240}{number:04}" for number in range(5_000)]
    async with server.session() as zk:
        for first in range(0, len(names), 1_000):
            await zk.multi([CreateOp(f"/{name}", b"") for name in names[first : first + 1_000]])
        assert len("".join(names)) > zk.max_request_bytes
        assert set(names) <= set(await zk.children("/"))


# ---------------------------------------------------------------- only the real ZooKeeper


@pytest.mark.trio
async def test_no_server_is_an_error_that_names_the_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ZkConnectionError, match=address):
        async with open_zk(address, SESSION_TIMEOUT_MS, connect_timeout_ms=100):
            pytest.fail("connected without a server")


@pytest.mark.trio
async def test_the_client_connects_again_if_the_server_does_not_answer(zookeeper_server: EmbeddedZookeeper) -> None:
    """A server that is starting accepts connections, and may leave their requests unanswered."""
    accepted = 0

    async def answer_all_but_the_first(client: trio.SocketStream) -> None:
        nonlocal accepted
        accepted += 1
        if accepted == 1:
            await trio.sleep_forever()
        server = await trio.open_tcp_stream("127.0.0.1", zookeeper_server.client_port)
        async with server, trio.open_nursery() as nursery:
            for source, target in ((client, server), (server, client)):
                nursery.start_soon(copy, source, target)

    async def copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                await target.send_all(data)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer_all_but_the_first, [listener])
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        async with open_zk(address, SESSION_TIMEOUT_MS, connect_timeout_ms=60_000) as zk:
            assert await zk.exists("/") is not None
        assert accepted >= 2
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_an_outage_of_the_server_keeps_the_session(tmp_path: Path) -> None:
    with EmbeddedZookeeper(str(tmp_path), tick_time_ms=TICK_TIME_MS, heap_mib=128) as server:
        async with open_zk(server.connect_string, 60_000) as zk:
            states = Signals()
            zk.on_state(states)
            await zk.create("/e", b"kept", ephemeral=True)
            first = zk.session_id
            server.kill()
            await states.count(1)
            with pytest.raises(ZkConnectionError):
                await zk.get("/e")
            again = EmbeddedZookeeper(
                str(tmp_path), client_port=server.client_port, tick_time_ms=TICK_TIME_MS, heap_mib=128
            )
            async with again:
                await states.until(lambda seen: seen[-1] is SessionState.CONNECTED, RESTART_DEADLINE_S)
                assert zk.session_id == first
                assert (await zk.get("/e")).data == b"kept"
                assert SessionState.LOST not in states.seen
