"""Background work continues after the failure of one item, and a wake-up reaches every waiting task."""

from __future__ import annotations

import errno

import pytest
import trio
import trio.testing

from anabranch.controller.store import ControllerMovedError
from anabranch.runtime.accepting import accept_connections
from anabranch.runtime.background import LONGEST_PAUSE_S, Background
from anabranch.runtime.env import Stream
from anabranch.runtime.memory_budget import MemoryBudget
from anabranch.runtime.metrics import Metrics
from anabranch.runtime.wake_ups import WakeUps
from tests.support.log.log_fixture import ManualClock

FULL = OSError(errno.ENOSPC, "No space left on device")


def fail_with(background: Background, error: Exception, task: str = "cleaner", item: str = "t-0") -> None:
    with background.guard(task, item):
        raise error


def test_the_pause_after_each_failure_of_an_item_grows() -> None:
    clock = ManualClock()
    background = Background(clock)
    pauses = []
    for _ in range(12):
        fail_with(background, FULL)
        before = clock.seconds
        assert not background.due("cleaner", "t-0") and background.due("cleaner", "u-0")
        clock.seconds = background.failing()[0].retry_at
        assert background.due("cleaner", "t-0")
        pauses.append(clock.seconds - before)
    assert pauses[:3] == [1.0, 2.0, 4.0] and pauses[-1] == LONGEST_PAUSE_S
    assert background.failures.get("cleaner") == 12
    with background.guard("cleaner", "t-0"):
        pass
    assert background.failing() == []


def test_failures_are_described_and_counted() -> None:
    clock = ManualClock()
    background = Background(clock)
    metrics = Metrics()
    background.show_in(metrics)
    fail_with(background, FULL)
    fail_with(background, ValueError("no batch at byte 0"), "retention", "/logs")
    assert background.describe() == [
        "cleaner t-0: failed 1 time, next try in 1 s: [Errno 28] No space left on device",
        "retention /logs: failed 1 time, next try in 1 s: no batch at byte 0",
    ]
    text = metrics.render().decode()
    assert 'anabranch_background_failures_total{task="cleaner"} 1.0' in text
    assert "anabranch_background_failing 2.0" in text
    background.forget("t-0")
    assert [failure.task for failure in background.failing()] == ["retention"]
    clock.seconds += 3601
    assert background.failing() == [], "a forgotten item is no longer described"


def test_an_error_that_must_end_the_task_is_raised() -> None:
    background = Background(ManualClock())
    with pytest.raises(ControllerMovedError), background.guard("drain", passes=ControllerMovedError):
        raise ControllerMovedError("another controller")
    assert background.failing() == []


def test_unexpected_errors_are_raised_in_a_simulation() -> None:
    background = Background(ManualClock(), propagate_bugs=True)
    fail_with(background, FULL)
    with pytest.raises(KeyError):
        fail_with(background, KeyError("t-0"))


@pytest.mark.trio
async def test_a_task_that_fails_runs_again_and_recovers(autojump_clock: object) -> None:
    background = Background()
    runs = []

    async def work() -> None:
        runs.append(trio.current_time())
        if len(runs) < 4:
            raise RuntimeError("a bug")
        await trio.sleep(60)  # virtual time: the clock jumps

    start = trio.current_time()
    await background.keep("loader", work)
    assert [round(at - start) for at in runs] == [0, 1, 3, 7]
    assert background.failures.get("loader") == 3 and background.failing() == []


@pytest.mark.trio
async def test_periodic_work_continues_after_a_failure(autojump_clock: object) -> None:
    background = Background()
    turns = []

    def work() -> None:
        turns.append(trio.current_time())
        if len(turns) == 1:
            raise FULL

    start = trio.current_time()
    with trio.move_on_after(35):
        await background.every("retention", 10, work)
    assert [round(at - start) for at in turns] == [10, 20, 30]
    assert background.failures.get("retention") == 1 and background.failing() == []


@pytest.mark.trio
async def test_every_task_that_waits_is_woken() -> None:
    wake_ups, open_doors, woken = WakeUps(), set[int](), []

    async def wait(door: int) -> None:
        while door not in open_doors:
            await wake_ups.wait()
        woken.append(door)

    async with trio.open_nursery() as nursery:
        for door in range(3):
            nursery.start_soon(wait, door)
        await trio.testing.wait_all_tasks_blocked()
        open_doors.add(0)
        wake_ups.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert woken == [0]
        open_doors |= {1, 2}
        wake_ups.wake()
    assert sorted(woken) == [0, 1, 2]


@pytest.mark.trio
async def test_room_in_the_memory_budget_wakes_every_connection() -> None:
    budget, woken = MemoryBudget(100), []
    budget.take(100)

    async def wait(number: int) -> None:
        await budget.wait_for_room(0)
        woken.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(wait, number)
        await trio.testing.wait_all_tasks_blocked()
        budget.take(-100)
        with trio.fail_after(5):
            while len(woken) < 3:
                await trio.testing.wait_all_tasks_blocked()


class FakeListener:
    """Offers the given connections and errors, and EBADF at the end."""

    host, port = "h", 1

    def __init__(self, *offered: object) -> None:
        self.offered = list(offered)

    async def accept(self) -> Stream:
        await trio.lowlevel.checkpoint()
        offered = self.offered.pop(0) if self.offered else OSError(errno.EBADF, "closed")
        if isinstance(offered, Exception):
            raise offered
        return offered  # type: ignore[return-value]

    def close(self) -> None:
        pass


class FakeStream:
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.trio
async def test_a_listener_continues_after_errors_of_accept(autojump_clock: object) -> None:
    background, taken = Background(), []
    one, two, bad = FakeStream(), FakeStream(), FakeStream()
    errors = [OSError(number, "") for number in (errno.EPROTO, errno.ENETDOWN, errno.EPERM)]

    def take(stream: Stream) -> None:
        if stream is bad:  # type: ignore[comparison-overlap]
            raise RuntimeError("a connection that cannot be served")
        taken.append(stream)

    await accept_connections("A", FakeListener(one, *errors, bad, two), background, take)
    assert taken == [one, two] and bad.closed
    assert background.failures.get("listener") == 4 and background.failing() == []
