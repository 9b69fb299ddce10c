"""Makes the answer to TopicReaders: the groups of every loaded partition, in pieces.

Each group is answered as of its own time. That time is not before the leadership of its partition was confirmed, which
is the age of the answer. So a group that is counted meanwhile may be missing: it begins to read only when the leaders
use this answer no more (``readers``). A partition that this broker stops coordinating meanwhile is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import structlog

from anabranch.broker.coordinator import readers
from anabranch.broker.coordinator.broker_services import Topics
from anabranch.broker.coordinator.loaded_partition import LoadedPartition
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.topic_readers import (
    TopicReadersRequest,
    TopicReadersRequestTopic,
    TopicReadersResponse,
    TopicReadersResponseCoordinator,
    TopicReadersResponseGroup,
    TopicReadersResponseTopic,
)

logger = structlog.get_logger(__name__)

ITEMS_AT_ONCE = 256
"""The topics, groups and partitions of groups between two pauses. Each takes up to 30 us."""
PARTITION_BYTES = 15
GROUP_BYTES = 16
"""The least bytes of an item in the answer; a group has its name, too."""


class Confirmed(NamedTuple):
    """A partition of the offsets topic, and a time (monotonic ms) at which this broker certainly led it."""

    number: int
    loaded: LoadedPartition
    confirmed_ms: int


class ReaderQuestion(NamedTuple):
    """The question, and how it is answered.

    Without ``knows_positions``, members cannot report their positions. ``most_bytes``: ``socket.response.max.bytes``.
    """

    request: TopicReadersRequest
    topics: Topics
    knows_positions: bool
    now_ms: Callable[[], int]
    most_bytes: int


def answer_in_steps(asked: ReaderQuestion, parts: Sequence[Confirmed]) -> Generator[None, None, TopicReadersResponse]:
    """Yields after every ``ITEMS_AT_ONCE`` items. An answer that would be too large is MESSAGE_TOO_LARGE instead."""
    work = _Work(asked.most_bytes)
    response = TopicReadersResponse()
    for topic in asked.request.topics:
        response.topics.append(TopicReadersResponseTopic(name=topic.name))
        if work.count(1):
            yield
    for part in parts:
        found = yield from _groups_of(part.loaded, asked, work)
        if work.is_too_large:
            logger.warning("topic_readers.too_large", most_bytes=asked.most_bytes, config="socket.response.max.bytes")
            return TopicReadersResponse(error_code=ErrorCode.MESSAGE_TOO_LARGE)
        if found is None:
            continue
        age_ms = asked.now_ms() - part.confirmed_ms
        response.coordinators.append(
            TopicReadersResponseCoordinator(partition_index=part.number, confirmed_ms_ago=age_ms)
        )
        for at, groups in found.items():
            response.topics[at].groups += groups
            if work.count(1):
                yield
    return response


def _groups_of(
    loaded: LoadedPartition, asked: ReaderQuestion, work: _Work
) -> Generator[None, None, dict[int, list[TopicReadersResponseGroup]] | None]:
    """The groups of one partition, by the number of the topic; None if this broker does not coordinate it any more."""
    found: dict[int, list[TopicReadersResponseGroup]] = {}
    for at, topic in enumerate(asked.request.topics):
        if loaded.is_closed:
            return None
        named = asked.request.group_ids
        for group_id in readers.candidates(loaded.turn(), topic, named):
            if loaded.is_closed:
                return None
            group = _group(loaded, group_id, topic, asked)
            items = 1
            if group is not None:
                found.setdefault(at, []).append(group)
                items += len(topic.questions or topic.partition_indexes)
                work.left_bytes -= GROUP_BYTES + len(group_id) + PARTITION_BYTES * len(group.partitions)
                if work.is_too_large:
                    return None
            if work.count(items):
                yield
        if work.count(1):
            yield
    return None if loaded.is_closed else found


def _group(
    loaded: LoadedPartition, group_id: str, topic: TopicReadersRequestTopic, asked: ReaderQuestion
) -> TopicReadersResponseGroup | None:
    turn = loaded.turn()
    if topic.questions:
        found = readers.for_controller(turn, group_id, topic, asked.topics, knows_positions=asked.knows_positions)
    else:
        found = readers.for_leader(turn, group_id, topic, asked.topics)
    if found is not None:
        loaded.carry_out(turn, group_id)
    return found


class _Work:
    """The items until the next pause, and the bytes that the answer may still take."""

    def __init__(self, most_bytes: int) -> None:
        self.left_bytes = most_bytes
        self._items = 0

    @property
    def is_too_large(self) -> bool:
        return self.left_bytes < 0

    def count(self, items: int) -> bool:
        """Count items; returns whether it is time for a pause."""
        self._items += items
        if self._items < ITEMS_AT_ONCE:
            return False
        self._items = 0
        return True
