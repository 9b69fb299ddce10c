"""ConsumerGroupPosition on the pure core (KIP-253): the hand-over, and which positions of members count."""

from __future__ import annotations

import pytest

from anabranch.protocol.errors import ErrorCode
from tests.unit.coordinator.driver import CHILD, GROUP, OTHER, PARENT, Driver, assignment, two_members

SESSION_MS = 10_000


# ---------------------------------------------------------------- the hand-over


def test_a_hand_over_takes_one_response_to_the_owner_and_one_to_the_waiter() -> None:
    driver, owner, waiter = two_members()
    owners = driver.poll(owner, 1)
    waiters = driver.poll(waiter, 1, PARENT)
    assert driver.answered(owners) == {PARENT: (-1, True)}
    assert driver.answered(waiters) is None
    owners = driver.poll(owner, 1, reports={PARENT: 100})
    assert driver.answered(waiters) == {PARENT: (100, False)}
    assert driver.answered(owners) is None


def test_the_owner_is_asked_although_the_waiter_polled_first() -> None:
    driver, owner, waiter = two_members()
    driver.poll(waiter, 1, PARENT)
    assert driver.answered(driver.poll(owner, 1)) == {PARENT: (-1, True)}


def test_the_owner_is_asked_again_for_another_incarnation() -> None:
    """The owner's report to the previous coordinator is lost, and the owner repeats no report without a request."""
    driver, owner, waiter = two_members()
    driver.poll(waiter, 1, PARENT, incarnation=100)
    assert driver.answered(driver.poll(owner, 1)) == {PARENT: (-1, True)}
    owners = driver.poll(owner, 1)
    assert driver.answered(owners) is None
    driver.poll(waiter, 1, PARENT, incarnation=200)
    assert driver.answered(owners) == {PARENT: (-1, True)}


def test_the_owner_is_asked_again_when_a_second_member_wants_a_newer_incarnation() -> None:
    driver = Driver()
    owner, behind, waiter = driver.stable_group("a", "b", "c", owns={"a": [PARENT], "b": [CHILD], "c": [OTHER]})
    driver.poll(behind, 1, PARENT, incarnation=100)
    assert driver.answered(driver.poll(owner, 1)) == {PARENT: (-1, True)}
    owners = driver.poll(owner, 1)
    driver.poll(waiter, 1, PARENT, incarnation=200)
    assert driver.answered(owners) == {PARENT: (-1, True)}


def test_a_member_may_wait_for_its_own_position() -> None:
    driver = Driver()
    (member,) = driver.stable_group("a", owns={"a": [PARENT, CHILD]})
    assert driver.answered(driver.poll(member, 1, PARENT)) == {PARENT: (-1, True)}
    assert driver.answered(driver.poll(member, 1, PARENT, reports={PARENT: 7})) == {PARENT: (7, True)}


def test_a_waiting_member_gets_every_new_position() -> None:
    driver, owner, waiter = two_members()
    for position in (10, 20, 20, 30):
        driver.poll(owner, 1, reports={PARENT: position})
        waiters = driver.poll(waiter, 1, PARENT)
        if driver.answered(waiters) is None:
            driver.poll(owner, 1, reports={PARENT: position + 1})
        position_answered, _ = (driver.answered(waiters) or {})[PARENT]
        assert position_answered >= position


def test_a_poll_without_a_change_waits_for_max_wait_ms_and_returns_every_position() -> None:
    driver, owner, waiter = two_members()
    driver.poll(owner, 1, reports={PARENT: 10})
    assert driver.answered(driver.poll(waiter, 1, PARENT)) == {PARENT: (10, False)}
    waiting = driver.poll(waiter, 1, PARENT, max_wait_ms=500)
    driver.advance(499)
    assert driver.answered(waiting) is None
    driver.advance(1)
    assert driver.answered(waiting) == {PARENT: (10, False)}


def test_a_poll_without_a_positive_max_wait_ms_is_answered_at_once() -> None:
    driver, owner, waiter = two_members()
    driver.poll(owner, 1)
    assert driver.answered(driver.poll(waiter, 1, PARENT, max_wait_ms=0)) == {PARENT: (-1, False)}
    assert driver.answered(driver.poll(waiter, 1, PARENT, max_wait_ms=-5)) == {PARENT: (-1, False)}


def test_a_poll_repeated_on_a_new_connection_answers_both() -> None:
    """The new connection gets the answers that the broken connection lost."""
    driver, owner, waiter = two_members()
    driver.poll(owner, 1, reports={PARENT: 10})
    driver.poll(waiter, 1, PARENT)  # this answer is lost
    parked = driver.poll(waiter, 1, PARENT)
    again = driver.poll(waiter, 1, PARENT)
    assert driver.answered(parked) == driver.answered(again) == {PARENT: (10, False)}


def test_an_unwanted_position_wakes_no_poll_and_is_not_requested_from_the_owner() -> None:
    driver, owner, waiter = two_members()
    driver.poll(owner, 1)
    driver.poll(waiter, 1, PARENT, max_wait_ms=0)
    parked = driver.poll(waiter, 1)
    driver.poll(owner, 1, reports={PARENT: 10}, max_wait_ms=0)
    assert driver.answered(parked) is None
    assert driver.answered(driver.poll(owner, 1, max_wait_ms=0)) == {}


def test_a_position_that_is_wanted_again_is_asked_for_again() -> None:
    driver, owner, waiter = two_members()
    driver.poll(owner, 1)
    driver.poll(waiter, 1, PARENT, max_wait_ms=0)
    owners = driver.poll(owner, 1)
    driver.poll(waiter, 1)
    assert driver.answered(owners) is None
    driver.poll(waiter, 1, PARENT)
    assert driver.answered(owners) == {PARENT: (-1, True)}


def test_a_rewind_is_returned_as_a_lower_position() -> None:
    driver, owner, waiter = two_members()
    driver.poll(owner, 1, reports={PARENT: 100})
    assert driver.answered(driver.poll(waiter, 1, PARENT)) == {PARENT: (100, False)}
    waiting = driver.poll(waiter, 1, PARENT)
    driver.poll(owner, 1, reports={PARENT: 40})
    assert driver.answered(waiting) == {PARENT: (40, False)}


def commit_and_report(driver: Driver, owner: str, *positions: int) -> None:
    for position in positions:
        driver.commit({PARENT: position}, owner, 1, processed=True)


def test_a_rewind_between_two_polls_is_returned_although_the_position_is_the_same() -> None:
    driver, owner, waiter = two_members()
    driver.poll(owner, 1)
    driver.poll(waiter, 1, PARENT, max_wait_ms=0)
    commit_and_report(driver, owner, 100)
    before = driver.poll(waiter, 1, PARENT)
    assert (driver.answered(before), driver.rewinds(before)) == ({PARENT: (100, False)}, {PARENT: 0})
    commit_and_report(driver, owner, 40, 70, 100)
    after = driver.poll(waiter, 1, PARENT)
    assert (driver.answered(after), driver.rewinds(after)) == ({PARENT: (100, False)}, {PARENT: 1})
    assert driver.answered(driver.poll(waiter, 1, PARENT)) is None


def test_the_next_coordinator_knows_the_count_of_rewinds() -> None:
    driver, owner, _ = two_members()
    commit_and_report(driver, owner, 100, 40, 100, 99, 100)
    for successor in (driver, driver.restarted()):
        asked = successor.poll("", -1, PARENT)
        assert successor.rewinds(asked) == {PARENT: 2}


def test_a_commit_below_a_pending_one_is_a_rewind() -> None:
    driver = Driver(auto_commit=False)
    for offset in (100, 40, 100):
        driver.commit({PARENT: offset})
    driver.settle_all()
    assert driver.rewinds(driver.poll("", -1, PARENT)) == {PARENT: 1}


# ---------------------------------------------------------------- commits that report


def is_reported(driver: Driver, token: str) -> bool:
    ((partition,),) = (topic.partitions for topic in driver.replies[token].topics)
    assert partition.error_code == ErrorCode.NONE
    return bool(partition.is_reported)


def test_a_commit_of_processed_records_is_a_report_once_it_is_committed() -> None:
    """One request and one response are enough: the waiting member is answered before the committing member."""
    driver, owner, waiter = two_members()
    driver.poll(owner, 1)
    driver.poll(waiter, 1, PARENT, max_wait_ms=0)
    waiters = driver.poll(waiter, 1, PARENT)
    driver.auto_commit = False
    committing = driver.commit({PARENT: 100}, owner, 1, processed=True)
    assert driver.answered(waiters) is None
    driver.settle()
    assert driver.answered(waiters) == {PARENT: (100, False)}
    assert is_reported(driver, committing)
    assert driver.order[-2:] == [waiters, committing]


def test_a_commit_of_processed_records_may_lower_the_position() -> None:
    driver, owner, waiter = two_members()
    for position in (100, 40):
        driver.poll(owner, 1)
        driver.commit({PARENT: position}, owner, 1, processed=True)
        assert driver.answered(driver.poll(waiter, 1, PARENT, max_wait_ms=0)) == {PARENT: (position, False)}


def test_a_commit_reports_only_partitions_that_the_member_owns() -> None:
    driver, owner, waiter = two_members()
    driver.poll(owner, 1, reports={PARENT: 10})
    driver.poll(waiter, 1, PARENT, max_wait_ms=0)
    committing = driver.commit({PARENT: 100}, waiter, 1, processed=True)
    assert not is_reported(driver, committing)
    assert driver.answered(driver.poll(waiter, 1, PARENT, max_wait_ms=0)) == {PARENT: (10, False)}


def test_a_commit_before_the_first_poll_is_no_report() -> None:
    """The waiting member would not be notified of such a report.

    A coordinator that took over still waits for the first poll of a third member.
    """
    driver = Driver()
    owner, waiter, _ = driver.stable_group("a", "b", "c", owns={"a": [PARENT], "b": [CHILD], "c": [OTHER]})
    waiters = driver.poll(waiter, 1, PARENT)
    assert not is_reported(driver, driver.commit({PARENT: 100}, owner, 1, processed=True))
    driver.poll(owner, 1, reports={PARENT: 100})
    assert driver.answered(waiters) == {PARENT: (100, False)}


@pytest.mark.parametrize("fate", ["lost", "overdue", "the generation is over"])
def test_a_commit_that_is_not_acknowledged_in_its_generation_reports_nothing(fate: str) -> None:
    """A member that gets an error may have rewound, and the next owner may be at any position."""
    driver, owner, waiter = two_members()
    driver.poll(owner, 1, reports={PARENT: 10})
    driver.poll(waiter, 1, PARENT, max_wait_ms=0)
    driver.auto_commit = False
    committing = driver.commit({PARENT: 100}, owner, 1, processed=True)
    if fate == "the generation is over":
        driver.join(owner)
    elif fate == "overdue":
        driver.overdue()
    driver.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER if fate == "lost" else ErrorCode.NONE)
    if fate == "the generation is over":
        assert not is_reported(driver, committing)
        assert not driver.shard.groups[GROUP].positions.reports
    else:
        assert driver.answered(driver.poll(waiter, 1, PARENT, max_wait_ms=0)) == {PARENT: (10, False)}


def test_a_commit_reports_a_position_of_its_incarnation() -> None:
    driver = Driver(incarnations={PARENT: 200})
    driver, owner, waiter = two_members(driver)
    driver.poll(owner, 1, reports={PARENT: 10}, incarnation=100)
    driver.commit({PARENT: 30}, owner, 1, processed=True, incarnation=200)
    assert driver.answered(driver.poll(waiter, 1, PARENT, incarnation=200, max_wait_ms=0)) == {PARENT: (30, False)}
    assert driver.answered(driver.poll(waiter, 1, PARENT, incarnation=100, max_wait_ms=0)) == {PARENT: (-1, False)}


# ---------------------------------------------------------------- which positions count


def test_hole_18_a_commit_of_the_owner_releases_no_member_before_its_report() -> None:
    """A periodic commit may precede the flush callback: another member would load state that is not saved yet."""
    driver, owner, waiter = two_members()
    driver.poll(owner, 1)
    waiting = driver.poll(waiter, 1, PARENT)
    driver.commit({PARENT: 100}, owner, 1)
    assert driver.answered(waiting) is None
    driver.poll(owner, 1, reports={PARENT: 100})
    assert driver.answered(waiting) == {PARENT: (100, False)}


def test_hole_18_an_earlier_commit_releases_no_member_while_the_owner_has_a_session() -> None:
    driver = Driver()
    driver.commit({PARENT: 100})
    driver, owner, waiter = two_members(driver)
    waiting = driver.poll(waiter, 1, PARENT)
    driver.poll(owner, 1)
    driver.advance(SESSION_MS - 1)
    assert driver.answered(waiting) is None


def test_hole_18_a_report_without_a_commit_is_forgotten_when_its_owner_leaves() -> None:
    """The next owner starts at a lower offset, and the child waits until that owner reports again."""
    driver, owner, waiter = two_members()
    driver.commit({PARENT: 60}, owner, 1)
    driver.poll(owner, 1, reports={PARENT: 100}, max_wait_ms=0)
    assert driver.answered(driver.poll(waiter, 1, PARENT)) == {PARENT: (100, False)}
    driver.leave((owner, None))
    rejoined = driver.replies[driver.join(waiter)]
    driver.sync(waiter, rejoined.generation_id, {waiter: assignment(PARENT, CHILD)})
    again = driver.poll(waiter, rejoined.generation_id, PARENT)
    assert driver.answered(again) == {PARENT: (-1, True)}
    again = driver.poll(waiter, rejoined.generation_id, PARENT, reports={PARENT: 60})
    assert driver.answered(again) == {PARENT: (60, True)}


def test_positions_of_partitions_that_a_member_does_not_own_are_ignored() -> None:
    driver, owner, waiter = two_members()
    driver.poll(owner, 1)
    at_once = driver.poll(waiter, 1, PARENT, OTHER, reports={PARENT: 100, OTHER: 100})
    assert driver.answered(at_once) == {PARENT: (-1, False), OTHER: (-1, False)}
    waiting = driver.poll(waiter, 1, PARENT, OTHER)
    assert driver.answered(waiting) is None
    driver.poll(owner, 1, reports={PARENT: 3})
    assert driver.answered(waiting) == {PARENT: (3, False), OTHER: (-1, False)}


def test_negative_positions_and_partitions_are_ignored() -> None:
    driver, owner, waiter = two_members()
    driver.poll(owner, 1, reports={PARENT: -7, ("t", -1): 3})
    assert driver.answered(driver.poll(waiter, 1, PARENT, ("t", -1), max_wait_ms=0)) == {PARENT: (-1, False)}


@pytest.mark.parametrize("blob", [b"", b"\0", b"\0\1\0\0\0\7", b"mine"])
def test_a_member_whose_assignment_cannot_be_read_owns_nothing(blob: bytes) -> None:
    driver = Driver()
    joining = driver.join(client="a")
    driver.advance(driver.config.initial_rebalance_delay_ms)
    member = driver.replies[joining].member_id
    driver.sync(member, 1, {member: blob})
    assert driver.answered(driver.poll(member, 1, PARENT, reports={PARENT: 9}, max_wait_ms=0)) == {PARENT: (-1, False)}
