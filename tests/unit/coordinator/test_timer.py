"""One timer for many deadlines."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
import trio
import trio.testing

from anabranch.broker.coordinator.timer import DeadlineTimer
from tests.unit.coordinator.fakes import pass_time

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]


class Fired:
    """Records each fired key, with the deadline that was set for it."""

    def __init__(self) -> None:
        self.keys: list[tuple[Hashable, int]] = []
        self.timer = DeadlineTimer(lambda: int(trio.current_time() * 1000), self.on_due)
        self.again: dict[Hashable, int] = {}

    def on_due(self, key: Hashable, deadline_ms: int) -> None:
        self.keys.append((key, deadline_ms))
        if key in self.again:
            self.timer.set(key, self.again.pop(key))


async def test_deadlines_fire_in_order(nursery: trio.Nursery) -> None:
    fired = Fired()
    nursery.start_soon(fired.timer.run)
    for key, at_ms in (("c", 3_000), ("a", 1_000), ("b", 2_000)):
        fired.timer.set(key, at_ms)
    await pass_time(2.5)
    assert fired.keys == [("a", 1_000), ("b", 2_000)]
    await pass_time(1)
    assert fired.keys[2:] == [("c", 3_000)]


async def test_a_deadline_only_moves_earlier(nursery: trio.Nursery) -> None:
    fired = Fired()
    nursery.start_soon(fired.timer.run)
    fired.timer.set("a", 2_000)
    fired.timer.set("a", 3_000)
    await pass_time(0.5)
    fired.timer.set("a", 1_000)
    await pass_time(5)
    assert fired.keys == [("a", 1_000)]


async def test_a_cancelled_key_does_not_fire(nursery: trio.Nursery) -> None:
    fired = Fired()
    nursery.start_soon(fired.timer.run)
    fired.timer.set("a", 1_000)
    fired.timer.set("b", 1_000)
    fired.timer.cancel("a")
    await pass_time(2)
    assert fired.keys == [("b", 1_000)]
    assert len(fired.timer) == 0


async def test_a_deadline_in_the_past_that_is_set_while_firing_does_not_starve_others(nursery: trio.Nursery) -> None:
    fired = Fired()
    fired.again["a"] = 0
    nursery.start_soon(fired.timer.run)
    fired.timer.set("a", 1_000)
    fired.timer.set("b", 1_000)
    await pass_time(1.5)
    assert fired.keys == [("a", 1_000), ("b", 1_000), ("a", 0)]


async def test_stale_entries_do_not_accumulate() -> None:
    fired = Fired()
    for at_ms in range(100_000, 0, -10):
        fired.timer.set("a", at_ms)
    assert len(fired.timer._heap) < 100
