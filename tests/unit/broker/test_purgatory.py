"""Waiting operations: each is delivered at most once per turn, and expires at its deadline."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from anabranch.broker.replication.purgatory import DelayedOperation, Purgatory
from anabranch.runtime.real_trio import RealClock

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
    purgatory = Purgatory(RealClock())
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


async def test_close_completes_waiting_operations(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as purgatory:
        probe = Probe(trio.current_time() + 100)
        purgatory.park(probe)
        purgatory.close()
        assert probe.completed
        assert purgatory.size == 0
