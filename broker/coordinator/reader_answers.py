"""Makes the answer to TopicReaders: the groups of every loaded partition, in pieces.

Each partition of a group is answered as of its own time. That time is not before the leadership of the group's own
partition was confirmed, which is the age of the answer. All partitions of a group are answered in one generation and
state of the group: if it changes meanwhile, its answer is begun again. So a group that is counted meanwhile may be
missing: it begins to read only when the leaders use this answer no more (``readers``). A partition that this broker
stops coordinating meanwhile is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog

from anabranch.broker.coordinator import readers
from anabranch.broker.coordinator.broker_services import Topics
from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.loaded_partition import LoadedPartition
from anabranch.broker.coordinator.outcome import Turn
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
TRIES = 3
"""A group that changed so often while it was answered in pieces is answered in one piece."""
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
        items: Sequence[Any] = list(
            {question.partition_index: question for question in topic.questions}.values()
            if topic.questions
            else dict.fromkeys(topic.partition_indexes)
        )
        for group_id in readers.candidates(loaded.turn(), topic, named):
            if loaded.is_closed:
                return None
            group = yield from _group(loaded, group_id, topic, items, asked)
            count = 1
            if group is not None:
                found.setdefault(at, []).append(group)
                count += len(items)
                work.left_bytes -= GROUP_BYTES + len(group_id) + PARTITION_BYTES * len(group.partitions)
                if work.is_too_large:
                    return None
            if work.count(count):
                yield
        if work.count(1):
            yield
    return None if loaded.is_closed else found


def _group(
    loaded: LoadedPartition,
    group_id: str,
    topic: TopicReadersRequestTopic,
    items: Sequence[Any],
    asked: ReaderQuestion,
) -> Generator[None, None, TopicReadersResponseGroup | None]:
    """The answer about one group; None if it is not among the readers, or is not coordinated here any more."""
    for tried in range(TRIES + 1):
        at_once = ITEMS_AT_ONCE if tried < TRIES else max(1, len(items))
        turn = loaded.turn()
        found: readers.GroupAnswer | None
        if topic.questions:
            found = readers.for_controller(turn, group_id, topic, asked.topics, knows_positions=asked.knows_positions)
        else:
            found = readers.for_leader(turn, group_id, topic, asked.topics)
        if found is None:
            return None
        parts = [items[first : first + at_once] for first in range(0, len(items), at_once)]
        if (yield from _is_made(loaded, turn, group_id, found, parts)):
            return found.response
        if loaded.is_closed:
            return None
    raise AssertionError(f"{group_id}: an answer of one piece cannot be interrupted")


def _is_made(
    loaded: LoadedPartition, turn: Turn, group_id: str, answer: readers.GroupAnswer, parts: Sequence[Sequence[Any]]
) -> Generator[None, None, bool]:
    """Make the answer; False if the group changed between two parts, or this broker stopped coordinating it."""
    version = _version(loaded, group_id)
    steps: list[Callable[[Turn], None]] = [
        *(partial(answer.look, items=part) for part in parts),
        answer.ask,
        *(partial(answer.add, items=part) for part in parts),
    ]
    for step in steps:
        step(turn)
        if len(parts) > 1:
            loaded.carry_out(turn, group_id)
            yield
            if loaded.is_closed or _version(loaded, group_id) != version:
                return False
            turn = loaded.turn()
    loaded.carry_out(turn, group_id)
    return True


def _version(loaded: LoadedPartition, group_id: str) -> tuple[Group, GroupState, int] | None:
    group = loaded.shard.groups.get(group_id)
    return None if group is None else (group, group.state, group.generation_id)


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
