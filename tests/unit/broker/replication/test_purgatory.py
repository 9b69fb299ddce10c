"""Waiting operations: each is delivered at most once per turn, and expires at its deadline."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from anabranch.broker.replication.purgatory import ITEMS_AT_ONCE, DelayedOperation, Purgatory
from anabranch.runtime.real_trio import TrioClock

pytestmark = pytest.mark.trio


class Probe(DelayedOperation):
    """Completes at the ``needed``-th check."""

    def __init__(self, deadline: float, needed: int = 1) -> None:
        super().__init__(deadline)
        self.looks = 0
        self.expired_at: float | None = None
        self._needed = needed

    def try_complete(self) -> None:
        self.looks += 1
        self.completed = self.looks >= self._needed

    def expire(self) -> None:
        self.completed = True
        self.expired_at = trio.current_time()


@asynccontextmanager
async def running() -> AsyncIterator[Purgatory]:
    purgatory = Purgatory(TrioClock())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(purgatory.run)
        yield purgatory
        nursery.cancel_scope.cancel()


async def test_many_changes_in_one_turn_of_the_event_loop_cause_one_check(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as purgatory:
        probe = Probe(trio.current_time() + 10, needed=2)
        purgatory.park(probe)
        for _ in range(100):
            purgatory.changed(probe)
        await trio.testing.wait_all_tasks_blocked()
        assert probe.looks == 1
        purgatory.changed(probe)
        await trio.testing.wait_all_tasks_blocked()
        assert probe.completed
        await trio.sleep(20)  # virtual time: past the deadline
        assert probe.expired_at is None


async def test_an_operation_parked_later_with_an_earlier_deadline_expires_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as purgatory:
        start = trio.current_time()
        late, early = Probe(start + 5), Probe(start + 1)
        purgatory.park(late)
        await trio.testing.wait_all_tasks_blocked()
        purgatory.park(early)
        await trio.sleep(10)  # virtual time: past both deadlines
    assert early.expired_at == pytest.approx(start + 1)
    assert late.expired_at == pytest.approx(start + 5)


class Large(Probe):
    """Takes as long as some partitions."""

    partitions = 1

    @property
    def items(self) -> int:
        return self.partitions


@pytest.mark.parametrize("items", [1, ITEMS_AT_ONCE // 4])
@pytest.mark.parametrize("cause", ["change", "deadline", "close"])
async def test_other_tasks_run_while_many_operations_complete(
    cause: str, items: int, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Large, "partitions", items)
    at_once: list[int] = []
    async with running() as purgatory:
        probes = [Large(trio.current_time() + 1) for _ in range(5 * ITEMS_AT_ONCE)]
        for probe in probes:
            purgatory.park(probe)
        await trio.testing.wait_all_tasks_blocked()
        if cause == "change":
            for probe in probes:
                purgatory.changed(probe)
        elif cause == "deadline":
            autojump_clock.jump(2)
        left = len(probes)
        async with trio.open_nursery() as nursery:
            if cause == "close":
                nursery.start_soon(purgatory.close)
            while left:
                await trio.lowlevel.checkpoint()
                before, left = left, sum(not probe.completed for probe in probes)
                at_once.append(before - left)
    assert max(at_once) <= 2 * ITEMS_AT_ONCE // items, "two tasks of a pass run in any order"


async def test_close_completes_waiting_operations(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as purgatory:
        probe = Probe(trio.current_time() + 100)
        purgatory.park(probe)
        await purgatory.close()
        assert probe.completed
        assert purgatory.size == 0


class AtOnce(Probe):
    is_checked_at_once = True


async def test_the_end_of_a_block_checks_the_operations_that_do_not_gather_changes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as purgatory:
        gathers, at_once = Probe(trio.current_time() + 1), AtOnce(trio.current_time() + 1)
        many = [AtOnce(trio.current_time() + 1) for _ in range(2 * ITEMS_AT_ONCE)]
        with purgatory:
            for _ in range(2):
                purgatory.changed(gathers)
                purgatory.changed(at_once)
            assert not at_once.looks, "the code that makes the change is not done"
        assert (gathers.looks, at_once.looks) == (0, 1)
        with purgatory:
            for probe in many:
                purgatory.changed(probe)
        assert sum(probe.looks for probe in many) <= ITEMS_AT_ONCE, "other tasks run before the rest"
        await trio.testing.wait_all_tasks_blocked()
        assert [probe.looks for probe in (gathers, at_once, *many)] == [1] * (2 + len(many))


async def test_a_block_that_changes_nothing_wakes_no_task(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as purgatory:
        await trio.testing.wait_all_tasks_blocked()
        with purgatory:
            purgatory.changed(AtOnce(trio.current_time() + 1))
        assert not purgatory._wake.is_set()
