"""Brokers' reports about stock producers, and the warnings about resizes that stock producers cannot follow.

A stock producer names no layout. A broker's response to UpdateMetadata names those topics of the request to which a
stock producer wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from anabranch.controller.context import Context
from anabranch.controller.events import BrokerAnswered
from anabranch.controller.image import StockReport, TopicImage
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.protocol.key_placement import is_doubled
from anabranch.protocol.types import TopicPartition


def on_metadata_answered(context: Context, event: BrokerAnswered) -> None:
    """Store a broker's reports about the topics in an UpdateMetadata request."""
    request = cast(UpdateMetadataRequest, event.request)
    now = context.clock.monotonic()
    reports = {report.topic_name: report for report in event.response.stock_producers}
    for state in request.topic_states:
        topic = context.image.topics.get(state.topic_name)
        if topic is None:
            continue
        topic.stock_unreported.discard(event.broker.id)
        topic.stock_reports.pop(event.broker.id, None)
        if (found := reports.get(state.topic_name)) is not None:
            misplaced_at = now - found.misplaced_ms_ago / 1000 if found.misplaced_ms_ago >= 0 else None
            topic.stock_reports[event.broker.id] = StockReport(now - found.written_ms_ago / 1000, misplaced_at)


def ask(context: Context, topic: TopicImage) -> None:
    """Send the topic to every broker once more: its response has the report. ``topic.flush`` is the batch's number."""
    topic.flush = context.senders.last_flush + 1
    topic.stock_unreported = set(context.image.brokers)
    context.batch.metadata(TopicPartition(topic.name, index) for index in sorted(topic.partitions))


def have_reported(context: Context, topic: TopicImage) -> bool:
    """Whether every live broker has acknowledged the request of the last ``ask``, and so has reported."""
    return context.senders.acknowledged(topic.flush) and topic.stock_unreported.isdisjoint(context.image.brokers)


def written_lately(context: Context, topic: TopicImage) -> bool:
    """Whether a producer that names no layout wrote to the topic within ``stock.producer.window.ms``."""
    since = context.clock.monotonic() - context.config.stock_producer_window_ms / 1000
    return any(report.written_at >= since for report in topic.stock_reports.values())


def concerned_by(topic: TopicImage, count: int) -> bool:
    """Whether brokers refuse batches of stock producers because of a resize to ``count``, in progress or not begun.

    A lower count concerns them whatever it is: metadata lists the merged partitions, which accept no record, until
    they are removed.
    """
    return _merged_from(topic, count) is not None or _misplaces(topic, count)


def warning(context: Context, topic: TopicImage, count: int) -> str | None:
    """The warning for a request of ``count`` partitions; None if no stock producer is concerned."""
    if not concerned_by(topic, count) or not written_lately(context, topic):
        return None
    minutes = context.config.stock_producer_window_ms / 60_000
    said = [f"Producers that do not know ordered resize wrote to {topic.name} within the last {minutes:g} minutes."]
    if (before := _merged_from(topic, count)) is not None:
        said.append(
            "Until the merged partitions are removed and a producer has refreshed its metadata, it places keys by"
            f" hash % {before}: batches for merged partitions are refused. Such producers can follow no lower count."
        )
    if _misplaces(topic, count):
        said.append(
            f"They place keys by hash % {count}, which is wrong for some keys: batches with such a key are refused or"
            " lose their order (ordered.delivery.stock.producers). They can follow"
            f" {listed_counts(topic.znode.initial_partition_count, count)}."
        )
    return " ".join(said)


def _merged_from(topic: TopicImage, count: int) -> int | None:
    """The count before the resize to ``count`` if that is higher, so that partitions are merged; otherwise None."""
    znode = topic.znode
    has_count = znode.undeleted_partition_count == count
    before = znode.previous_undeleted_partition_count if has_count else znode.undeleted_partition_count
    return before if before is not None and before > count else None


def _misplaces(topic: TopicImage, count: int) -> bool:
    """Whether stock placement, ``hash % count``, is wrong for some keys."""
    return topic.znode.ordered_delivery is not False and not is_doubled(topic.znode.initial_partition_count, count)


def listed_counts(initial: int, count: int) -> str:
    """The counts next to ``count`` that stock placement can follow."""
    below = max((found for found in _doublings(initial, count) if found < count), default=None)
    above = min(found for found in _doublings(initial, count) if found > count)
    return f"{above} partitions" if below is None else f"{below} or {above} partitions"


def _doublings(initial: int, count: int) -> Iterator[int]:
    """The initial count times powers of two, up to the first product above ``count``."""
    found = initial
    yield found
    while found <= count:
        found *= 2
        yield found
