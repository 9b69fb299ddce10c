"""Asks coordinators which groups may read topics, and how far they have read (TopicReaders)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from anabranch.controller.image import ClusterImage
from anabranch.ordered_resize.reader_answers import ReadingGroup
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.topic_readers import (
    TopicReadersRequest,
    TopicReadersRequestQuestion,
    TopicReadersRequestTopic,
)
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.progress_reader import Coordinated, ProgressReader

NOT_ASKED = -1
"""The owners of the partition are not asked for their positions."""
QUESTIONS_TOGETHER = 1_000
"""Questions in one request, if they are about several topics. A coordinator answers a request in one piece."""


class IncarnationQuestion(NamedTuple):
    """A question about one incarnation of a partition.

    The owner is asked for its position if the group has committed ``ask_from``; 0: in any case.
    """

    tp: TopicPartition
    incarnation: int
    ask_from: int = NOT_ASKED


class KnownGroups(NamedTuple):
    """The groups that may read each topic. ``unknown`` is the reason why there may be more; "" if these are all."""

    of: Mapping[str, Sequence[ReadingGroup]]
    unknown: str = ""


async def ask_all(
    reader: ProgressReader, image: ClusterImage, questions: Collection[IncarnationQuestion]
) -> KnownGroups:
    """The groups that may read the topics of ``questions``.

    Groups may be missing if a coordinator is loading or does not answer. An answer proves for which partitions of the
    offsets topic the broker was the coordinator after the question.
    """
    offsets = image.topics.get(OFFSETS_TOPIC)
    found: dict[str, list[ReadingGroup]] = {}
    if offsets is None:
        return KnownGroups(found)
    silent = set(offsets.znode.partitions)
    answers, errors = await reader.coordinated_by_all(sorted(image.brokers), requests(questions))
    for broker_id, answer in answers.items():
        silent -= answer.as_of.keys()
        for name, groups in _by_topic(broker_id, answer).items():
            found.setdefault(name, []).extend(groups)
    unknown = next(map(str, errors.values()), "")
    if silent and not unknown:
        unknown = f"{OFFSETS_TOPIC}-{min(silent)} has no coordinator that has answered"
    return KnownGroups(found, unknown)


async def ask_one(
    reader: ProgressReader, coordinator: int, group_ids: Collection[str], questions: Iterable[IncarnationQuestion]
) -> Mapping[str, Sequence[ReadingGroup]]:
    """What one coordinator answers about some of its groups, by topic; nothing if it does not answer."""
    try:
        return _by_topic(coordinator, await reader.coordinated(coordinator, requests(questions, group_ids)))
    except (OSError, KafkaError):
        return {}


def _by_topic(coordinator: int, answer: Coordinated) -> dict[str, list[ReadingGroup]]:
    return {name: [ReadingGroup(coordinator, group) for group in groups] for name, groups in answer.readers.items()}


def requests(questions: Iterable[IncarnationQuestion], group_ids: Collection[str] = ()) -> list[TopicReadersRequest]:
    """The requests for all questions, which must not be empty. All questions about one topic are in one request."""
    topics: dict[str, TopicReadersRequestTopic] = {}
    for (name, index), incarnation, ask_from in questions:
        topic = topics.setdefault(name, TopicReadersRequestTopic(name=name))
        topic.questions.append(
            TopicReadersRequestQuestion(partition_index=index, incarnation=incarnation, ask_from=ask_from)
        )
    found = [TopicReadersRequest(group_ids=sorted(group_ids))]
    for topic in topics.values():
        together = sum(len(one.questions) for one in found[-1].topics) + len(topic.questions)
        if found[-1].topics and together > QUESTIONS_TOGETHER:
            found.append(TopicReadersRequest(group_ids=sorted(group_ids)))
        found[-1].topics.append(topic)
    return found
