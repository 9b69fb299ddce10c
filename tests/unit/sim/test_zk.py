"""The faults of a simulated ZooKeeper; the contract suite tests it without faults."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
import trio.testing

from anabranch.runtime.env import CreateOp, NodeExistsError, SessionState, ZkConnectionError, ZkSessionExpiredError
from sim.scheduler import run_deterministic
from sim.zk import FakeSession, FakeZk

TIMEOUT_MS = 6000


def simulate(scenario: Callable[[], Awaitable[None]]) -> None:
    run_deterministic(0, scenario)


def recorded(session: FakeSession) -> list[SessionState]:
    states: list[SessionState] = []
    session.on_state(states.append)
    return states


def test_a_write_whose_answer_is_lost_was_applied() -> None:
    async def scenario() -> None:
        zk = FakeZk()
        session = zk.session()
        session.lose_next_answer()
        with pytest.raises(ZkConnectionError):
            await session.create("/a", b"mine")
        assert session.state is SessionState.SUSPENDED
        session.reconnect()
        assert (await session.get("/a")).data == b"mine"
        with pytest.raises(NodeExistsError):
            await session.create("/a", b"again")

    simulate(scenario)


def test_a_write_whose_request_is_lost_was_not_applied() -> None:
    async def scenario() -> None:
        session = FakeZk().session()
        await session.create("/before", b"")
        session.lose_next_request()
        assert await session.exists("/before") is not None  # only the next write is lost, not a read
        with pytest.raises(ZkConnectionError):
            await session.multi([CreateOp("/a", b"")])
        session.reconnect()
        assert await session.exists("/a") is None

    simulate(scenario)


def test_a_session_outlives_an_outage_shorter_than_its_timeout() -> None:
    async def scenario() -> None:
        zk = FakeZk()
        session, other = zk.session(TIMEOUT_MS), zk.session()
        states = recorded(session)
        await session.create("/e", b"", ephemeral=True)
        session.disconnect()
        with pytest.raises(ZkConnectionError, match="not sent"):
            await session.get("/e")
        await trio.sleep(TIMEOUT_MS / 1000 - 0.1)  # virtual time: the outage
        session.reconnect()
        await trio.sleep(TIMEOUT_MS / 1000)  # virtual time: the old deadline must not end the session
        assert await other.exists("/e") is not None
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]

    simulate(scenario)


def test_a_longer_outage_ends_the_session_and_its_ephemerals() -> None:
    async def scenario() -> None:
        zk = FakeZk()
        session, other = zk.session(TIMEOUT_MS), zk.session()
        states, first, gone = recorded(session), session.session_id, trio.Event()
        await session.create("/e", b"", ephemeral=True)
        await other.exists("/e", gone.set)
        session.disconnect()
        await gone.wait()
        assert trio.current_time() >= TIMEOUT_MS / 1000
        assert session.state is SessionState.SUSPENDED  # the client cannot know yet that its session has expired
        session.reconnect()
        with pytest.raises(ZkSessionExpiredError):
            await session.get("/")
        await trio.testing.wait_all_tasks_blocked()
        assert states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
        assert session.session_id != first

    simulate(scenario)


def test_a_crashed_process_gets_no_events_and_its_session_stays_until_its_timeout() -> None:
    async def scenario() -> None:
        zk = FakeZk()
        session, other = zk.session(TIMEOUT_MS), zk.session()
        await session.create("/e", b"", ephemeral=True)
        fired: list[str] = []
        await session.get("/e", lambda: fired.append("watch"))
        states = recorded(session)
        session.crash()
        await other.set("/e", b"x")
        await trio.sleep(TIMEOUT_MS / 1000 - 0.1)  # virtual time: just before the timeout
        assert await other.exists("/e") is not None
        await trio.sleep(0.2)  # virtual time: past the timeout
        assert await other.exists("/e") is None
        assert (fired, states) == ([], [])

    simulate(scenario)


def test_an_outage_of_the_server_ends_no_session() -> None:
    async def scenario() -> None:
        zk = FakeZk()
        session = zk.session(TIMEOUT_MS)
        first = session.session_id
        await session.create("/e", b"", ephemeral=True)
        zk.stop()
        await trio.sleep(10 * TIMEOUT_MS / 1000)  # virtual time: a long maintenance
        zk.start()
        assert session.session_id == first
        assert await session.exists("/e") is not None

    simulate(scenario)


def test_delays_never_reorder_the_requests_of_one_session() -> None:
    async def scenario() -> None:
        zk = FakeZk(delay_s=partial(random.Random(5).uniform, 0, 1))
        session = zk.session()
        await session.create("/a", b"")
        started: list[int] = []

        async def write(number: int) -> None:
            started.append(number)
            await session.set("/a", b"%d" % number)

        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(write, number)
        assert (await session.get("/a")).data == b"%d" % started[-1]

    simulate(scenario)


def test_a_frozen_process_loses_its_session_and_notices_when_it_resumes() -> None:
    async def scenario() -> None:
        zk = FakeZk(delay_s=lambda: 0.01)
        session, other = zk.session(TIMEOUT_MS), zk.session(TIMEOUT_MS)
        await session.create("/e", b"", ephemeral=True)
        first, states = session.session_id, recorded(session)
        session.freeze()
        await trio.sleep(0.9 * TIMEOUT_MS / 1000)  # pause: virtual time
        assert await other.exists("/e") is not None
        await trio.sleep(0.2 * TIMEOUT_MS / 1000)  # virtual time: past the timeout
        assert await other.exists("/e") is None
        assert (session.state, states) == (SessionState.CONNECTED, [])
        session.thaw()
        with pytest.raises(ZkConnectionError):
            await session.create("/by-a-zombie", b"")
        assert await other.exists("/by-a-zombie") is None
        await trio.sleep(1)  # pause: virtual time
        assert states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
        assert session.session_id != first

    simulate(scenario)


def test_a_short_freeze_only_delays_the_events_of_the_process() -> None:
    async def scenario() -> None:
        zk = FakeZk(delay_s=lambda: 0.01)
        session, other = zk.session(TIMEOUT_MS), zk.session(TIMEOUT_MS)
        fired: list[str] = []
        await session.exists("/a", lambda: fired.append("a"))
        session.freeze()
        await other.create("/a", b"")
        await trio.sleep(1)  # pause: virtual time
        assert fired == []
        session.thaw()
        await trio.sleep(2 * TIMEOUT_MS / 1000)  # virtual time: the timeout no longer counts
        assert (fired, session.state) == (["a"], SessionState.CONNECTED)

    simulate(scenario)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_an_event_in_flight_when_the_connection_ends_fires_its_watch_once(is_frozen: bool) -> None:
    async def scenario() -> None:
        zk = FakeZk(delay_s=lambda: 0.01)
        session, other = zk.session(TIMEOUT_MS), zk.session(TIMEOUT_MS)
        fired: list[str] = []
        await session.exists("/a", lambda: fired.append("a"))
        if is_frozen:
            session.freeze()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.create, "/a", b"")
            await trio.sleep(0.015)  # virtual time: the znode is written, and no watch event has arrived
            if is_frozen:
                await trio.sleep(2 * TIMEOUT_MS / 1000)  # virtual time: the session ends
                session.thaw()
            else:
                session.disconnect()
                session.reconnect()
        await trio.sleep(1)  # pause: virtual time
        assert fired == ["a"]

    simulate(scenario)


def test_a_planned_loss_of_an_answer_can_be_cancelled() -> None:
    async def scenario() -> None:
        session = FakeZk().session()
        session.lose_next_answer()
        session.lose_nothing()
        await session.create("/a", b"")
        assert session.state is SessionState.CONNECTED

    simulate(scenario)
