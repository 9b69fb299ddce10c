"""ConsumerGroupPosition on the pure core (KIP-253): how long a member waits."""

from __future__ import annotations

import pytest

from tests.unit.coordinator.driver import CHILD, GROUP, PARENT, Driver, assignment, two_members


class Waits:
    """A driver, the members of ``two_members`` and the seconds of each measured wait."""

    def __init__(self) -> None:
        self.driver, self.owner, self.waiter = two_members()
        self.measured: list[float] = []
        self.driver.shard.on_waited = self.measured.append

    @property
    def shown(self) -> dict[tuple[str, int], int]:
        """The offset awaited in each partition that the second member waits for."""
        poller = self.driver.shard.groups[GROUP].positions.pollers[self.waiter]
        return {tp: wait.until for tp, wait in poller.awaited.items()}


def rebalance(driver: Driver, leader: str, member: str, generation: int = 2) -> None:
    """Begin a generation of the group of ``two_members``."""
    for one in (leader, member):
        driver.join(one)
    driver.sync(member, generation)
    driver.sync(leader, generation, {leader: assignment(PARENT), member: assignment(CHILD)})


def test_a_wait_lasts_until_the_group_reaches_the_awaited_offset() -> None:
    waits = Waits()
    driver = waits.driver
    driver.poll(waits.waiter, 1, PARENT, awaited={PARENT: 100})
    driver.advance(2_000)
    driver.poll(waits.owner, 1, reports={PARENT: 99})
    assert (waits.shown, waits.measured) == ({PARENT: 100}, [])
    driver.advance(1_000)
    driver.poll(waits.waiter, 1, PARENT, awaited={PARENT: 100})
    driver.poll(waits.owner, 1, reports={PARENT: 100})
    assert (waits.shown, waits.measured) == ({}, [3.0])


def test_a_request_for_a_position_that_was_reached_is_no_wait() -> None:
    """A member keeps requesting a position, because the position may be lowered. Such a request is no wait."""
    waits = Waits()
    waits.driver.poll(waits.waiter, 1, PARENT)
    waits.driver.poll(waits.owner, 1, reports={PARENT: 100})
    waits.driver.poll(waits.waiter, 1, PARENT, awaited={PARENT: 100})
    assert (waits.shown, waits.measured) == ({}, [])


def test_a_wait_ends_when_the_member_no_longer_names_it() -> None:
    waits = Waits()
    waits.driver.poll(waits.waiter, 1, PARENT, awaited={PARENT: 100})
    waits.driver.advance(5_000)
    waits.driver.poll(waits.waiter, 1, PARENT)
    assert (waits.shown, waits.measured) == ({}, [5.0])


@pytest.mark.parametrize("wants", [(), (PARENT,)])
def test_a_poll_that_arrives_behind_a_later_one_ends_no_wait(wants: tuple[tuple[str, int], ...]) -> None:
    """A member polls over two connections, so the poll from before the wait may arrive last."""
    waits = Waits()
    driver = waits.driver
    driver.poll(waits.waiter, 1, PARENT, awaited={PARENT: 100}, number=2, max_wait_ms=0)
    driver.advance(2_000)
    parked = driver.poll(waits.waiter, 1, *wants, number=1)
    assert (waits.shown, waits.measured) == ({PARENT: 100}, [])
    driver.poll(waits.owner, 1, reports={PARENT: 100})
    assert driver.answered(parked) == {PARENT: (100, False)}
    assert (waits.shown, waits.measured) == ({}, [2.0])
    driver.poll(waits.waiter, 1, number=3)
    assert driver.shard.groups[GROUP].positions.pollers[waits.waiter].wants == {}


def test_a_wait_begins_again_after_a_rewind() -> None:
    waits = Waits()
    driver = waits.driver
    driver.poll(waits.waiter, 1, PARENT, awaited={PARENT: 100})
    driver.poll(waits.owner, 1, reports={PARENT: 100})
    driver.poll(waits.owner, 1, reports={PARENT: 40})
    driver.poll(waits.waiter, 1, PARENT, awaited={PARENT: 100})
    assert (waits.shown, waits.measured) == ({PARENT: 100}, [0.0])


@pytest.mark.parametrize("polls_first", [True, False])
@pytest.mark.parametrize(("awaited", "measured"), [({PARENT: 100}, [3.0]), ({PARENT: 90}, [1.0]), ({}, [])])
def test_a_wait_continues_after_rebalances_only_if_the_member_names_it_again(
    polls_first: bool, awaited: dict[tuple[str, int], int], measured: list[float]
) -> None:
    """A member may poll before it knows for which positions it waits."""
    waits = Waits()
    driver = waits.driver
    driver.poll(waits.waiter, 1, PARENT, awaited={PARENT: 100})
    driver.advance(2_000)
    for generation in (2, 3):
        rebalance(driver, waits.owner, waits.waiter, generation)
        if polls_first:
            driver.poll(waits.waiter, generation, max_wait_ms=0)
    driver.poll(waits.waiter, 3, PARENT, awaited=awaited)
    assert (waits.shown, waits.measured) == (awaited, [])
    driver.advance(1_000)
    driver.poll(waits.owner, 3, reports={PARENT: 100})
    assert (waits.shown, waits.measured) == ({}, measured)


def test_a_wait_that_ended_in_a_rebalance_is_measured_once() -> None:
    waits = Waits()
    driver = waits.driver
    driver.poll(waits.waiter, 1, PARENT, awaited={PARENT: 100})
    driver.advance(2_000)
    rebalance(driver, waits.owner, waits.waiter)
    driver.poll(waits.owner, 2, reports={PARENT: 100})
    driver.poll(waits.waiter, 2, PARENT, max_wait_ms=0)
    assert (waits.shown, waits.measured) == ({}, [2.0])
    driver.advance(5_000)
    driver.poll(waits.owner, 2, reports={PARENT: 50})
    driver.poll(waits.waiter, 2, PARENT, awaited={PARENT: 100})
    driver.advance(1_000)
    driver.poll(waits.owner, 2, reports={PARENT: 100})
    driver.poll(waits.waiter, 2, PARENT, max_wait_ms=0)
    assert (waits.shown, waits.measured) == ({}, [2.0, 1.0])


def test_a_wait_that_ended_long_after_a_rebalance_is_measured_up_to_the_rebalance() -> None:
    """Another member may have had the waiting partition since the rebalance."""
    waits = Waits()
    driver = waits.driver
    driver.poll(waits.waiter, 1, PARENT, awaited={PARENT: 100})
    driver.advance(1_000)
    rebalance(driver, waits.owner, waits.waiter)
    for _ in range(2):
        driver.poll(waits.waiter, 2, max_wait_ms=0)
    driver.advance(5_000)
    driver.poll(waits.owner, 2, reports={PARENT: 100})
    driver.poll(waits.waiter, 2, PARENT, max_wait_ms=0)
    assert (waits.shown, waits.measured) == ({}, [1.0])


def test_an_earlier_wait_for_another_offset_does_not_come_back() -> None:
    waits = Waits()
    driver = waits.driver
    driver.poll(waits.waiter, 1, PARENT, awaited={PARENT: 100})
    rebalance(driver, waits.owner, waits.waiter)
    driver.poll(waits.waiter, 2, PARENT, awaited={PARENT: 200}, max_wait_ms=0)
    driver.advance(5_000)
    driver.poll(waits.waiter, 2, PARENT, awaited={PARENT: 100})
    driver.poll(waits.owner, 2, reports={PARENT: 100})
    assert waits.measured == [5.0], "one wait, which began after the rebalance"


def test_a_wait_for_a_partition_that_is_no_longer_wanted_after_a_rebalance_is_not_measured() -> None:
    """Another member reads the waiting partition now, and continues the wait."""
    waits = Waits()
    waits.driver.poll(waits.waiter, 1, PARENT, awaited={PARENT: 100})
    rebalance(waits.driver, waits.owner, waits.waiter)
    waits.driver.poll(waits.waiter, 2)
    assert (waits.shown, waits.measured) == ({}, [])
