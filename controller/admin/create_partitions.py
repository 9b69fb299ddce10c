"""CreatePartitions (37), versions 0-3: another number of partitions, more or fewer (KIP-253, Proposed Changes 2 and 3).

A larger count splits partitions, a smaller one marks the highest for deletion, as far down as the topic was created
with. Writes the longer assignment, or the smaller count, into the topic znode; the watch on it does the rest, as for an
edit by hand. Answered once every leader has the new layout; so is one that asks for what is under way already, as a
client does that lost its answer, unless it only asks whether it may. The message of an answer without error is advice:
that producers wrote to the topic lately which cannot follow the count. A topic that is only validated may ask for
what was measured of it instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from controller import appended_bytes, stock_producers
from controller.admin.create_topics import check_assignment, is_ready, rack_of_live_brokers
from controller.admin.outcome import AdviceWait, Outcome, Wait
from controller.assignment import assign_replicas
from controller.context import Context
from controller.image import TopicImage
from controller.partition_limit import check_partition_limit
from controller.resize import checks, plan
from controller.topics import on_topic_changed
from protocol.errors import ErrorCode, KafkaError
from protocol.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from runtime.env import SetOp, ZkRequestTooLargeError
from zk_schemas import paths
from zk_schemas.topic import TopicZnode

_UNDONE_MESSAGE = "The change was undone, for the topic changed at the same time: see the controller's log."


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
            is_repeated = wanted.assignments is None and checks.is_under_way(topic, wanted.count)
            if request.validate_only or not is_repeated:
                await checks.check(context, topic, wanted.count)
                asked = _asked(context, topic, wanted)
                check_partition_limit(context, name, len(asked.partitions) - len(topic.znode.partitions))
                _check_fits(context, topic, asked)
                if stock_producers.concerned_by(topic, wanted.count):
                    stock_producers.ask(context, topic)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        if request.validate_only:
            if stock_producers.concerned_by(topic, wanted.count):
                waits.append(AdviceWait(_advised(topic, wanted.count, result), result))
            continue
        if not is_repeated:
            await context.store.write([SetOp(paths.topic(name), asked.encode(), topic.version)])
            await on_topic_changed(context, name)  # now: what it was judged by may be otherwise when the watch tells
            if plan.goal(context.image.topics.get(name, topic)) != wanted.count:
                result.error_code, result.error_message = ErrorCode.POLICY_VIOLATION, _UNDONE_MESSAGE
                continue
        waits.append(Wait(_resized(topic, wanted.count, result), result))
    return Outcome(CreatePartitionsResponse(results=results), waits, request.timeout_ms)


def _check_fits(context: Context, topic: TopicImage, asked: TopicZnode) -> None:
    try:
        context.store.check_fits([SetOp(paths.topic(topic.name), asked.encode(), topic.version)])
    except ZkRequestTooLargeError as error:
        message = f"{len(asked.partitions)} partitions of {topic.name} are too many: {error}."
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message) from error


def _resized(asked: TopicImage, count: int, result: CreatePartitionsTopicResult) -> Callable[[Context], bool]:
    """Holds once every leader has the layout; or never will, for the topic is being deleted, which the result says."""

    def condition(context: Context) -> bool:
        topic = context.image.topics.get(asked.name)
        if topic is None:
            return False  # also while the cluster is read again
        if topic.czxid != asked.czxid or asked.name in context.image.deletions:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            result.error_message = f"The topic '{asked.name}' was deleted before it was resized."
            return True
        if topic.znode.undeleted_partition_count != count or not plan.is_settled(topic):
            return False
        result.error_message = stock_producers.warning(context, topic, count)
        return is_ready(asked.name, context)

    return condition


def _advised(asked: TopicImage, count: int, result: CreatePartitionsTopicResult) -> Callable[[Context], bool]:
    """Holds once every broker has said who writes to the topic; the result then says whom the count would concern."""

    def condition(context: Context) -> bool:
        topic = context.image.topics.get(asked.name)
        if topic is None:
            return True
        if not stock_producers.have_reported(context, topic):
            return False
        result.error_message = stock_producers.warning(context, topic, count)
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


def _asked(context: Context, topic: TopicImage, wanted: CreatePartitionsTopic) -> TopicZnode:
    """The znode that asks for the resize. Raises ``KafkaError``."""
    if wanted.count > topic.znode.undeleted_partition_count:
        return topic.znode.replace(partitions=topic.znode.partitions | _added(context, topic, wanted))
    if wanted.assignments:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Fewer partitions need no assignments.")
    return topic.znode.replace(undeleted_partition_count=wanted.count, layout_version=topic.znode.layout_version + 1)


def _added(context: Context, topic: TopicImage, wanted: CreatePartitionsTopic) -> dict[int, list[int]]:
    """The assignment of the new partitions. Raises ``KafkaError``."""
    current = len(topic.znode.partitions)
    added = wanted.count - current
    factor = len(topic.replicas(0))
    if wanted.assignments is not None:
        if len(wanted.assignments) != added:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Increasing the number of partitions by {added} but {len(wanted.assignments)} assignments provided.",
            )
        given = {current + index: list(entry.broker_ids) for index, entry in enumerate(wanted.assignments)}
        check_assignment(context, given, current)
        if any(len(replicas) != factor for replicas in given.values()):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Existing partitions have {factor} replicas; so must new ones."
            )
        return given
    brokers = rack_of_live_brokers(context)
    if factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {factor} larger than available brokers: {len(brokers)}.",
        )
    ids = sorted(brokers)
    first = topic.replicas(0)[0]
    start = ids.index(first) if first in brokers else 0
    return assign_replicas(brokers, added, factor, start_index=start, shift=start, first_partition=current)
