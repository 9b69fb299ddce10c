"""The conditions that a response of CreatePartitions waits for, and the result's message once they hold."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.controller import stock_producers, view
from anabranch.controller.admin.create_topics import is_ready
from anabranch.controller.context import Context
from anabranch.controller.image import TopicImage
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_partitions import CreatePartitionsTopicResult

_TAKEN_BACK_MESSAGE = "The resize was taken back by another request, or by an edit of the topic's znode."


def resized(
    asked: TopicImage, version: int, count: int, advice: str, result: CreatePartitionsTopicResult
) -> Callable[[Context], bool]:
    """A condition that holds once every leader has the requested layout, or never will have it.

    ``version`` is the version of the requested layout. If the topic is deleted or the resize is taken back, the result
    gets an error.
    """

    def condition(context: Context) -> bool:
        topic = context.image.topics.get(asked.name)
        if topic is None:
            return False  # the topic is also missing while the cluster is read again
        if topic.czxid != asked.czxid or asked.name in context.image.deletions:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            result.error_message = f"The topic '{asked.name}' was deleted before it was resized."
            return True
        if topic.znode.layout_version != version:
            return _is_followed(topic, version, count, result)
        if topic.znode.undeleted_partition_count != count or not view.is_settled(topic):
            return False
        result.error_message = lines(advice, stock_producers.warning(context, topic, count))
        return is_ready(asked.name, context)

    return condition


def _is_followed(topic: TopicImage, version: int, count: int, result: CreatePartitionsTopicResult) -> bool:
    """True, because a later layout exists: the resize is done or was taken back.

    If it was taken back, the result gets an error.
    """
    znode = topic.znode
    is_back = znode.previous_undeleted_partition_count == znode.undeleted_partition_count != count
    if znode.layout_version == version + 1 and is_back:
        result.error_code, result.error_message = ErrorCode.POLICY_VIOLATION, _TAKEN_BACK_MESSAGE
    return True


def advised(
    asked: TopicImage, count: int, advice: str, result: CreatePartitionsTopicResult
) -> Callable[[Context], bool]:
    """A condition that holds once every broker has reported its stock producers of the topic.

    Then the result gets the warning about the producers that cannot follow the count.
    """

    def condition(context: Context) -> bool:
        topic = context.image.topics.get(asked.name)
        if topic is None:
            return True
        if not stock_producers.have_reported(context, topic):
            return False
        result.error_message = lines(advice, stock_producers.warning(context, topic, count))
        return True

    return condition


def lines(*advice: str | None) -> str | None:
    """The given pieces of advice, one per line; None if all are empty."""
    return "\n".join(line for line in advice if line) or None
