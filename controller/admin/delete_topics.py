"""DeleteTopics (20), versions 1-6: record the wish under ``/admin/delete_topics``; the watch on it does the rest.

Version 6 names topics by name or by id. Answered once the znodes are gone and every live broker knows.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable

from anabranch.controller.admin.outcome import Outcome, Wait
from anabranch.controller.context import Context
from anabranch.controller.topic_names import name_problem
from anabranch.controller.topics import on_topics_changed
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


async def delete_topics(context: Context, request: DeleteTopicsRequest, version: int) -> Outcome:
    """Raises ``ControllerMovedError``, ``ImageStaleError``."""
    wanted = request.topics if version >= _BY_ID_FROM else [DeleteTopicState(name=name) for name in request.topic_names]
    named = Counter((topic.name, topic.topic_id) for topic in wanted)
    results, waits = [], []
    for (name, topic_id), count in named.items():
        result = DeletableTopicResult(name=name, topic_id=topic_id)
        results.append(result)
        try:
            if count > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The topic is named more than once in the request.")
            found = await _find(context, name, topic_id)
            result.name = found
            known = context.image.topics.get(found)
            if known is not None:
                result.topic_id = known.znode.topic_id
            if not context.config.delete_topic_enable:
                raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        path = paths.delete_topic(found)
        if await context.store.exists(path) is None:
            await context.store.write([CreateOp(path, DeleteTopic(found).encode())])
        waits.append(Wait(_gone(found), result))
    return Outcome(DeleteTopicsResponse(responses=results), waits, request.timeout_ms)


async def _find(context: Context, name: str | None, topic_id: uuid.UUID) -> str:
    """The topic's name. Raises ``KafkaError``."""
    if (name is None) == (topic_id == ZERO_UUID):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A topic is named by its name or by its id: by one of them.")
    if name is not None:
        if name not in context.image.topics and (problem := name_problem(name)) is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if await context.store.exists(paths.topic(name)) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        if name not in context.image.topics:
            await on_topics_changed(context)
        if name not in context.image.topics:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"The znode of topic '{name}' cannot be read.")
        return name
    for topic in context.image.topics.values():
        if topic.znode.topic_id == topic_id:
            return topic.name
    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "No topic has this id.")


def _gone(name: str) -> Callable[[Context], bool]:
    """Holds once the topic has left the image and every request sent until then is answered."""
    last_flush: int | None = None

    def condition(context: Context) -> bool:
        nonlocal last_flush
        if name in context.image.topics or name in context.image.deletions:
            return False
        if last_flush is None:
            last_flush = context.senders.last_flush
        return context.senders.acknowledged(last_flush)

    return condition
