"""Announces a split to stock producers, which name no layout. Waits for them if they can keep the order.

A stock producer places by the count in its metadata. A record stays in the partition where the producer placed it. If
the count doubles, the producer can go on in order. Metadata shows the producer the new partitions while the old
partitions still take all keys. The producer writes the records that it placed by the old count. Records that the
producer places by the new count wait until the new partitions have leaders. When the old records are written, the
partitions that lose keys get the new layout. From then on they refuse records placed by the old count.

The znodes determine the announced count. They do not store the progress of an announcement, so a new controller
announces again.
"""

from __future__ import annotations

import enum

import structlog

from anabranch.controller import stock_producer_reports, view
from anabranch.controller.context import Context
from anabranch.controller.image import Announcement, StockReport, TopicImage

logger = structlog.get_logger(__name__)
QUIET_S = 0.15
"""After this time without a batch placed by the old count, all such records count as written.

It is longer than the pause before a retry.
"""
ASK_EVERY_S = 0.04
UNANSWERED_S = 0.5
"""If the other brokers report no stock producer, a split waits only this long for a silent broker."""


class Next(enum.Enum):
    """The next action for an announcement."""

    OVER = "no producer is waited for"
    LATE = "the time is up"
    REFRESH = "every broker knows the count: make producers refresh their metadata"
    ASK = "ask brokers again what they see"
    WAIT = "look again"


def decide(
    announcement: Announcement, now: float, grace_s: float, is_acknowledged: bool, reports: list[StockReport]
) -> Next:
    """The next action, from ``reports`` of the brokers to which stock producers wrote lately.

    ``is_acknowledged``: every broker has answered the last question.
    """
    if not announcement.refreshes:
        if is_acknowledged:
            return Next.REFRESH if reports else Next.OVER
        patience_s = grace_s if reports else min(grace_s, UNANSWERED_S)
        return Next.LATE if now - announcement.begun_at >= patience_s else Next.WAIT
    if now - announcement.begun_at >= grace_s:
        return Next.LATE
    last = max([announcement.begun_at, *(at for report in reports if (at := report.misplaced_at) is not None)])
    if not is_acknowledged or now - announcement.asked_at < ASK_EVERY_S:
        return Next.WAIT
    return Next.OVER if announcement.asked_at - last >= QUIET_S else Next.ASK


def is_over(topic: TopicImage) -> bool:
    """Whether no split is announced any more, so that the first bump may be written."""
    return topic.announcement is None


def advance(context: Context, topic: TopicImage) -> None:
    """Begin, continue or end the announcement of a split."""
    count, grace_s = view.announced_count(topic), context.config.stock_producer_grace_ms / 1000
    if count < 0 or grace_s <= 0:
        topic.announcement = None  # nothing is announced, for example after the split was cancelled
        return
    now = context.clock.monotonic()
    announcement = topic.announcement
    if announcement is None or announcement.count != count:
        topic.announcement = Announcement(count, now, now)
        _ask(context, topic)
        return
    lately = now - context.config.stock_producer_window_ms / 1000
    reports = [report for report in topic.stock_reports.values() if report.written_at >= lately]
    due = decide(announcement, now, grace_s, stock_producer_reports.have_reported(context, topic), reports)
    if due is Next.LATE:
        logger.warning("resize.stock_producers_late", topic=topic.name)
    if due in (Next.OVER, Next.LATE):
        topic.announcement = None
        return
    if due is Next.REFRESH:
        announcement.refreshes, announcement.begun_at = True, now
    if due in (Next.REFRESH, Next.ASK):
        announcement.asked_at = now
        _ask(context, topic)
    else:
        context.events.soon(steadily=True)


def _ask(context: Context, topic: TopicImage) -> None:
    stock_producer_reports.ask(context, topic)
    context.events.soon(steadily=True)
