"""The bytes that brokers appended to each topic: their reports, and the response to a request for them.

A broker's response to UpdateMetadata has the counter of each topic for which the request asks.
"""

from __future__ import annotations

from anabranch.controller.append_window import AppendWindow
from anabranch.controller.context import Context
from anabranch.controller.events import BrokerAnswered
from anabranch.controller.image import TopicImage
from anabranch.protocol.generated.create_partitions import CreatePartitionsTopicResult
from anabranch.protocol.types import TopicPartition


def ask(context: Context, topic: TopicImage) -> None:
    """Ask every broker for its counter of the topic."""
    context.batch.metadata([TopicPartition(topic.name, 0)])


def on_metadata_answered(context: Context, event: BrokerAnswered) -> None:
    now = context.clock.monotonic()
    for report in event.response.appended_bytes:
        topic = context.image.topics.get(report.topic_name)
        if topic is not None and topic.append_window is not None:
            topic.append_window.report(event.broker.id, report.bytes_since_start, now)


def ask_for_some_time(context: Context, topic: TopicImage) -> None:
    """Measure the topic for some time from now on. A topic that was not measured before starts without samples."""
    now = context.clock.monotonic()
    if topic.append_window is None:
        topic.append_window = AppendWindow(now)
        ask(context, topic)
    topic.append_window.asked_at = now


def describe(topic: TopicImage, result: CreatePartitionsTopicResult, now: float) -> None:
    """Write the measurement until now into ``result``."""
    window = topic.append_window or AppendWindow(now)
    result.appended_bytes, result.elapsed_ms, result.unchanged_ms = window.measured(now)
