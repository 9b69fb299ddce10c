"""The conditions under which an announced split continues."""

from __future__ import annotations

from anabranch.controller.image import Announcement, StockReport
from anabranch.controller.resize.stock_producer_wait import ASK_EVERY_S, QUIET_S, UNANSWERED_S, Next, decide
from anabranch.controller.stock_producer_reports import listed_counts

GRACE_S = 6.0
IDLE = StockReport(written_at=0.0, misplaced_at=None)


def test_producers_are_refreshed_only_after_every_broker_knows_the_count() -> None:
    begun = Announcement(8, begun_at=0.0, asked_at=0.0)
    assert decide(begun, 1.0, GRACE_S, False, [IDLE]) is Next.WAIT
    assert decide(begun, GRACE_S, GRACE_S, False, [IDLE]) is Next.LATE
    assert decide(begun, UNANSWERED_S / 2, GRACE_S, False, []) is Next.WAIT
    assert decide(begun, UNANSWERED_S, GRACE_S, False, []) is Next.LATE
    assert decide(begun, 1.0, GRACE_S, True, [IDLE]) is Next.REFRESH
    assert decide(begun, 1.0, GRACE_S, True, []) is Next.OVER


def test_an_announcement_is_over_once_the_last_reports_show_quiet_producers() -> None:
    misplaced = StockReport(written_at=1.0, misplaced_at=1.0)
    for asked_at, due in ((1.0, Next.ASK), (1.0 + QUIET_S / 2, Next.ASK), (1.01 + QUIET_S, Next.OVER)):
        going = Announcement(8, begun_at=0.5, asked_at=asked_at, refreshes=True)
        now = asked_at + ASK_EVERY_S * 1.01
        assert decide(going, now, GRACE_S, True, [misplaced]) is due
        assert decide(going, now, GRACE_S, False, [misplaced]) is Next.WAIT
        assert decide(going, asked_at, GRACE_S, True, [misplaced]) is Next.WAIT
        assert decide(going, 0.5 + GRACE_S, GRACE_S, True, [misplaced]) is Next.LATE


def test_the_nearest_counts_that_stock_producers_can_follow_are_named() -> None:
    assert listed_counts(4, 6) == "4 or 8 partitions"
    assert listed_counts(4, 17) == "16 or 32 partitions"
