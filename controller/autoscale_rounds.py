"""The controller's choice of partition counts: topics with ``autoscale.enable`` are measured, judged and resized.

``ordered_resize.autoscale`` decides. A resize is decided like a CreatePartitions request, and may be refused. A refused
resize is tried again in the next round.
"""

from __future__ import annotations

import structlog

from anabranch.controller import appended_bytes, stock_producer_reports, view
from anabranch.controller.admin.create_partitions import create_partitions
from anabranch.controller.append_window import AppendWindow
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.controller.topic_config import is_autoscaled, topic_values
from anabranch.ordered_resize.autoscale import Measured, Policy, decide
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic

logger = structlog.get_logger(__name__)
_VERSION = 3
"""The version of the CreatePartitions request that the controller makes to itself."""
_FOLLOWS_NO_MERGE = (
    "Producers that do not know ordered resize wrote to the topic within stock.producer.window.ms. Until they have"
    " refreshed their metadata, their batches for merged partitions would be refused."
)
ASKED_FOR_S = 600.0
"""Seconds for which a topic is measured after a request for its measurement, even without ``autoscale.enable``."""


def has_work(image: ClusterImage) -> bool:
    """Whether some topic is measured or should be measured."""
    return any(topic.append_window is not None or is_autoscaled(image, name) for name, topic in image.topics.items())


def look(context: Context) -> Decisions[None]:
    """Run one round: resize topics that need another count, and ask brokers again.

    Raises ``ControllerMovedError``, ``ImageStaleError``.
    """
    image, now = context.image, context.clock.monotonic()
    _switch(image, now)
    for name in sorted(image.topics):
        topic = image.topics.get(name)
        window = topic.append_window if topic is not None else None
        if topic is None or window is None or name in image.deletions:
            continue
        if not window.is_on and now - window.asked_at > ASKED_FOR_S:
            topic.append_window = None
            continue
        policy = Policy.of(topic_values(image, name))
        version = topic.znode.layout_version if _is_resized(topic) else None
        is_to_be_asked = window.begin_round(version, image.brokers, policy.window_ms / 1000, now)
        if window.is_on and window.is_current and version is not None:
            yield from _resize(context, topic, policy, window.measured(now))
        if is_to_be_asked:
            appended_bytes.ask(context, topic)


def _switch(image: ClusterImage, now: float) -> None:
    """Begin to measure topics with ``autoscale.enable``. Note in each window whether its topic has this config."""
    for name, topic in image.topics.items():
        is_on = is_autoscaled(image, name)
        if topic.append_window is None and is_on:
            topic.append_window = AppendWindow(now)
        if topic.append_window is not None:
            topic.append_window.is_on = is_on


def _is_resized(topic: TopicImage) -> bool:
    """Whether the last resize is done and no other resize is queued. Partitions may still drain."""
    return not topic.frozen and topic.znode.wanted is None and view.is_over(topic)


def _resize(context: Context, topic: TopicImage, policy: Policy, measured: Measured) -> Decisions[None]:
    before = topic.znode.undeleted_partition_count
    decision = decide(policy, topic.znode.initial_partition_count, before, measured)
    if decision.wanted is None or decision.waits:
        return
    if decision.wanted < before and stock_producer_reports.written_lately(context, topic):
        refusal = _FOLLOWS_NO_MERGE
    else:
        refusal = yield from _request(context, topic.name, decision.wanted)
    assert topic.append_window is not None
    if refusal and refusal == topic.append_window.refusal:
        return
    topic.append_window.refusal = refusal
    refused = {"refused": refusal} if refusal else {}
    change = f"{before}->{decision.wanted}"
    logger.info("autoscale.resize", topic=topic.name, partitions=change, reason=decision.why, **refused)


def _request(context: Context, topic: str, count: int) -> Decisions[str]:
    """Decide a request for the count. Returns the reason for a refusal; empty if the request is accepted."""
    wanted = CreatePartitionsTopic(name=topic, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=0, validate_only=False)
    outcome = yield from create_partitions(context, request, _VERSION)
    result = outcome.response.results[0]
    return (result.error_message or ErrorCode.of(result.error_code).name) if result.error_code else ""
