"""Hole 20: a partition that is removed and created again has another incarnation (KIP-253).

Committed offsets belong to an incarnation, too.
"""

from __future__ import annotations

import pytest

from anabranch.broker.coordinator.deletions import PartitionDeletion
from anabranch.protocol.errors import ErrorCode
from tests.unit.coordinator.driver import Driver

T0 = ("t", 0)
OLD, NOW, NEXT = 7, 9, 11


def knows(incarnation: int, **options: bool) -> Driver:
    return Driver(incarnations={T0: incarnation}, **options)


def found(driver: Driver) -> list[tuple[int, int]]:
    """Return (offset, incarnation) of each fetched offset."""
    return [(p.committed_offset, p.incarnation) for topic in driver.fetched().topics for p in topic.partitions]


# ---------------------------------------------------------------- stored offsets


@pytest.mark.parametrize(
    ("known", "given", "stored"),
    [
        pytest.param(NOW, {"incarnation": NOW}, NOW, id="that of the commit"),
        pytest.param(NOW, {}, NOW, id="that of the broker"),
        pytest.param(-1, {}, -1, id="the broker knows none"),
        pytest.param(NOW, {"retention_ms": 60_000}, -1, id="an offset with its own expiry"),
    ],
)
def test_hole_20_an_offset_is_stored_with_the_incarnation_of_its_commit_or_the_one_the_broker_knows(
    known: int, given: dict[str, int], stored: int
) -> None:
    driver = knows(known)
    driver.commit({T0: 5}, **given)
    assert found(driver) == found_after_restart(driver) == [(5, stored)]


def test_hole_20_a_member_of_an_earlier_incarnation_cannot_commit_over_a_later_one() -> None:
    driver = knows(NOW)
    driver.commit({T0: 5})
    late = driver.commit({T0: 900}, incarnation=OLD)
    assert driver.commit_error(late) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found(driver) == [(5, NOW)]


def test_hole_29_a_stock_consumers_commit_to_a_merged_partition_gets_no_error() -> None:
    """Before aiokafka rejoins, it repeats its commit as long as the error is UNKNOWN_TOPIC_OR_PARTITION."""
    driver = Driver(merged=frozenset([("t", 1)]))
    stock = driver.commit({T0: 5, ("t", 1): 7})
    assert [part.error_code for part in driver.replies[stock].topics[0].partitions] == [ErrorCode.NONE] * 2
    assert found(driver) == [(5, -1)]
    only = driver.commit({("t", 1): 7})
    assert driver.commit_error(only) == ErrorCode.NONE
    ours = driver.commit({("t", 1): 7}, incarnation=OLD)
    assert driver.commit_error(ours) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_stock_consumers_commit_to_a_deleted_topic_is_not_stored_for_the_present_topic() -> None:
    driver = Driver(deleted_epoch=4)
    (member,) = driver.stable_group("a")
    late = driver.commit({T0: 67}, member, 1, leader_epoch=4)
    assert driver.commit_error(late) == ErrorCode.NONE
    assert found(driver) == []
    driver.commit({T0: 6}, member, 1, leader_epoch=5)
    assert found(driver) == [(6, -1)]


def test_an_offset_of_a_deleted_topic_that_no_member_commits_is_refused() -> None:
    driver = Driver(deleted_epoch=4)
    assert driver.commit_error(driver.commit({T0: 67}, leader_epoch=4)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert driver.commit_error(driver.commit({T0: 67})) == ErrorCode.NONE, "without a leader epoch"


@pytest.mark.parametrize("settled", [True, False])
def test_hole_20_a_late_commit_is_refused_before_the_broker_knows_the_later_incarnation(settled: bool) -> None:
    """The group's previous coordinator knew the later incarnation.

    A stored offset, or an offset in flight to the log, shows this coordinator that the incarnation exists.
    """
    driver = lagging(auto_commit=settled)
    ours = driver.commit({T0: 5}, incarnation=NOW)
    late = driver.commit({T0: 900}, incarnation=OLD)
    untagged = driver.commit({T0: 6})
    driver.settle_all()
    assert driver.commit_error(ours) == ErrorCode.NONE
    assert driver.commit_error(late) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert driver.commit_error(untagged) == ErrorCode.NONE
    assert found(driver) == [(6, NOW)]


def lagging(**options: bool) -> Driver:
    """Return a new coordinator with old metadata: it loaded an offset of an incarnation that its metadata lacks."""
    before = knows(NOW)
    before.commit({T0: 5})
    driver = before.restarted()
    driver.incarnations = {T0: OLD}
    driver.auto_commit = options.get("auto_commit", True)
    return driver


def test_a_later_incarnation_is_refused_until_the_broker_knows_it() -> None:
    """A stored forged incarnation would make every later commit fail. Metadata may lag, so the client retries."""
    driver = knows(OLD)
    driver.commit({T0: 3}, incarnation=OLD)
    early = driver.commit({T0: 5, ("t", 1): 7}, incarnation=NOW)
    codes = [part.error_code for part in driver.replies[early].topics[0].partitions]
    assert codes == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE], (
        "the incarnation of the other partition is unknown"
    )
    assert driver.fetched_one(T0) == 3
    still = driver.commit({T0: 4}, incarnation=OLD)
    assert driver.commit_error(still) == ErrorCode.NONE
    driver.incarnations[T0] = NOW
    again = driver.commit({T0: 5}, incarnation=NOW)
    assert driver.commit_error(again) == ErrorCode.NONE
    assert driver.fetched_one(T0) == 5
    forged = driver.commit({T0: 9}, incarnation=2**63 - 1)
    assert driver.commit_error(forged) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.commit_error(driver.commit({T0: 6}, incarnation=NOW)) == ErrorCode.NONE


def found_after_restart(driver: Driver) -> list[tuple[int, int]]:
    successor = driver.restarted()
    successor.incarnations, successor.bases = driver.incarnations, driver.bases
    return found(successor)


# ---------------------------------------------------------------- returned offsets


def test_hole_20_an_offset_of_an_earlier_incarnation_is_not_returned() -> None:
    """A stock client would use the offset in the present partition."""
    driver = knows(OLD)
    driver.commit({T0: 5, ("t", 1): 6})
    driver.incarnations[T0] = NOW
    assert found(driver) == [(6, -1)]
    assert driver.fetched_one(T0) == -1
    driver.commit({T0: 1})
    assert driver.fetched_one(T0) == 1


def test_hole_20_a_group_reads_a_partition_that_was_created_again_from_its_beginning() -> None:
    """Without an offset ``auto.offset.reset=latest`` would skip the partition's first records."""
    driver = knows(OLD)
    driver.commit({T0: 5})
    driver.incarnations[T0], driver.bases[T0] = NOW, 8
    assert found(driver) == found_after_restart(driver) == [(8, NOW)]
    assert driver.fetched_one(T0) == 8
    driver.commit({T0: 11})
    assert found(driver) == [(11, NOW)]
    driver.commit({T0: 6})
    assert found(driver) == [(6, NOW)], (
        "the old offset of a stock consumer is below the first offset, so it skips no record"
    )


def test_hole_20_an_offset_of_a_merged_partition_is_kept_but_not_returned() -> None:
    driver = knows(OLD)
    driver.commit({T0: 5})
    driver.merged = frozenset([T0])
    assert found(driver) == []
    assert driver.fetched_one(T0) == -1
    driver.merged, driver.incarnations[T0], driver.bases[T0] = frozenset(), NOW, 8
    assert found(driver) == [(8, NOW)]


def test_a_broker_with_old_metadata_returns_an_offset_of_a_later_incarnation() -> None:
    """If the answer were -1, the consumer would go back to the start, or skip records."""
    driver = lagging()
    assert driver.fetched_one(T0) == 5


def test_hole_20_a_position_counts_only_for_its_incarnation() -> None:
    driver = knows(NOW)
    driver.commit({T0: 5})
    assert driver.answered(driver.poll("", -1, T0)) == {T0: (5, False)}
    assert driver.answered(driver.poll("", -1, T0, incarnation=NOW)) == {T0: (5, False)}
    for other in (OLD, NEXT):
        assert driver.answered(driver.poll("", -1, T0, incarnation=other)) == {T0: (-1, False)}


def test_hole_20_a_report_of_an_earlier_incarnation_releases_no_waiting_member() -> None:
    driver = knows(NOW)
    owner, waiter = driver.stable_group("a", "b", owns={"a": [T0]})
    driver.poll(owner, 1, reports={T0: 100}, incarnation=OLD, max_wait_ms=0)
    waiting = driver.poll(waiter, 1, T0, incarnation=NOW)
    assert driver.answered(waiting) is None
    driver.poll(owner, 1, reports={T0: 3}, incarnation=NOW, max_wait_ms=0)
    assert driver.answered(waiting) == {T0: (3, False)}
    waiting = driver.poll(waiter, 1, T0, incarnation=NOW)
    driver.poll(owner, 1, reports={T0: 100}, incarnation=OLD)
    assert driver.answered(waiting) is None


# ---------------------------------------------------------------- removed offsets


def test_hole_20_a_removal_deletes_offsets_of_its_incarnation_and_earlier_ones() -> None:
    driver = knows(NOW)
    driver.commit({T0: 5})
    driver.remove_partitions(T0, deletion=PartitionDeletion(OLD))
    assert driver.committed(*T0) == 5, (
        "the partition was created again, and its offset committed, before the removal was reported"
    )
    driver.remove_partitions(T0, deletion=PartitionDeletion(NOW))
    assert driver.committed(*T0) is None


@pytest.mark.parametrize(("removed", "left"), [(OLD, 5), (NOW, None)], ids=["an earlier one", "its own"])
def test_hole_20_a_removal_deletes_a_pending_commit_for_its_incarnation_only(removed: int, left: int | None) -> None:
    driver = knows(NOW, auto_commit=False)
    driver.commit({T0: 5})
    driver.remove_partitions(T0, deletion=PartitionDeletion(removed))
    driver.settle_all()
    assert driver.committed(*T0) == left


@pytest.mark.parametrize(
    ("deletion", "covered"),
    [
        (PartitionDeletion(), {-1, OLD, NOW, NEXT}),  # of a controller that names no incarnation
        (PartitionDeletion(NOW), {-1, OLD, NOW}),
        (PartitionDeletion(NOW, is_created_anew=True), {OLD, NOW}),
        (PartitionDeletion(is_created_anew=True), set()),
    ],
)
def test_a_deletion_covers_offsets_by_their_incarnation(deletion: PartitionDeletion, covered: set[int]) -> None:
    assert {incarnation for incarnation in (-1, OLD, NOW, NEXT) if deletion.covers(incarnation)} == covered
