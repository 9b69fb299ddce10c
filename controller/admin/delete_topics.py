"""DeleteTopics (20): record a request under ``/admin/delete_topics``, whose watch starts the deletion.

Version 6 names topics by name or by id. The controller responds once the znodes are removed and every live broker has
acknowledged the removal.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from anabranch.controller.config import ControllerConfig
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.image import ClusterImage
from anabranch.controller.outcome import Outcome, ResponseWait, UnreadTopicError
from anabranch.controller.topic_names import name_problem
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from anabranch.protocol.types import ZERO_UUID
from anabranch.runtime.env import CreateOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.delete_topic import DeleteTopic

_BY_ID_FROM = 6


def delete_topics(
    context: Context, request: DeleteTopicsRequest, version: int, existing: set[str], requested: set[str]
) -> Decisions[Outcome]:
    """``existing`` and ``requested`` are those of ``decide``.

    Raises ``ControllerMovedError``, ``ImageStaleError``, ``UnreadTopicError``.
    """
    wanted = request.topics if version >= _BY_ID_FROM else [DeleteTopicState(name=name) for name in request.topic_names]
    named = Counter((topic.name, topic.topic_id) for topic in wanted)
    check_read(context.image, existing & {name for name, _ in named if name is not None})
    outcome = Outcome(DeleteTopicsResponse(responses=[]), [], request.timeout_ms)
    for (name, topic_id), times in named.items():
        demand = DeletionDemand(name, topic_id, is_repeated=times > 1)
        effects = decide(context.image, context.config, existing, requested, demand)
        yield effects
        outcome.response.responses.append(effects.response)
        outcome.waits.extend(effects.waits)
        if effects.writes:
            requested.add(effects.topic)
    return outcome


def check_read(image: ClusterImage, topics: Collection[str]) -> None:
    """Raise ``UnreadTopicError`` for topics that have a znode but are not in the image yet.

    The image lacks the topics' ids. It is also unknown whether the znodes can be read.
    """
    if unread := topics - image.topics.keys() - image.malformed.keys():
        raise UnreadTopicError(min(unread))


@dataclass(frozen=True, slots=True)
class DeletionDemand:
    """One topic of a request."""

    name: str | None
    topic_id: uuid.UUID = ZERO_UUID
    is_repeated: bool = False
    """Whether the request names the topic more than once."""


def decide(
    image: ClusterImage,
    config: ControllerConfig,
    existing: Collection[str],
    requested: Collection[str],
    demand: DeletionDemand,
) -> Effects:
    """The effects of a request for one topic.

    ``existing`` are the topics that have a znode. The controller has read the znodes of the existing topics that the
    request names; a znode may be malformed. ``requested`` are the topics whose deletion is recorded.
    """
    result = DeletableTopicResult(name=demand.name, topic_id=demand.topic_id)
    try:
        name = result.name = _find(image, existing, demand)
        result.topic_id = image.topics[name].znode.topic_id
        if not config.delete_topic_enable:
            raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
        return Effects(demand.name or "", response=result)
    return Effects(
        name,
        writes=[] if name in requested else [CreateOp(paths.delete_topic(name), DeleteTopic(name).encode())],
        response=result,
        waits=[ResponseWait(_gone(name), result)],
    )


def _find(image: ClusterImage, existing: Collection[str], demand: DeletionDemand) -> str:
    """The name of the topic, which is in the image. Raises ``KafkaError``."""
    name, topic_id = demand.name, demand.topic_id
    if demand.is_repeated:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The topic is named more than once in the request.")
    if (name is None) == (topic_id == ZERO_UUID):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A topic must be given by its name or by its id, not by both.")
    if name is None:
        found = next((topic.name for topic in image.topics.values() if topic.znode.topic_id == topic_id), None)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"No topic has the id {topic_id}.")
        return found
    if name not in image.topics and (problem := name_problem(name)) is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name not in existing:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    if name not in image.topics:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"The controller could not load topic '{name}': see topic.malformed or step.given_up in its log.",
        )
    return name


def _gone(name: str) -> Callable[[Context], bool]:
    """A condition that holds once the topic is not in the image and brokers have answered all earlier requests."""
    last_flush: int | None = None

    def condition(context: Context) -> bool:
        nonlocal last_flush
        if name in context.image.topics or name in context.image.deletions:
            return False
        if last_flush is None:
            last_flush = context.senders.last_flush
        return context.senders.acknowledged(last_flush)

    return condition
