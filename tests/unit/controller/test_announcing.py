"""When an announced split may go on, and which splits are announced."""

from __future__ import annotations

import uuid

import pytest

from controller.image import Announcement, PartitionImage, StockReport, TopicImage
from controller.resize import plan
from controller.resize.announcing import ASK_EVERY_S, QUIET_S, UNANSWERED_S, Next, decide
from controller.states import PartitionStatus
from controller.stock_producers import listed_counts
from protocol.key_placement import is_doubled, place
from zk_schemas.partition_state import Layout, PartitionState
from zk_schemas.topic import TopicZnode

GRACE_S = 6.0
IDLE = StockReport(written_at=0.0, misplaced_at=None)


def test_before_every_broker_knows_the_count_nobody_is_sent_for_it() -> None:
    begun = Announcement(8, begun_at=0.0, asked_at=0.0)
    assert decide(begun, 1.0, GRACE_S, False, [IDLE]) is Next.WAIT
    assert decide(begun, GRACE_S, GRACE_S, False, [IDLE]) is Next.LATE
    assert decide(begun, UNANSWERED_S / 2, GRACE_S, False, []) is Next.WAIT
    assert decide(begun, UNANSWERED_S, GRACE_S, False, []) is Next.LATE
    assert decide(begun, 1.0, GRACE_S, True, [IDLE]) is Next.REFRESH
    assert decide(begun, 1.0, GRACE_S, True, []) is Next.OVER


def test_it_is_over_once_it_was_quiet_when_brokers_were_last_asked() -> None:
    misplaced = StockReport(written_at=1.0, misplaced_at=1.0)
    for asked_at, due in ((1.0, Next.ASK), (1.0 + QUIET_S / 2, Next.ASK), (1.01 + QUIET_S, Next.OVER)):
        going = Announcement(8, begun_at=0.5, asked_at=asked_at, refreshes=True)
        now = asked_at + ASK_EVERY_S * 1.01
        assert decide(going, now, GRACE_S, True, [misplaced]) is due
        assert decide(going, now, GRACE_S, False, [misplaced]) is Next.WAIT
        assert decide(going, asked_at, GRACE_S, True, [misplaced]) is Next.WAIT
        assert decide(going, 0.5 + GRACE_S, GRACE_S, True, [misplaced]) is Next.LATE


def growing(before: int, after: int, *, recorded: bool = True, ordered: bool = True) -> TopicImage:
    """A topic of four partitions at first."""
    znode = TopicZnode(
        topic_id=uuid.UUID(int=7),
        partitions={index: [1] for index in range(after)},
        initial_partition_count=4,
        undeleted_partition_count=before,
        ordered_delivery=ordered,
    )
    topic = TopicImage("t", znode, 0, 1)
    for index in range(after):
        is_new = index >= before
        state = PartitionState(1, -1 if is_new else 1, -1 if is_new else 0, [] if is_new else [1])
        if is_new:
            state = state.replace(layout=Layout(after, 1), leader_epoch_after_creation={index % before: -1})
        known = state if recorded or not is_new else None
        topic.partitions[index] = PartitionImage(PartitionStatus.ONLINE, known)
    return topic


@pytest.mark.parametrize(
    ("before", "after", "announced"), [(4, 8, 8), (4, 16, 16), (8, 16, 16), (4, 6, -1), (6, 8, -1), (4, 12, -1)]
)
def test_doublings_are_announced(before: int, after: int, announced: int) -> None:
    assert plan.announced_count(growing(before, after)) == announced


def test_what_is_not_recorded_or_has_no_order_is_not_announced() -> None:
    assert plan.announced_count(growing(4, 8, recorded=False)) == -1
    assert plan.announced_count(growing(4, 8, ordered=False)) == -1
    assert plan.announced_count(growing(4, 4)) == -1


def test_at_a_doubled_count_stock_placement_is_right_for_every_key() -> None:
    for initial in range(1, 6):
        for count in range(initial, 40):
            is_right = all(place(found, initial, count) == found % count for found in range(2_000))
            assert is_doubled(initial, count) == is_right, (initial, count)


def test_the_counts_that_stock_producers_can_follow() -> None:
    assert listed_counts(4, 6) == "4 or 8 partitions"
    assert listed_counts(4, 17) == "16 or 32 partitions"
