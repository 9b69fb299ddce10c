"""CreatePartitions (37): resize a topic to more or fewer partitions (KIP-253, Proposed Changes 2 and 3).

A larger count splits partitions. A smaller count marks the highest partitions for deletion. The count cannot be below
the count at the topic's creation. As long as no partition has gained keys, a request for the previous count cancels the
resize. While a resize is unfinished, the controller queues another count and accepts the request at once; the latest
count wins. The controller answers any other request once every leader has the layout. A client that did not get the
response can repeat the request, and gets the same response.

The message of a response without error is advice, with one line each for: the reason why a queued count waits; the
latest values that a compacted topic loses in marked partitions; recent producers that cannot follow the count. A dry
run lists the resize in progress, the queued resize, and the resize that the request would replace. A request that only
validates may ask for the measured bytes appended to the topic instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from anabranch.controller import appended_bytes, stock_producers, view
from anabranch.controller.admin.create_topics import check_assignment
from anabranch.controller.admin.resize_wait import advised, lines, resized
from anabranch.controller.config import ControllerConfig
from anabranch.controller.context import Context
from anabranch.controller.effects import Ask, Effects, carry_out
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.controller.outcome import AdviceWait, Outcome, ResponseWait
from anabranch.controller.partition_limit import check_partition_limit
from anabranch.controller.resize import goal
from anabranch.ordered_resize import judgement
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from anabranch.runtime.env import ZkOp, ZkRequestTooLargeError
from anabranch.zk_schemas.topic import TopicZnode

_QUEUED_MESSAGE = "The resize begins when the one before it is done:"


async def create_partitions(context: Context, request: CreatePartitionsRequest, version: int) -> Outcome:
    """Raises ``ControllerMovedError``, ``ImageStaleError``."""
    named = Counter(topic.name for topic in request.topics)
    outcome = Outcome(CreatePartitionsResponse(results=[]), [], request.timeout_ms)
    for name, times in named.items():
        wanted = next(topic for topic in request.topics if topic.name == name)
        demand = Demand(wanted, request.validate_only, is_repeated=times > 1)
        effects = decide(context.image, context.config, demand, context.store.check_fits, context.clock.monotonic())
        await carry_out(context, effects)
        outcome.response.results.append(effects.response)
        outcome.waits.extend(effects.waits)
    return outcome


@dataclass(frozen=True, slots=True)
class Demand:
    """A request for one topic."""

    wanted: CreatePartitionsTopic
    validate_only: bool = False
    is_repeated: bool = False
    """Whether the request names the topic more than once."""


def decide(
    image: ClusterImage,
    config: ControllerConfig,
    demand: Demand,
    check_fits: Callable[[Sequence[ZkOp]], None],
    now: float,
) -> Effects:
    """The effects of a request for one topic. ``check_fits`` raises ``ZkRequestTooLargeError``."""
    wanted = demand.wanted
    result = CreatePartitionsTopicResult(name=wanted.name)
    effects = Effects(wanted.name, response=result)
    try:
        topic = _existing(image, demand)
        if demand.validate_only and wanted.wants_measured:
            appended_bytes.describe(topic, result, now)
            effects = replace(effects, asks=(Ask.APPENDED_BYTES,))
        else:
            effects = _resize(image, config, topic, demand, check_fits, result)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
    return effects


def _resize(
    image: ClusterImage,
    config: ControllerConfig,
    topic: TopicImage,
    demand: Demand,
    check_fits: Callable[[Sequence[ZkOp]], None],
    result: CreatePartitionsTopicResult,
) -> Effects:
    """The effects of a resize or of its dry run. Raises ``KafkaError``."""
    wanted = demand.wanted
    setting = goal.setting_of(image, config, topic)
    given = _given(image, config, topic, wanted)
    verdict = judgement.judge_request(view.snapshot_of(image, topic), wanted.count, setting, given)
    if verdict.topic is None:
        raise KafkaError(verdict.code, verdict.why)
    asked, advice = verdict.topic, judgement.advice(topic.znode, verdict.topic, setting)
    becoming = goal.becoming(topic, asked, topic.version)
    _check_fits(topic, asked, becoming.writes, check_fits)
    is_concerned = stock_producers.concerned_by(topic, wanted.count)
    if demand.validate_only or asked == topic.znode:
        becoming = Effects(topic.name)
    waits: list[ResponseWait] = []
    if demand.validate_only and (in_the_way := view.dry_run(topic, asked, wanted.count)):
        result.error_message = lines(in_the_way, advice)
    elif demand.validate_only and is_concerned:
        waits = [AdviceWait(advised(topic, wanted.count, advice, result), result)]
    elif demand.validate_only:
        result.error_message = lines(advice)
    elif asked.wanted == wanted.count:
        unfinished = view.unfinished(replace(topic, znode=asked))
        result.error_message = lines(f"{_QUEUED_MESSAGE} {unfinished}.", advice)
    else:
        waits = [ResponseWait(resized(topic, asked.layout_version, wanted.count, advice, result), result)]
    return replace(becoming, asks=(Ask.STOCK_PRODUCERS,) if is_concerned else (), response=result, waits=waits)


def _check_fits(
    topic: TopicImage,
    asked: TopicZnode,
    writes: Sequence[ZkOp],
    check_fits: Callable[[Sequence[ZkOp]], None],
) -> None:
    try:
        check_fits(writes)
    except ZkRequestTooLargeError as error:
        message = f"{len(asked.partitions)} partitions of {topic.name} are too many: {error}."
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message) from error


def _existing(image: ClusterImage, demand: Demand) -> TopicImage:
    name = demand.wanted.name
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
    image: ClusterImage, config: ControllerConfig, topic: TopicImage, wanted: CreatePartitionsTopic
) -> dict[int, list[int]] | None:
    """The replicas that the request names for new partitions; None if the controller chooses them.

    Raises ``KafkaError``.
    """
    if wanted.assignments is None:
        return None
    current = len(topic.znode.partitions)
    added = wanted.count - current
    if added <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The request has assignments, but would add no partition."
        )
    if len(wanted.assignments) != added:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Increasing the number of partitions by {added} but {len(wanted.assignments)} assignments provided.",
        )
    given = {current + index: list(entry.broker_ids) for index, entry in enumerate(wanted.assignments)}
    check_assignment(image, given, current)
    factor = len(topic.replicas(0))
    if any(len(replicas) != factor for replicas in given.values()):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Existing partitions have {factor} replicas; so must new ones."
        )
    check_partition_limit(image, config, topic.name, added)
    return given
