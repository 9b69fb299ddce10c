"""The simulation is deterministic: the same seed gives the same history, and other seeds give other histories."""

from __future__ import annotations

import hashlib
import os
import random
from functools import partial
from types import SimpleNamespace

import pytest
import trio
import trio._core._run as trio_run
import trio.testing

from sim import scheduler
from sim.clock import EPOCH_MS, SimClock
from sim.network import SimFabric, SimNetwork
from sim.scheduler import SchedulerChangedError, SimTasks, run_deterministic
from sim.zk import FakeZk

PORT = 9092
SEEDS = int(os.environ.get("ANABRANCH_SIM_SEEDS", "5"))
FIRST_SEED = int(os.environ.get("ANABRANCH_SIM_FIRST", "0"))
"""The first seed, from ``make sim SEEDS=n FIRST=s``."""
NODES = ("one", "two", "three")


async def chatter(seed: int) -> str:
    """Three machines send to each other and to ZooKeeper; returns a hash of all events in order."""
    rng = random.Random(seed)
    fabric = SimFabric(rng, delay_s=partial(rng.uniform, 0, 0.05), split_probability=0.3)
    zk = FakeZk(delay_s=partial(rng.uniform, 0, 0.05))
    clock = SimClock()
    history = hashlib.sha256()

    def happened(*what: object) -> None:
        history.update(repr((clock.now_ms(), *what)).encode())

    async def answer(node: SimNetwork) -> None:
        listener = await node.listen("", PORT)
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(echo, await listener.accept())

    async def echo(stream: object) -> None:
        buffer = memoryview(bytearray(1000))
        while count := await stream.receive_into(buffer):  # type: ignore[attr-defined]
            await stream.send([bytes(buffer[:count])])  # type: ignore[attr-defined]

    async def talk(node: SimNetwork) -> None:
        session = zk.session()
        for number in range(10):
            path = await session.create("/n_", node.name.encode(), sequence=True)
            happened(node.name, path)
            stream = await node.connect(NODES[number % 3], PORT)
            await stream.send([b"x" * 300])
            held = 0
            while held < 300:
                held += await stream.receive_into(memoryview(bytearray(300)))
                happened(node.name, number, held)
            stream.close()

    async with trio.open_nursery() as servers:
        for name in NODES:
            servers.start_soon(answer, fabric.node(name))
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as clients:
            for name in NODES:
                clients.start_soon(talk, fabric.node(name))
        servers.cancel_scope.cancel()
    return history.hexdigest()


def test_a_seed_run_twice_gives_the_same_history() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        assert run_deterministic(seed, chatter, seed) == run_deterministic(seed, chatter, seed)


def test_seeds_give_different_histories() -> None:
    assert len({run_deterministic(seed, chatter, seed) for seed in range(5)}) == 5


def test_the_order_of_tasks_that_are_ready_at_once_follows_from_the_seed() -> None:
    async def order() -> list[int]:
        seen: list[int] = []

        async def note(number: int) -> None:
            seen.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(note, number)
        return seen

    orders = {seed: run_deterministic(seed, order) for seed in range(10)}
    assert orders == {seed: run_deterministic(seed, order) for seed in range(10)}
    assert len({tuple(seen) for seen in orders.values()}) == 10


def test_time_is_virtual_and_starts_at_a_fixed_moment() -> None:
    async def sleep_for_a_day() -> tuple[int, int]:
        clock = SimClock(skew_ms=7)
        before = clock.now_ms()
        await trio.sleep(86_400)  # virtual time: a day
        return before, clock.now_ms()

    assert run_deterministic(0, sleep_for_a_day) == (EPOCH_MS + 7, EPOCH_MS + 7 + 86_400_000)


def test_virtual_time_is_equal_to_that_of_trios_mock_clock() -> None:
    """The times must be equal to the last bit, because the order of tasks depends on the deadlines that have passed."""

    async def times() -> list[float]:
        rng, found = random.Random(5), []
        for deadline in sorted(10 ** rng.uniform(-6, 3) for _ in range(100)):
            await trio.sleep_until(deadline)
            found.append(trio.current_time())
        return found

    assert run_deterministic(0, times) == trio.run(times, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_stopped_process_does_nothing_until_it_is_resumed() -> None:
    async def scenario() -> list[tuple[str, float]]:
        done: list[tuple[str, float]] = []

        async def tick(name: str) -> None:
            for _ in range(4):
                await trio.sleep(1)  # pause: virtual time
                done.append((name, trio.current_time()))

        async def live(name: str) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tick, name)

        frozen, free = SimTasks(), SimTasks()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(frozen.run, live, "frozen")
            nursery.start_soon(free.run, live, "free")
            await trio.sleep(1.5)  # pause: virtual time
            frozen.stop()
            await trio.sleep(2)  # pause: virtual time
            frozen.resume()
        return done

    done = run_deterministic(0, scenario)
    assert [at for name, at in done if name == "free"] == [1, 2, 3, 4]
    assert [at for name, at in done if name == "frozen"] == [1, 3.5, 4.5, 5.5]


def test_the_scheduler_is_left_as_it_was() -> None:
    before = (trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r.getstate())
    with pytest.raises(ZeroDivisionError):
        run_deterministic(0, _fail)
    assert (trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r.getstate()) == before


async def _fail() -> None:
    1 / 0


@pytest.mark.parametrize(
    ("name", "without"),
    [("trio_run", SimpleNamespace(_ALLOW_DETERMINISTIC_SCHEDULING=False)), ("MockClock", object)],
    ids=["generator", "clock"],
)
def test_a_trio_release_without_the_needed_internals_is_refused(
    name: str, without: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, name, without)
    with pytest.raises(SchedulerChangedError, match=trio.__version__):
        run_deterministic(0, _fail)
