"""ConsumerGroupPosition on the pure core (KIP-253): no owner, rebalances, a new coordinator, outside clients."""

from __future__ import annotations

import pytest

from anabranch.protocol.errors import ErrorCode
from tests.unit.coordinator.driver import CHILD, GROUP, OTHER, PARENT, Driver, assignment, two_members

SESSION_MS = 10_000


# ---------------------------------------------------------------- hole 21: no member owns the parent


def test_hole_21_without_an_owner_the_committed_offset_counts_once_every_member_polled() -> None:
    """Before a member's first poll, the member may still be giving up the partition."""
    driver = Driver()
    driver.commit({OTHER: 60})
    driver, owner, waiter = two_members(driver)
    waiting = driver.poll(waiter, 1, OTHER)
    assert driver.answered(waiting) is None
    driver.poll(owner, 1)
    assert driver.answered(waiting) == {OTHER: (60, False)}


def test_hole_21_a_commit_for_a_partition_without_an_owner_is_returned_at_once() -> None:
    driver, owner, waiter = two_members()
    driver.poll(owner, 1)
    assert driver.answered(driver.poll(waiter, 1, OTHER)) == {OTHER: (-1, False)}
    waiting = driver.poll(waiter, 1, OTHER)
    assert driver.answered(waiting) is None
    driver.commit({OTHER: 60}, owner, 1)
    assert driver.answered(waiting) == {OTHER: (60, False)}


def test_an_answer_marks_positions_that_only_a_live_member_knows() -> None:
    """A position is marked if its partition's owner polls, or if some member has not polled yet.

    The log start of a partition with a marked position does not count.
    """
    driver, owner, waiter = two_members()
    assert driver.awaited(driver.poll(waiter, 1, PARENT, OTHER, max_wait_ms=0)) == {PARENT, OTHER}
    waiting = driver.poll(waiter, 1, PARENT, OTHER)
    assert driver.answered(waiting) is None
    driver.poll(owner, 1)
    assert driver.awaited(waiting) == {PARENT}, (
        "no member owns the other partition: the waiting member is notified at once"
    )
    driver.poll(owner, 1, reports={PARENT: 7})
    assert driver.awaited(driver.poll(waiter, 1, PARENT, OTHER, max_wait_ms=0)) == {PARENT}
    assert driver.awaited(driver.poll("", -1, PARENT, OTHER)) == {PARENT}


def test_reports_are_awaited_during_a_rebalance_but_not_without_members() -> None:
    driver = Driver()
    driver.commit({PARENT: 60})
    assert driver.awaited(driver.poll("", -1, PARENT)) == set()
    driver.join(client="a")
    assert driver.awaited(driver.poll("", -1, PARENT)) == {PARENT}


def test_hole_21_the_commits_of_a_stock_member_count_after_one_session_timeout() -> None:
    driver, stock, waiter = two_members()
    driver.commit({PARENT: 60}, stock, 1)
    waiting = driver.poll(waiter, 1, PARENT)
    driver.advance(SESSION_MS // 2)
    driver.heartbeat(stock, 1)
    driver.heartbeat(waiter, 1)
    driver.advance(SESSION_MS // 2 - 1)
    assert driver.answered(waiting) is None
    driver.advance(1)
    assert driver.answered(waiting) == {PARENT: (60, False)}
    waiting = driver.poll(waiter, 1, PARENT)
    driver.commit({PARENT: 70}, stock, 1)
    assert driver.answered(waiting) == {PARENT: (70, False)}


def later(driver: Driver, *members: str, generation: int, polls_positions: bool = False) -> None:
    """Let more than a session pass in which all members send heartbeats."""
    for _ in range(3):
        for member in members:
            driver.heartbeat(member, generation, polls_positions=polls_positions)
        driver.advance(SESSION_MS // 2)


def test_a_member_that_polled_before_is_waited_for_as_long_as_it_is_a_member() -> None:
    """In the next generation the busy member has not polled: it may not have flushed the parent yet."""
    driver, busy, waiter = two_members()
    for member in (busy, waiter):
        driver.poll(member, 1)
    driver.commit({PARENT: 60}, busy, 1)
    for member in (busy, waiter):  # the leader's join begins the rebalance
        driver.join(member)
    for member in (busy, waiter):
        driver.sync(member, 2, {waiter: assignment(CHILD)})
    waiting = driver.poll(waiter, 2, PARENT)
    later(driver, busy, waiter, generation=2)
    assert driver.answered(waiting) is None
    assert driver.answered(driver.poll("", -1, PARENT)) == {PARENT: (-1, True)}
    driver.poll(busy, 2)
    assert driver.answered(waiting) == {PARENT: (60, False)}


@pytest.mark.parametrize("polls_positions", [False, True])
def test_a_heartbeat_shows_a_new_coordinator_whether_its_member_polls(polls_positions: bool) -> None:
    driver, busy, waiter = two_members()
    driver.commit({PARENT: 60}, busy, 1)
    successor = driver.restarted()
    waiting = successor.poll(waiter, 1, PARENT)
    later(successor, busy, waiter, generation=1, polls_positions=polls_positions)
    assert successor.answered(waiting) == (None if polls_positions else {PARENT: (60, False)})
    successor.poll(busy, 1, reports={PARENT: 70})
    assert successor.answered(successor.poll("", -1, PARENT)) == {PARENT: (70, True)}


def test_after_its_first_late_poll_a_member_is_asked_and_its_commits_do_not_count() -> None:
    driver, late, waiter = two_members()
    driver.commit({PARENT: 60}, late, 1)
    waiting = driver.poll(waiter, 1, PARENT)
    driver.advance(SESSION_MS // 2)
    driver.heartbeat(late, 1)
    driver.heartbeat(waiter, 1)
    driver.advance(SESSION_MS // 2)
    assert driver.answered(waiting) == {PARENT: (60, False)}
    waiting = driver.poll(waiter, 1, PARENT)
    assert driver.answered(driver.poll(late, 1)) == {PARENT: (-1, True)}
    assert driver.answered(waiting) == {PARENT: (-1, False)}


def test_hole_21_in_a_group_without_members_the_committed_offset_counts() -> None:
    driver = Driver()
    driver.commit({PARENT: 60})
    assert driver.answered(driver.poll("", -1, PARENT)) == {PARENT: (60, False)}


# ---------------------------------------------------------------- generations


def test_a_rebalance_answers_polls_at_once_and_ends_the_generations_positions() -> None:
    driver, owner, waiter = two_members()
    driver.poll(waiter, 1, PARENT)
    driver.poll(owner, 1, reports={PARENT: 100}, max_wait_ms=0)
    owners, waiters = driver.poll(owner, 1), driver.poll(waiter, 1, PARENT)
    newcomer = driver.join(client="c")
    assert driver.error(owners) == driver.error(waiters) == ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.error(driver.poll(owner, 1, reports={PARENT: 101})) == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = [driver.join(owner), driver.join(waiter)]
    assert driver.replies[rejoined[0]].generation_id == 2
    third = driver.replies[newcomer].member_id
    assert driver.error(driver.poll(owner, 2)) == ErrorCode.REBALANCE_IN_PROGRESS, "no member owns a partition yet"
    for member in (third, waiter):
        driver.sync(member, 2)
    driver.sync(owner, 2, {owner: assignment(PARENT), waiter: assignment(CHILD)})
    driver.poll(third, 2)
    waiters = driver.poll(waiter, 2, PARENT)
    assert driver.answered(driver.poll(owner, 2)) == {PARENT: (-1, True)}
    assert driver.answered(waiters) is None
    driver.poll(owner, 2, reports={PARENT: 90})
    assert driver.answered(waiters) == {PARENT: (90, False)}


def test_reports_of_forged_generations_and_members_are_ignored() -> None:
    """``test_fencing`` has the errors."""
    driver, owner, waiter = two_members()
    for member, generation in ((owner, 0), (owner, 2), (owner, -1), ("nobody", 1), ("", 1)):
        assert driver.error(driver.poll(member, generation, reports={PARENT: 100})) is not ErrorCode.NONE
    assert driver.error(driver.poll(owner, 1, group="none")) == ErrorCode.UNKNOWN_MEMBER_ID
    driver.poll(owner, 1)
    assert driver.answered(driver.poll(waiter, 1, PARENT, max_wait_ms=0)) == {PARENT: (-1, False)}


def test_a_question_without_a_member_is_answered_with_whether_the_owner_reports() -> None:
    driver, owner, _ = two_members()

    def reporting() -> list[int]:
        response = driver.replies[driver.poll("", -1, PARENT, CHILD, OTHER, max_wait_ms=0)]
        return [p.owner_reports for topic in response.topics for p in topic.partitions]

    assert reporting() == [0, 0, -1]
    driver.poll(owner, 1)
    assert reporting() == [1, 0, -1]


def test_the_poll_of_a_member_that_leaves_is_answered() -> None:
    driver, owner, waiter = two_members()
    owners, waiters = driver.poll(owner, 1), driver.poll(waiter, 1)
    driver.leave((owner, None))
    assert driver.error(owners) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.error(waiters) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_poll_counts_as_a_heartbeat_when_it_comes_and_not_while_it_waits() -> None:
    driver = Driver()
    (member,) = driver.stable_group("a", owns={"a": [PARENT]})
    driver.advance(SESSION_MS - 1)
    parked = driver.poll(member, 1)
    driver.advance(SESSION_MS - 1)
    assert driver.answered(parked) is None
    driver.advance(1)
    assert driver.error(parked) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.state() == "Empty"


def test_a_static_members_successor_is_asked_again_and_its_predecessor_fenced() -> None:
    driver = Driver()
    tokens = [driver.join(client=c, instance=c, v=5) for c in ("a", "b")]
    driver.advance(2 * driver.config.initial_rebalance_delay_ms)
    owner, waiter = (driver.replies[token].member_id for token in tokens)
    driver.sync(waiter, 1, instance="b")
    driver.sync(owner, 1, {owner: assignment(PARENT), waiter: assignment(CHILD)}, instance="a")
    driver.commit({PARENT: 50}, owner, 1, instance="a")
    driver.poll(waiter, 1, PARENT, instance="b")
    driver.poll(owner, 1, reports={PARENT: 100}, max_wait_ms=0, instance="a")
    owners = driver.poll(owner, 1, instance="a")
    successor = driver.replies[driver.join(client="a", instance="a", v=5)].member_id
    assert driver.error(owners) == ErrorCode.FENCED_INSTANCE_ID
    assert driver.error(driver.poll(owner, 1, reports={PARENT: 101}, instance="a")) == ErrorCode.FENCED_INSTANCE_ID
    waiters = driver.poll(waiter, 1, PARENT, instance="b")
    assert driver.answered(waiters) == {PARENT: (-1, False)}
    waiters = driver.poll(waiter, 1, PARENT, instance="b")
    assert driver.answered(driver.poll(successor, 1, instance="a")) == {PARENT: (-1, True)}
    driver.poll(successor, 1, reports={PARENT: 50}, instance="a")
    assert driver.answered(waiters) == {PARENT: (50, False)}


# ---------------------------------------------------------------- hole 19: another coordinator


def test_hole_19_a_new_coordinator_knows_only_positions_that_are_reported_to_it() -> None:
    """A commit does not free the child, and the child does not wait for ever: the owner is asked again."""
    driver, owner, waiter = two_members()
    driver.poll(owner, 1, reports={PARENT: 100})
    driver.poll(waiter, 1, PARENT)
    driver.commit({PARENT: 100}, owner, 1)
    successor = driver.restarted()
    waiters = successor.poll(waiter, 1, PARENT)
    assert successor.answered(waiters) is None
    assert successor.answered(successor.poll(owner, 1)) == {PARENT: (-1, True)}
    assert successor.answered(waiters) is None
    successor.poll(owner, 1, reports={PARENT: 100})
    assert successor.answered(waiters) == {PARENT: (100, False)}


# ---------------------------------------------------------------- questions without membership


def test_a_poll_by_a_client_outside_of_the_group_changes_nothing() -> None:
    driver, owner, waiter = two_members()
    driver.commit({OTHER: 4}, owner, 1)
    assert driver.answered(driver.poll("", -1, reports={PARENT: 100})) == {PARENT: (-1, False)}
    owners = driver.poll(owner, 1, reports={PARENT: 10})
    driver.poll(waiter, 1, PARENT, OTHER)
    assert driver.answered(owners) == {PARENT: (10, True)}
    owners = driver.poll(owner, 1)
    assert driver.answered(driver.poll("", -1)) == {PARENT: (10, True), OTHER: (4, True)}
    nothing_wanted = {CHILD: -1, PARENT: -1}
    assert driver.answered(driver.poll("", -1, reports=nothing_wanted)) == {CHILD: (-1, False), PARENT: (10, True)}
    assert driver.answered(owners) is None
    assert driver.answered(driver.poll("", -1, PARENT, group="unheard of")) == {PARENT: (-1, False)}
    assert driver.shard.groups.keys() == {GROUP}


def test_a_polling_owner_is_asked_for_positions_that_an_outside_client_wants() -> None:
    """No member waits for the partition until a member knows that it is marked. The owner's commits prove nothing."""
    driver, owner, other = two_members()
    driver.commit({PARENT: 100}, owner, 1)
    driver.poll(other, 1)
    owners = driver.poll(owner, 1)
    assert driver.answered(driver.poll("", -1, PARENT)) == {PARENT: (-1, True)}
    assert driver.answered(owners) == {PARENT: (-1, True)}
    owners = driver.poll(owner, 1, reports={PARENT: 100})
    assert driver.answered(driver.poll("", -1, PARENT)) == {PARENT: (100, True)}
    assert driver.answered(owners) is None
    driver.join(client="c")
    assert driver.shard.groups[GROUP].positions.waiting == {}


def test_the_commits_of_an_owner_that_never_polls_count_after_its_session() -> None:
    driver, owner, other = two_members()
    driver.commit({PARENT: 100}, owner, 1)
    assert driver.answered(driver.poll("", -1, reports={PARENT: -1})) == {PARENT: (-1, False)}
    driver.poll(other, 1)
    assert driver.answered(driver.poll("", -1, PARENT)) == {PARENT: (-1, True)}
    driver.advance(SESSION_MS)  # the owner keeps no order, so only its commits count
    assert driver.answered(driver.poll("", -1, PARENT)) == {PARENT: (100, False)}


def test_a_new_coordinator_counts_no_commit_before_the_owner_reports() -> None:
    """A commit proves nothing at a coordinator that has just taken over, nor in a generation that has just begun."""
    driver, owner, other = two_members()
    driver.poll(owner, 1)
    driver.poll(other, 1)
    driver.commit({PARENT: 100}, owner, 1)
    successor = driver.restarted()
    assert successor.answered(successor.poll("", -1, PARENT)) == {PARENT: (-1, True)}
    successor.poll(other, 1)
    assert successor.answered(successor.poll("", -1, PARENT)) == {PARENT: (-1, True)}
    owners = successor.poll(owner, 1)
    assert successor.answered(successor.poll("", -1, PARENT)) == {PARENT: (-1, True)}
    assert successor.answered(owners) == {PARENT: (-1, True)}
    successor.poll(owner, 1, reports={PARENT: 100})
    assert successor.answered(successor.poll("", -1, PARENT)) == {PARENT: (100, True)}


def test_the_commits_of_a_group_without_polls_count_after_one_session_timeout() -> None:
    driver, owner, other = two_members()
    driver.commit({PARENT: 100}, owner, 1)
    assert driver.answered(driver.poll("", -1, PARENT)) == {PARENT: (-1, True)}
    for _ in range(2):
        driver.advance(SESSION_MS // 2)
        for member in (owner, other):
            driver.heartbeat(member, 1)
    assert driver.answered(driver.poll("", -1, PARENT)) == {PARENT: (100, False)}


def test_during_a_rebalance_commits_do_not_count() -> None:
    driver, owner, _ = two_members()
    driver.commit({PARENT: 100}, owner, 1)
    driver.join(client="c")
    assert driver.answered(driver.poll("", -1, PARENT)) == {PARENT: (-1, True)}
