"""CreatePartitions (37): resize a topic to more or fewer partitions (KIP-253, Proposed Changes 2 and 3).

A larger count splits partitions. A smaller count marks the highest partitions for deletion. The count cannot be below
the count at the topic's creation. As long as no partition has gained keys, a request for the previous count cancels the
resize. While a resize is unfinished, the controller queues another count and accepts the request at once; the latest
count wins. The controller answers any other request once every leader has the layout. A client that did not get the
response can repeat the request, and gets the same response.

The message of a response without error is advice. It has one line each for the reason why a queued count waits, for the
latest values that a compacted topic loses in marked partitions, and for recent producers that cannot follow the count.
A stock client's request for a count that stock producers cannot follow is refused if the topic has records. A dry run
can ask to be refused if such a producer wrote lately.
A dry run lists the resize in progress, the queued resize, and the resize that the request would replace. A dry run may
instead ask for the measured bytes appended to the topic, or for the counts of the last and the queued resize.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.controller import appended_bytes, stock_admin, stock_producer_reports, view
from anabranch.controller.admin.create_topics import check_assignment
from anabranch.controller.admin.resize_wait import advised, lines, resized
from anabranch.controller.config import ControllerConfig
from anabranch.controller.context import Context
from anabranch.controller.effects import AskedReport, Decisions, Effects
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.controller.outcome import AdviceWait, Outcome, ResponseWait
from anabranch.controller.partition_limit import check_partition_limit
from anabranch.controller.reads.written_topics import Written
from anabranch.controller.resize import goal
from anabranch.ordered_resize import judgement
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from anabranch.protocol.request_kinds import StockCheck
from anabranch.protocol.sentinels import NO_COUNT
from anabranch.runtime.env import ZkOp, ZkRequestTooLargeError
from anabranch.zk_schemas.topic import TopicZnode

_NOT_KNOWN = "It is not known whether the topic has records: try again later."
_QUEUED_MESSAGE = "The resize begins when the one before it is done:"
_WAITING_MESSAGE = "The resize is queued and waits:"
"""Instead, if the resize before is over: a leader has not answered its last leader epoch, or a removal has begun."""


def create_partitions(
    context: Context, request: CreatePartitionsRequest, version: int, written: Mapping[str, Written] | None = None
) -> Decisions[Outcome]:
    """``written`` is None, or for a request of a stock client the answer of ``reads/written_topics.py``.

    Raises ``ControllerMovedError``, ``ImageStaleError``.
    """
    named = Counter(topic.name for topic in request.topics)
    outcome = Outcome(CreatePartitionsResponse(results=[]), [], request.timeout_ms)
    for name, times in named.items():
        requested = next(topic for topic in request.topics if topic.name == name)
        demand = PartitionsDemand(
            requested,
            request.validate_only,
            is_repeated=times > 1,
            written="" if written is None else _evidence(context.image.topics.get(name), written.get(name)),
            spares_producers=request.stock_check == StockCheck.PRODUCERS,
        )
        effects = decide(context.image, context.config, demand, context.store.check_fits, context.clock.monotonic())
        yield effects
        outcome.response.results.append(effects.response)
        outcome.waits.extend(effects.waits)
    return outcome


def _evidence(topic: TopicImage | None, found: Written | None) -> str:
    """Why the topic counts as one with records; what was found is not known of a topic that changed since."""
    return found.why if topic and found and found.znode == topic.znode else _NOT_KNOWN


@dataclass(frozen=True, slots=True)
class PartitionsDemand:
    """A request for one topic."""

    requested: CreatePartitionsTopic
    validate_only: bool = False
    """Whether the request is a dry run, which changes nothing."""
    is_repeated: bool = False
    """Whether the request names the topic more than once."""
    written: str = ""
    """Why the topic counts as one with records, if a stock client asks; otherwise empty."""
    spares_producers: bool = False
    """Whether a dry run is refused if recent stock producers cannot follow the count."""


def decide(
    image: ClusterImage,
    config: ControllerConfig,
    demand: PartitionsDemand,
    check_fits: Callable[[Sequence[ZkOp]], None],
    now: float,
) -> Effects:
    """The effects of a request for one topic. ``check_fits`` raises ``ZkRequestTooLargeError``."""
    requested = demand.requested
    result = CreatePartitionsTopicResult(name=requested.name)
    effects = Effects(requested.name, response=result)
    try:
        topic = _existing(image, demand)
        if demand.validate_only and requested.wants_measured:
            appended_bytes.describe(topic, result, now)
            effects = replace(effects, asks=(AskedReport.APPENDED_BYTES,))
        elif demand.validate_only and requested.wants_goal:
            result.goal_count = topic.znode.undeleted_partition_count
            result.queued_count = NO_COUNT if topic.znode.wanted is None else topic.znode.wanted
        else:
            effects = _resize(image, config, topic, demand, check_fits, result)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
    return effects


def _resize(
    image: ClusterImage,
    config: ControllerConfig,
    topic: TopicImage,
    demand: PartitionsDemand,
    check_fits: Callable[[Sequence[ZkOp]], None],
    result: CreatePartitionsTopicResult,
) -> Effects:
    """The effects of a resize or of its dry run. Raises ``KafkaError``."""
    count = demand.requested.count
    setting = goal.setting_of(image, config, topic)
    verdict = judgement.judge_request(
        view.snapshot_of(image, topic), count, setting, _given(image, config, topic, demand.requested)
    )
    if verdict.topic is None:
        raise KafkaError(verdict.code, verdict.why)
    if demand.written and verdict.topic != topic.znode and (why := stock_admin.objection(image, topic, count)):
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{demand.written} {why}")
    znode, advice = verdict.topic, judgement.advice(topic.znode, verdict.topic, setting)
    becoming = goal.becoming(topic, znode, topic.version)
    try:
        check_fits(becoming.writes)
    except ZkRequestTooLargeError as error:
        message = f"{len(znode.partitions)} partitions of {topic.name} are too many: {error}."
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message) from error
    is_concerned = stock_producer_reports.concerned_by(topic, count)
    if demand.validate_only:
        waits = _dry_run(topic, znode, demand, advice, result)
    else:
        waits = _response(topic, znode, count, advice, result)
    return replace(
        Effects(topic.name) if demand.validate_only or znode == topic.znode else becoming,
        asks=(AskedReport.STOCK_PRODUCERS,) if is_concerned else (),
        response=result,
        waits=waits,
    )


def _dry_run(
    topic: TopicImage, znode: TopicZnode, demand: PartitionsDemand, advice: str, result: CreatePartitionsTopicResult
) -> list[ResponseWait]:
    """Describe the resize that a request would begin. Returns the conditions for the response."""
    count, spares = demand.requested.count, demand.spares_producers
    in_the_way = view.dry_run(topic, znode, count)
    result.error_message = lines(in_the_way, advice)
    if stock_producer_reports.concerned_by(topic, count) and (spares or not in_the_way):
        condition = advised(topic, count, result.error_message, result, spares_producers=spares)
        return [AdviceWait(condition, result)]
    return []


def _response(
    topic: TopicImage, znode: TopicZnode, count: int, advice: str, result: CreatePartitionsTopicResult
) -> list[ResponseWait]:
    """The response to a resize that begins or is queued. Returns the conditions for the response."""
    if znode.wanted == count:
        unfinished = view.unfinished(replace(topic, znode=znode))
        message = _WAITING_MESSAGE if view.is_over(topic) else _QUEUED_MESSAGE
        result.error_message = lines(f"{message} {unfinished}.", advice)
        return []
    return [ResponseWait(resized(topic, znode.layout_version, count, advice, result), result)]


def _existing(image: ClusterImage, demand: PartitionsDemand) -> TopicImage:
    name = demand.requested.name
    topic = image.topics.get(name)
    if demand.is_repeated:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The topic is named more than once in the request.")
    if name in image.malformed:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"The controller could not load topic '{name}': see topic.malformed or step.given_up in its log.",
        )
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    if name in image.deletions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' is being deleted.")
    return topic


def _given(
    image: ClusterImage, config: ControllerConfig, topic: TopicImage, requested: CreatePartitionsTopic
) -> dict[int, list[int]] | None:
    """The replicas that the request names for new partitions; None if the controller chooses them.

    Raises ``KafkaError``.
    """
    if requested.assignments is None:
        return None
    current = len(topic.znode.partitions)
    added = requested.count - current
    if added <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The request has assignments, but would add no partition."
        )
    if len(requested.assignments) != added:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Increasing the number of partitions by {added} but {len(requested.assignments)} assignments provided.",
        )
    given = {current + index: list(entry.broker_ids) for index, entry in enumerate(requested.assignments)}
    check_assignment(image, given, current)
    factor = len(topic.replicas(0))
    if any(len(replicas) != factor for replicas in given.values()):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Existing partitions have {factor} replicas; so must new ones."
        )
    check_partition_limit(image, config, topic.name, added)
    return given
