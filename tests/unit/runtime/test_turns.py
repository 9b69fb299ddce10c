"""Tasks with long work share each pass of the event loop: what they do in one pass is counted, not timed."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from anabranch.runtime.turns import Turns, pause, turns
from tests.support.broker.loop_probe import LoopProbe

pytestmark = pytest.mark.trio
MOST = 100
PIECE = 30


@pytest.mark.parametrize("tasks", [1, 3, 200])
async def test_a_pass_is_shared_by_any_number_of_tasks(tasks: int) -> None:
    shared, probe = Turns(MOST), LoopProbe()

    async def work() -> None:
        for _ in range(5):
            await shared.pause(PIECE)
            probe.step(PIECE)

    with probe.watching():
        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(work)
    assert probe.steps == tasks * 5 * PIECE
    assert probe.most_steps <= 2 * (MOST + PIECE)


async def test_short_work_waits_only_after_a_full_pass() -> None:
    shared, probe = Turns(MOST), LoopProbe()

    async def work() -> None:
        await shared.take(PIECE)
        probe.step(PIECE)

    with probe.watching():
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(work)
    assert PIECE < probe.most_steps <= 2 * (MOST + PIECE)


async def test_work_that_was_larger_than_its_turn_counts() -> None:
    shared = Turns(MOST)
    with trio.testing.assert_no_checkpoints():
        await shared.take(PIECE)
    shared.left -= MOST
    with trio.testing.assert_checkpoints():
        await shared.take(PIECE)
    assert shared.left == MOST - PIECE


async def test_turns_are_given_in_the_order_of_the_tasks() -> None:
    shared = Turns(MOST)
    came: list[int] = []
    served: list[int] = []

    async def work(number: int) -> None:
        came.append(number)
        await shared.pause(PIECE)
        served.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(work, number)
    for number in range(20):  # the tasks of one pass run in any order
        assert abs(served.index(number) - came.index(number)) <= MOST // PIECE


@pytest.mark.parametrize("cancelled", [0, 1, 2])
async def test_a_cancelled_task_keeps_nobody_waiting(cancelled: int) -> None:
    shared = Turns(MOST)
    scopes = [trio.CancelScope() for _ in range(3)]
    served: list[int] = []

    async def work(number: int) -> None:
        with scopes[number]:
            await shared.pause(MOST)
            served.append(number)

    async with trio.open_nursery() as nursery:
        first = shared.pause(MOST)
        for number in range(3):
            nursery.start_soon(work, number)
        await first
        scopes[cancelled].cancel()
    assert set(served) >= {0, 1, 2} - {cancelled}
    await shared.pause(MOST)
    assert shared.left == 0


async def test_an_event_loop_has_turns_of_its_own() -> None:
    mine = turns()
    assert turns() is mine
    await pause()
    others = await trio.to_thread.run_sync(lambda: trio.run(_turns))
    assert others is not mine


async def _turns() -> Turns:
    return turns()
