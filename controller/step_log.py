"""Logs and counts each step of a resize."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from anabranch.controller.context import Context
from anabranch.controller.image import TopicImage

logger = structlog.get_logger(__name__)


def log_step(context: Context, topic: TopicImage, step: str, partitions: Sequence[int]) -> None:
    """Log and count a step, with the topic, counts and version that identify the resize."""
    context.metrics.resize_steps.add(topic.name, step)
    context.metrics.note_resize(topic.name, step, context.clock.monotonic())
    znode = topic.znode
    logger.info(
        "resize.step",
        topic=topic.name,
        step=step,
        initial=znode.initial_partition_count,
        undeleted=znode.undeleted_partition_count,
        assigned=len(znode.partitions),
        layout_version=znode.layout_version,
        partitions=shown(partitions),
    )


def shown(partitions: Sequence[int]) -> str:
    """``4-6`` for consecutive numbers, otherwise each number."""
    if len(partitions) > 2 and list(partitions) == list(range(partitions[0], partitions[-1] + 1)):
        return f"{partitions[0]}-{partitions[-1]}"
    return ",".join(map(str, partitions))
