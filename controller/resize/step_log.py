"""One line in the log, and one in the counters, for each step of a resize."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from controller.context import Context
from controller.image import TopicImage

_log = logging.getLogger(__name__)


def log_step(context: Context, topic: TopicImage, step: str, partitions: Sequence[int]) -> None:
    """One line for each step, with what tells the resize: topic, counts and version; counted as well."""
    context.metrics.resize_steps.add(topic.name, step)
    znode = topic.znode
    _log.info(
        "resize: topic=%s step=%s initial=%s undeleted=%s assigned=%s layout_version=%s partitions=%s",
        topic.name,
        step,
        znode.initial_partition_count,
        znode.undeleted_partition_count,
        len(znode.partitions),
        znode.layout_version,
        shown(partitions),
    )


def shown(partitions: Sequence[int]) -> str:
    """``4-6`` for a run, the numbers otherwise."""
    if len(partitions) > 2 and list(partitions) == list(range(partitions[0], partitions[-1] + 1)):
        return f"{partitions[0]}-{partitions[-1]}"
    return ",".join(map(str, partitions))
