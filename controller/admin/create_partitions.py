"""CreatePartitions (37), versions 0-3: another number of partitions, more or fewer (KIP-253, Proposed Changes 2 and 3).

A larger count splits partitions. A smaller one marks the highest for deletion, down to the count of the topic's
creation. The count before cancels a resize while no partition has gained keys yet. A count that is asked for while
another resize is unfinished is queued, and the request is answered as accepted; the latest count wins. Any other
request is answered once every leader has the layout. A client that lost its answer asks for the count under way again,
and gets the same answer.

The message of an answer without error is advice, a line each: why a queued count waits, whether a compacted topic
loses the latest values in marked partitions, and whether producers wrote lately that cannot follow the count. A dry run
lists the resizes in progress and queued, and the one that the request would replace. A request that only validates may
ask for the measured rate of the topic instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from anabranch.controller import appended_bytes, stock_producers
from anabranch.controller.admin.create_topics import check_assignment, is_ready
from anabranch.controller.admin.outcome import AdviceWait, Outcome, Wait
from anabranch.controller.context import Context
from anabranch.controller.image import TopicImage
from anabranch.controller.partition_limit import check_partition_limit
from anabranch.controller.resize import goal, view
from anabranch.ordered_resize import judgement
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from anabranch.runtime.env import SetOp, ZkRequestTooLargeError
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.topic import TopicZnode

_QUEUED_MESSAGE = "The resize begins when the one before it is done:"
_TAKEN_BACK_MESSAGE = "The resize was taken back by another request."


async def create_partitions(context: Context, request: CreatePartitionsRequest, version: int) -> Outcome:
    """Raises ``ControllerMovedError``, ``ImageStaleError``."""
    named = Counter(topic.name for topic in request.topics)
    results: list[CreatePartitionsTopicResult] = []
    waits: list[Wait] = []
    for name in named:
        wanted = next(topic for topic in request.topics if topic.name == name)
        result = CreatePartitionsTopicResult(name=name)
        results.append(result)
        try:
            if named[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The topic is named more than once in the request.")
            topic = _existing(context, name)
            if request.validate_only and wanted.wants_measured:
                appended_bytes.describe(context, topic, result)
                continue
            setting = goal.setting_of(context, topic)
            asked = _judged(context, topic, wanted, setting)
            _check_fits(context, topic, asked)
            if stock_producers.concerned_by(topic, wanted.count):
                stock_producers.ask(context, topic)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        if request.validate_only:
            waits += _dry(topic, wanted.count, asked, setting, result)
            continue
        advice = judgement.advice(topic.znode, asked, setting)
        if asked != topic.znode:
            await goal.write(context, topic, asked)
        if asked.wanted == wanted.count:
            result.error_message = _lines(f"{_QUEUED_MESSAGE} {view.unfinished(topic)}.", advice)
        else:
            waits.append(Wait(_resized(topic, wanted.count, advice, result), result))
    return Outcome(CreatePartitionsResponse(results=results), waits, request.timeout_ms)


def _judged(
    context: Context, topic: TopicImage, wanted: CreatePartitionsTopic, setting: judgement.Setting
) -> TopicZnode:
    """The znode that the request leads to. Raises ``KafkaError``."""
    snapshot = view.snapshot_of(context.image, topic)
    verdict = judgement.judge_request(snapshot, wanted.count, setting, _given(context, topic, wanted))
    if verdict.topic is None:
        raise KafkaError(verdict.code, verdict.why)
    return verdict.topic


def _dry(
    topic: TopicImage, count: int, asked: TopicZnode, setting: judgement.Setting, result: CreatePartitionsTopicResult
) -> list[Wait]:
    """What a request would be answered, and which advice it waits for."""
    advice = judgement.advice(topic.znode, asked, setting)
    if in_the_way := view.dry_run(topic, asked, count):
        result.error_message = _lines(in_the_way, advice)
    elif stock_producers.concerned_by(topic, count):
        return [AdviceWait(_advised(topic, count, advice, result), result)]
    else:
        result.error_message = _lines(advice)
    return []


def _lines(*advice: str | None) -> str | None:
    """Each on a line of its own."""
    return "\n".join(line for line in advice if line) or None


def _check_fits(context: Context, topic: TopicImage, asked: TopicZnode) -> None:
    try:
        context.store.check_fits([SetOp(paths.topic(topic.name), asked.encode(), topic.version)])
    except ZkRequestTooLargeError as error:
        message = f"{len(asked.partitions)} partitions of {topic.name} are too many: {error}."
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message) from error


def _resized(
    asked: TopicImage, count: int, advice: str, result: CreatePartitionsTopicResult
) -> Callable[[Context], bool]:
    """Holds once every leader has the layout; or never will, for the topic is being deleted, which the result says."""

    version = asked.znode.layout_version

    def condition(context: Context) -> bool:
        topic = context.image.topics.get(asked.name)
        if topic is None:
            return False  # also while the cluster is read again
        if topic.czxid != asked.czxid or asked.name in context.image.deletions:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            result.error_message = f"The topic '{asked.name}' was deleted before it was resized."
            return True
        if topic.znode.layout_version != version:
            return _is_followed(topic, version, count, result)
        if topic.znode.undeleted_partition_count != count or not view.is_settled(topic):
            return False
        result.error_message = _lines(advice, stock_producers.warning(context, topic, count))
        return is_ready(asked.name, context)

    return condition


def _is_followed(topic: TopicImage, version: int, count: int, result: CreatePartitionsTopicResult) -> bool:
    """Another resize begins once this one is done, or takes it back, which the result says."""
    znode = topic.znode
    is_back = znode.previous_undeleted_partition_count == znode.undeleted_partition_count != count
    if znode.layout_version == version + 1 and is_back:
        result.error_code, result.error_message = ErrorCode.POLICY_VIOLATION, _TAKEN_BACK_MESSAGE
    return True


def _advised(
    asked: TopicImage, count: int, advice: str, result: CreatePartitionsTopicResult
) -> Callable[[Context], bool]:
    """Holds once every broker has said who writes to the topic; the result then says whom the count would concern."""

    def condition(context: Context) -> bool:
        topic = context.image.topics.get(asked.name)
        if topic is None:
            return True
        if not stock_producers.have_reported(context, topic):
            return False
        result.error_message = _lines(advice, stock_producers.warning(context, topic, count))
        return True

    return condition


def _existing(context: Context, name: str) -> TopicImage:
    topic = context.image.topics.get(name)
    if name in context.image.malformed:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"The znode of topic '{name}' cannot be read.")
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    if name in context.image.deletions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' is being deleted.")
    return topic


def _given(context: Context, topic: TopicImage, wanted: CreatePartitionsTopic) -> dict[int, list[int]] | None:
    """The replicas that the request names for new partitions; None: it leaves them to the controller.

    Raises ``KafkaError``.
    """
    if wanted.assignments is None:
        return None
    current = len(topic.znode.partitions)
    added = wanted.count - current
    if added <= 0:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "No partition is new, so no assignments are needed.")
    if len(wanted.assignments) != added:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Increasing the number of partitions by {added} but {len(wanted.assignments)} assignments provided.",
        )
    given = {current + index: list(entry.broker_ids) for index, entry in enumerate(wanted.assignments)}
    check_assignment(context, given, current)
    factor = len(topic.replicas(0))
    if any(len(replicas) != factor for replicas in given.values()):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Existing partitions have {factor} replicas; so must new ones."
        )
    check_partition_limit(context, topic.name, added)
    return given
