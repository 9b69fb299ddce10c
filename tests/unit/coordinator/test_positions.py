"""ConsumerGroupPosition on the pure core (KIP-253): whose positions count, when they are returned, how a wait ends."""

from __future__ import annotations

import pytest

from anabranch.protocol.errors import ErrorCode
from tests.unit.coordinator.driver import GROUP, Driver, assignment

PARENT, CHILD, OTHER = ("t", 1), ("t", 5), ("t", 2)
SESSION_MS = 10_000


def two_members(driver: Driver) -> tuple[str, str]:
    """Return the parent's owner and the child's owner."""
    owner, waiter = driver.stable_group("a", "b", owns={"a": [PARENT], "b": [CHILD]})
    return owner, waiter


class Waits:
    """A driver, the members of ``two_members`` and the seconds of each measured wait."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.owner, self.waiter = two_members(self.driver)
        self.measured: list[float] = []
        self.driver.shard.on_waited = self.measured.append

    @property
    def shown(self) -> dict[tuple[str, int], int]:
        """The offset awaited in each partition that the second member waits for."""
        poller = self.driver.shard.groups[GROUP].positions.pollers[self.waiter]
        return {tp: wait.until for tp, wait in poller.awaited.items()}


# ---------------------------------------------------------------- the hand-over


def test_a_hand_over_takes_one_response_to_the_owner_and_one_to_the_waiter() -> None:
    driver = Driver()
    owner, waiter = two_members(driver)
    owners = driver.poll(owner, 1)
    waiters = driver.poll(waiter, 1, PARENT)
    assert driver.answered(owners) == {PARENT: (-1, True)}
    assert driver.answered(waiters) is None
    owners = driver.poll(owner, 1, reports={PARENT: 100})
    assert driver.answered(waiters) == {PARENT: (100, False)}
    assert driver.answered(owners) is None


def test_the_owner_is_asked_although_the_waiter_polled_first() -> None:
    driver = Driver()
    owner, waiter = two_members(driver)
    driver.poll(waiter, 1, PARENT)
    assert driver.answered(driver.poll(owner, 1)) == {PARENT: (-1, True)}


def test_the_owner_is_asked_again_for_another_incarnation() -> None:
    """The owner's report to the previous coordinator is lost, and the owner repeats no report without a request."""
    driver = Driver()
    owner, waiter = two_members(driver)
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


def test_a_member_may_wait_for_itself() -> None:
    driver = Driver()
    (member,) = driver.stable_group("a", owns={"a": [PARENT, CHILD]})
    assert driver.answered(driver.poll(member, 1, PARENT)) == {PARENT: (-1, True)}
    assert driver.answered(driver.poll(member, 1, PARENT, reports={PARENT: 7})) == {PARENT: (7, True)}


def test_a_waiting_member_gets_every_new_position() -> None:
    driver = Driver()
    owner, waiter = two_members(driver)
    for position in (10, 20, 20, 30):
        driver.poll(owner, 1, reports={PARENT: position})
        waiters = driver.poll(waiter, 1, PARENT)
        if driver.answered(waiters) is None:
            driver.poll(owner, 1, reports={PARENT: position + 1})
        position_answered, _ = (driver.answered(waiters) or {})[PARENT]
        assert position_answered >= position


def test_a_poll_without_a_change_waits_for_max_wait_ms_and_returns_every_position() -> None:
    driver = Driver()
    owner, waiter = two_members(driver)
    driver.poll(owner, 1, reports={PARENT: 10})
    assert driver.answered(driver.poll(waiter, 1, PARENT)) == {PARENT: (10, False)}
    waiting = driver.poll(waiter, 1, PARENT, max_wait_ms=500)
    driver.advance(499)
    assert driver.answered(waiting) is None
    driver.advance(1)
    assert driver.answered(waiting) == {PARENT: (10, False)}


def test_a_poll_without_a_positive_max_wait_ms_is_answered_at_once() -> None:
    driver = Driver()
    owner, waiter = two_members(driver)
    driver.poll(owner, 1)
    assert driver.answered(driver.poll(waiter, 1, PARENT, max_wait_ms=0)) == {PARENT: (-1, False)}
    assert driver.answered(driver.poll(waiter, 1, PARENT, max_wait_ms=-5)) == {PARENT: (-1, False)}


def test_a_poll_repeated_on_a_new_connection_answers_both() -> None:
    """The new connection gets the answers that the broken one lost."""
    driver = Driver()
    owner, waiter = two_members(driver)
    driver.poll(owner, 1, reports={PARENT: 10})
    driver.poll(waiter, 1, PARENT)  # this answer is lost
    parked = driver.poll(waiter, 1, PARENT)
    again = driver.poll(waiter, 1, PARENT)
    assert driver.answered(parked) == driver.answered(again) == {PARENT: (10, False)}


def test_an_unwanted_position_wakes_no_poll_and_is_not_requested_from_the_owner() -> None:
    driver = Driver()
    owner, waiter = two_members(driver)
    driver.poll(owner, 1)
    driver.poll(waiter, 1, PARENT, max_wait_ms=0)
    parked = driver.poll(waiter, 1)
    driver.poll(owner, 1, reports={PARENT: 10}, max_wait_ms=0)
    assert driver.answered(parked) is None
    assert driver.answered(driver.poll(owner, 1, max_wait_ms=0)) == {}


def test_a_position_that_is_wanted_again_is_asked_for_again() -> None:
    driver = Driver()
    owner, waiter = two_members(driver)
    driver.poll(owner, 1)
    driver.poll(waiter, 1, PARENT, max_wait_ms=0)
    owners = driver.poll(owner, 1)
    driver.poll(waiter, 1)
    assert driver.answered(owners) is None
    driver.poll(waiter, 1, PARENT)
    assert driver.answered(owners) == {PARENT: (-1, True)}


def test_a_rewind_is_returned_as_a_lower_position() -> None:
    driver = Driver()
    owner, waiter = two_members(driver)
    driver.poll(owner, 1, reports={PARENT: 100})
    assert driver.answered(driver.poll(waiter, 1, PARENT)) == {PARENT: (100, False)}
    waiting = driver.poll(waiter, 1, PARENT)
    driver.poll(owner, 1, reports={PARENT: 40})
    assert driver.answered(waiting) == {PARENT: (40, False)}


def commit_and_report(driver: Driver, owner: str, *positions: int) -> None:
    for position in positions:
        driver.commit({PARENT: position}, owner, 1, processed=True)


def test_a_rewind_between_two_polls_is_returned_although_the_position_is_the_same() -> None:
    driver = Driver()
    owner, waiter = two_members(driver)
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
    driver = Driver()
    owner, _ = two_members(driver)
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
    """One request and one response are enough: the waiting member is answered before the committing one."""
    driver = Driver()
    owner, waiter = two_members(driver)
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
    driver = Driver()
    owner, waiter = two_members(driver)
    for position in (100, 40):
        driver.poll(owner, 1)
        driver.commit({PARENT: position}, owner, 1, processed=True)
        assert driver.answered(driver.poll(waiter, 1, PARENT, max_wait_ms=0)) == {PARENT: (position, False)}


def test_a_commit_reports_only_partitions_that_the_member_owns() -> None:
    driver = Driver()
    owner, waiter = two_members(driver)
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
    driver = Driver()
    owner, waiter = two_members(driver)
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
    owner, waiter = two_members(driver)
    driver.poll(owner, 1, reports={PARENT: 10}, incarnation=100)
    driver.commit({PARENT: 30}, owner, 1, processed=True, incarnation=200)
    assert driver.answered(driver.poll(waiter, 1, PARENT, incarnation=200, max_wait_ms=0)) == {PARENT: (30, False)}
    assert driver.answered(driver.poll(waiter, 1, PARENT, incarnation=100, max_wait_ms=0)) == {PARENT: (-1, False)}


# ---------------------------------------------------------------- which positions count


def test_hole_18_a_commit_of_the_owner_releases_no_member_before_its_report() -> None:
    """A periodic commit runs ahead of the flush callback: another member would load state that is not saved yet."""
    driver = Driver()
    owner, waiter = two_members(driver)
    driver.poll(owner, 1)
    waiting = driver.poll(waiter, 1, PARENT)
    driver.commit({PARENT: 100}, owner, 1)
    assert driver.answered(waiting) is None
    driver.poll(owner, 1, reports={PARENT: 100})
    assert driver.answered(waiting) == {PARENT: (100, False)}


def test_hole_18_an_earlier_commit_releases_no_member_while_the_owner_has_a_session() -> None:
    driver = Driver()
    driver.commit({PARENT: 100})
    owner, waiter = two_members(driver)
    waiting = driver.poll(waiter, 1, PARENT)
    driver.poll(owner, 1)
    driver.advance(SESSION_MS - 1)
    assert driver.answered(waiting) is None


def test_hole_18_a_report_without_a_commit_is_forgotten_when_its_owner_leaves() -> None:
    """The next owner starts at a lower offset, and the child waits until that owner reports again."""
    driver = Driver()
    owner, waiter = two_members(driver)
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
    driver = Driver()
    owner, waiter = two_members(driver)
    driver.poll(owner, 1)
    at_once = driver.poll(waiter, 1, PARENT, OTHER, reports={PARENT: 100, OTHER: 100})
    assert driver.answered(at_once) == {PARENT: (-1, False), OTHER: (-1, False)}
    waiting = driver.poll(waiter, 1, PARENT, OTHER)
    assert driver.answered(waiting) is None
    driver.poll(owner, 1, reports={PARENT: 3})
    assert driver.answered(waiting) == {PARENT: (3, False), OTHER: (-1, False)}


def test_negative_positions_and_partitions_are_ignored() -> None:
    driver = Driver()
    owner, waiter = two_members(driver)
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


# ---------------------------------------------------------------- hole 21: no member owns the parent


def test_hole_21_without_an_owner_the_committed_offset_counts_once_every_member_polled() -> None:
    """Until then a member may still be giving the partition up."""
    driver = Driver()
    driver.commit({OTHER: 60})
    owner, waiter = two_members(driver)
    waiting = driver.poll(waiter, 1, OTHER)
    assert driver.answered(waiting) is None
    driver.poll(owner, 1)
    assert driver.answered(waiting) == {OTHER: (60, False)}


def test_hole_21_a_commit_for_a_partition_without_an_owner_is_returned_at_once() -> None:
    driver = Driver()
    owner, waiter = two_members(driver)
    driver.poll(owner, 1)
    assert driver.answered(driver.poll(waiter, 1, OTHER)) == {OTHER: (-1, False)}
    waiting = driver.poll(waiter, 1, OTHER)
    assert driver.answered(waiting) is None
    driver.commit({OTHER: 60}, owner, 1)
    assert driver.answered(waiting) == {OTHER: (60, False)}


def test_an_answer_marks_positions_that_only_a_live_member_knows() -> None:
    """That member is an owner that polls, or any member that has not polled yet.

    The log start of a partition with such a position does not count.
    """
    driver = Driver()
    owner, waiter = two_members(driver)
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
    driver = Driver()
    stock, waiter = two_members(driver)
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
    """In the next generation the member's user is still busy: it has neither given up nor flushed the parent."""
    driver = Driver()
    busy, waiter = two_members(driver)
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
    driver = Driver()
    busy, waiter = two_members(driver)
    driver.commit({PARENT: 60}, busy, 1)
    successor = driver.restarted()
    waiting = successor.poll(waiter, 1, PARENT)
    later(successor, busy, waiter, generation=1, polls_positions=polls_positions)
    assert successor.answered(waiting) == (None if polls_positions else {PARENT: (60, False)})
    successor.poll(busy, 1, reports={PARENT: 70})
    assert successor.answered(successor.poll("", -1, PARENT)) == {PARENT: (70, True)}


def test_after_its_first_late_poll_a_member_is_asked_and_its_commits_do_not_count() -> None:
    driver = Driver()
    late, waiter = two_members(driver)
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
    driver = Driver()
    owner, waiter = two_members(driver)
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


def test_forged_generations_and_members_are_fenced_as_in_a_heartbeat() -> None:
    driver = Driver()
    owner, waiter = two_members(driver)
    forged = {"reports": {PARENT: 100}}
    assert driver.error(driver.poll(owner, 0, **forged)) == ErrorCode.ILLEGAL_GENERATION
    assert driver.error(driver.poll(owner, 2, **forged)) == ErrorCode.ILLEGAL_GENERATION
    assert driver.error(driver.poll(owner, -1, **forged)) == ErrorCode.ILLEGAL_GENERATION
    assert driver.error(driver.poll("nobody", 1, **forged)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.error(driver.poll("", 1, **forged)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.error(driver.poll(owner, 1, group="none", **forged)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.error(driver.poll(owner, 1, instance="i", **forged)) == ErrorCode.UNKNOWN_MEMBER_ID
    driver.poll(owner, 1)
    assert driver.answered(driver.poll(waiter, 1, PARENT, max_wait_ms=0)) == {PARENT: (-1, False)}


def test_the_poll_of_a_member_that_leaves_is_answered() -> None:
    driver = Driver()
    owner, waiter = two_members(driver)
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
    driver = Driver()
    owner, waiter = two_members(driver)
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
    driver = Driver()
    owner, waiter = two_members(driver)
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
    """No member waits for the partition before one knows that it is marked. The owner's commits prove nothing yet."""
    driver = Driver()
    owner, other = two_members(driver)
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
    driver = Driver()
    owner, other = two_members(driver)
    driver.commit({PARENT: 100}, owner, 1)
    assert driver.answered(driver.poll("", -1, reports={PARENT: -1})) == {PARENT: (-1, False)}
    driver.poll(other, 1)
    assert driver.answered(driver.poll("", -1, PARENT)) == {PARENT: (-1, True)}
    driver.advance(SESSION_MS)  # the owner keeps no order, so only its commits count
    assert driver.answered(driver.poll("", -1, PARENT)) == {PARENT: (100, False)}


def test_a_new_coordinator_counts_no_commit_before_the_owner_reports() -> None:
    """A commit proves nothing at a coordinator that has just taken over, nor in a generation that has just begun."""
    driver = Driver()
    owner, other = two_members(driver)
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
    driver = Driver()
    owner, other = two_members(driver)
    driver.commit({PARENT: 100}, owner, 1)
    assert driver.answered(driver.poll("", -1, PARENT)) == {PARENT: (-1, True)}
    for _ in range(2):
        driver.advance(SESSION_MS // 2)
        for member in (owner, other):
            driver.heartbeat(member, 1)
    assert driver.answered(driver.poll("", -1, PARENT)) == {PARENT: (100, False)}


def test_during_a_rebalance_commits_do_not_count() -> None:
    driver = Driver()
    owner, _ = two_members(driver)
    driver.commit({PARENT: 100}, owner, 1)
    driver.join(client="c")
    assert driver.answered(driver.poll("", -1, PARENT)) == {PARENT: (-1, True)}


# ---------------------------------------------------------------- how long a member waits


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


def test_a_position_is_wanted_for_longer_than_it_is_waited_for() -> None:
    """A member keeps requesting a position, because it may be lowered. Such a request is no wait."""
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
    """Another member may have had the waiting partition since then."""
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
