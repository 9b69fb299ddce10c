"""Asks coordinators which groups may read topics, and how far they have read (TopicReaders)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from anabranch.controller.image import ClusterImage
from anabranch.controller.resize.broker_link import BrokerLink
from anabranch.ordered_resize.facts import Facts, Lineage
from anabranch.ordered_resize.progress import Pair, Reader
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.topic_readers import (
    TopicReadersRequest,
    TopicReadersRequestQuestion,
    TopicReadersRequestTopic,
    TopicReadersResponse,
    TopicReadersResponseGroup,
    TopicReadersResponsePartition,
)
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.protocol.types import TopicPartition

NOT_ASKED = -1
"""The owners of the partition are not asked for their positions."""
QUESTIONS_TOGETHER = 1_000
"""Questions in one request, if they are about several topics. A coordinator answers a request in one piece."""


class Question(NamedTuple):
    """A question about one incarnation of a partition.

    The owner is asked for its position if the group has committed ``ask_from``; 0: in any case.
    """

    tp: TopicPartition
    incarnation: int
    ask_from: int = NOT_ASKED


@dataclass(frozen=True)
class Group:
    """A group that may read a topic, as ``coordinator`` answered."""

    coordinator: int
    answer: TopicReadersResponseGroup

    @cached_property
    def partitions(self) -> Mapping[int, TopicReadersResponsePartition]:
        return {partition.partition_index: partition for partition in self.answer.partitions}


class KnownGroups(NamedTuple):
    """The groups that may read each topic. ``unknown`` is the reason why there may be more; "" if these are all."""

    of: Mapping[str, Sequence[Group]]
    unknown: str = ""


async def ask_all(link: BrokerLink, image: ClusterImage, questions: Collection[Question]) -> KnownGroups:
    """The groups that may read the topics of ``questions``.

    Groups may be missing if a coordinator is loading or does not answer. An answer proves for which partitions of the
    offsets topic the broker was the coordinator after the question.
    """
    offsets = image.topics.get(OFFSETS_TOPIC)
    found: dict[str, list[Group]] = {}
    if offsets is None:
        return KnownGroups(found)
    unknown, silent = "", set(offsets.znode.partitions)
    for broker_id in sorted(image.brokers):
        try:
            answers = await _ask(link, image, broker_id, questions)
        except (OSError, KafkaError) as error:
            unknown = unknown or str(error)
            continue
        covered = [{one.partition_index for one in answer.coordinators} for answer in answers]
        silent -= covered[0].intersection(*covered)
        for name, groups in _by_topic(broker_id, answers).items():
            found.setdefault(name, []).extend(groups)
    if silent and not unknown:
        unknown = f"{OFFSETS_TOPIC}-{min(silent)} has no coordinator that has answered"
    return KnownGroups(found, unknown)


async def ask_one(
    link: BrokerLink, image: ClusterImage, coordinator: int, group_ids: Collection[str], questions: Iterable[Question]
) -> Mapping[str, Sequence[Group]]:
    """What one coordinator answers about some of its groups, by topic; nothing if it does not answer."""
    try:
        return _by_topic(coordinator, await _ask(link, image, coordinator, questions, group_ids))
    except (OSError, KafkaError):
        return {}


def _by_topic(coordinator: int, answers: Iterable[TopicReadersResponse]) -> dict[str, list[Group]]:
    return {
        topic.name: [Group(coordinator, group) for group in topic.groups]
        for answer in answers
        for topic in answer.topics
    }


async def _ask(
    link: BrokerLink,
    image: ClusterImage,
    broker_id: int,
    questions: Iterable[Question],
    group_ids: Collection[str] = (),
) -> list[TopicReadersResponse]:
    """Raises ``OSError``, ``KafkaError``."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise ConnectionError(f"broker {broker_id} is not live")
    return await link.ask(broker, *((request, None) for request in requests(questions, group_ids)))


def requests(questions: Iterable[Question], group_ids: Collection[str]) -> list[TopicReadersRequest]:
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


Reports: TypeAlias = Callable[[TopicReadersResponsePartition], bool]
"""Whether the report of a partition's owner counts, not the commit."""


def commits_count(_partition: TopicReadersResponsePartition) -> bool:
    return False


def wanted_reports_count(partition: TopicReadersResponsePartition) -> bool:
    """A report counts if a member waits for the position, or may wait for it. Else the members keep no order."""
    return partition.need_position or partition.position >= 0


def live_reports_count(partition: TopicReadersResponsePartition) -> bool:
    """A report counts if a live member subscribes to the topic and may report."""
    return partition.is_reported


def reader_of(group: Group, is_reported: Reports, only: int | None = None) -> Reader:
    """The group as ``ordered_resize`` judges it; with ``only``, what it has read of this partition."""
    answer, partitions = group.answer, group.partitions
    if only is not None:
        partitions = {only: partitions[only]} if only in partitions else {}
    reported = {p: found.position for p, found in partitions.items() if answer.is_settled and is_reported(found)}
    commits = {p: found.committed_offset for p, found in partitions.items() if found.committed_offset >= 0}
    known = {p: position for p, position in reported.items() if position >= 0}
    unreadable = answer.unreadable_member
    return Reader(
        answer.group_id,
        positions={p: at for p, at in commits.items() if p not in reported} | known,
        reporting=frozenset(reported),
        commits=commits,
        is_reading=answer.is_reading,
        has_committed=answer.has_committed,
        is_settled=answer.is_settled,
        missing=f"a subscription of member {unreadable} that can be read" if unreadable else "",
    )


def facts_of(pair: Pair, log_start: int, end: int | None) -> Facts:
    """The facts about one partition; ``end`` is the end of the pair, None if it is not known."""
    facts = Facts()
    facts.on_lineage(pair.partition, Lineage(pair.epoch))
    facts.on_log_start(pair.partition, log_start)
    if end is not None:
        facts.on_end(pair.partition, pair.epoch, end)
    return facts
