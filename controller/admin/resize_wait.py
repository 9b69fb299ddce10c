"""The conditions that a response of CreatePartitions waits for, and the message that the result then gets."""

from __future__ import annotations

import enum
from collections.abc import Callable

from anabranch.controller import stock_producer_reports
from anabranch.controller.admin.create_topics import is_ready
from anabranch.controller.context import Context
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.ordered_resize import next_step
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_partitions import CreatePartitionsTopicResult

_DELETED_MESSAGE = "The topic '{}' was deleted before it was resized."
_FORCE = "`anabranch topics alter --force` resizes all the same."
_TAKEN_BACK_MESSAGE = "The resize was cancelled by another request, or by an edit of the topic's znode."


class ResizeState(enum.Enum):
    """The state of a requested resize."""

    UNFINISHED = enum.auto()
    SETTLED = enum.auto()
    """Every leader has acknowledged the requested layout, and the topic's znode says so."""
    FOLLOWED = enum.auto()
    """A later layout was written. The requested resize is done, or was replaced."""
    TAKEN_BACK = enum.auto()
    DELETED = enum.auto()


def state_of_resize(image: ClusterImage, asked: TopicImage, version: int, count: int) -> ResizeState:
    """The state of the resize of ``asked`` to ``count`` partitions, whose layout has the version ``version``."""
    topic = image.topics.get(asked.name)
    if topic is None:
        return ResizeState.UNFINISHED  # the topic is also missing while the cluster is read again
    if topic.czxid != asked.czxid or asked.name in image.deletions:
        return ResizeState.DELETED
    znode = topic.znode
    if znode.layout_version != version:
        is_back = znode.previous_undeleted_partition_count == znode.undeleted_partition_count != count
        return ResizeState.TAKEN_BACK if znode.layout_version == version + 1 and is_back else ResizeState.FOLLOWED
    if znode.undeleted_partition_count != count or not next_step.is_recorded(znode):
        return ResizeState.UNFINISHED
    return ResizeState.SETTLED


def resized(
    asked: TopicImage, version: int, count: int, advice: str, result: CreatePartitionsTopicResult
) -> Callable[[Context], bool]:
    """A condition that holds once every leader has the requested layout, or once the resize can no longer complete.

    ``version`` is the version of the requested layout. If the topic is deleted or the resize is cancelled, the result
    gets an error.
    """

    def condition(context: Context) -> bool:
        match state_of_resize(context.image, asked, version, count):
            case ResizeState.UNFINISHED:
                return False
            case ResizeState.SETTLED:
                warning = stock_producer_reports.warning(context, context.image.topics[asked.name], count)
                result.error_message = lines(advice, warning)
                return is_ready(asked.name, context)
            case ResizeState.TAKEN_BACK:
                result.error_code, result.error_message = ErrorCode.POLICY_VIOLATION, _TAKEN_BACK_MESSAGE
            case ResizeState.DELETED:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                result.error_message = _DELETED_MESSAGE.format(asked.name)
        return True

    return condition


def advised(
    asked: TopicImage,
    count: int,
    advice: str | None,
    result: CreatePartitionsTopicResult,
    *,
    spares_producers: bool,
) -> Callable[[Context], bool]:
    """A condition that holds once every broker has reported its stock producers of the topic.

    Then the result gets the warning about the producers that cannot follow the count, as an error if the request
    ``spares_producers``.
    """

    def condition(context: Context) -> bool:
        topic = context.image.topics.get(asked.name)
        if topic is None:
            return True
        if not stock_producer_reports.have_reported(context, topic):
            return False
        warning = stock_producer_reports.warning(context, topic, count)
        if warning is not None and spares_producers:
            result.error_code, result.error_message = ErrorCode.POLICY_VIOLATION, f"{warning} {_FORCE}"
        else:
            result.error_message = lines(advice, warning)
        return True

    return condition


def lines(*advice: str | None) -> str | None:
    """The given pieces of advice, one per line; None if all are empty."""
    return "\n".join(line for line in advice if line) or None
