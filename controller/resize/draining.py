"""Emptying partitions marked for deletion once every group has read them: topic key ``delete.records.when.drained``.

Compacted topics and topics whose records never expire could not shrink otherwise (hole 23). A group counts that has
committed an offset of the topic or has a member that subscribes to it; at least one must. Whatever cannot be learnt of
the groups, a coordinator that is loading or away, puts the deletion off to the next round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.context import Context
from controller.image import ClusterImage, OffsetQuestion, TopicImage
from controller.resize import plan
from controller.resize.checks import DRAIN_KEY
from controller.resize.groups import BrokerLink, Group, UnknownGroupsError, has_processed, read_groups, readers
from controller.topic_config import topic_values
from protocol.errors import KafkaError
from protocol.generated.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from protocol.types import TopicPartition

_log = logging.getLogger(__name__)
_REPLICAS_ANSWER_WITHIN_MS = 5_000


@dataclass(frozen=True, slots=True)
class Leftover:
    """A sealed partition with records in it."""

    tp: TopicPartition
    leader: int
    incarnation: int
    sealed_offset: int


def leftovers(topic: TopicImage) -> list[Leftover]:
    """Sealed partitions that still have records, of a topic whose survivors have all answered."""
    if not plan.all_sealed(topic) or not plan.survivors_told(topic):
        return []
    found = []
    for index in plan.marked(topic):
        partition = topic.partitions[index]
        state, ending = partition.state, partition.ending
        if state is None or ending is None or not topic.told(index) or OffsetQuestion.START in ending.asked:
            continue
        if 0 <= ending.log_start_offset < state.sealed_offset:
            tp = TopicPartition(topic.name, index)
            found.append(Leftover(tp, state.leader, partition.incarnation, state.sealed_offset))
    return found


async def read_by_all(link: BrokerLink, image: ClusterImage, groups: Sequence[Group], leftover: Leftover) -> bool:
    """Whether some group reads the topic, and each that does is done with the partition."""
    reading = readers(groups, leftover.tp.topic)
    for group in reading:
        done = await has_processed(link, image, group, leftover.tp, leftover.incarnation, leftover.sealed_offset)
        if not done:
            return False
    return bool(reading)


async def drain(current: Callable[[], Context], link: BrokerLink) -> None:
    """One round: have what every group has read deleted. Raises ``ControllerMovedError``.

    Asking takes time, and ``current`` knows what was decided meanwhile: of what was left over something may be gone,
    and another partition of its name there.
    """
    left = await _left(current())
    if not left:
        return
    try:
        groups = await read_groups(link, lambda: current().image)
        for leftover in left:
            if not await read_by_all(link, current().image, groups, leftover):
                continue
            await current().store.confirm_office()
            image = current().image
            topic, leader = image.topics.get(leftover.tp.topic), image.brokers.get(leftover.leader)
            if topic is None or leader is None or topic.name in image.deletions or leftover not in leftovers(topic):
                continue
            answer = (await link.ask(leader, (_deletion(leftover), None)))[0]
            error = answer.topics[0].partitions[0].error_code
            end = leftover.sealed_offset
            _log.info("resize: topic=%s step=drained partitions=%s end=%s error=%s", *leftover.tp, end, error)
    except (OSError, KafkaError, UnknownGroupsError) as error:
        _log.info("drained partitions are looked for again: %s", error)


async def _left(context: Context) -> list[Leftover]:
    image, left = context.image, []
    for name in sorted(image.topics):
        of_topic = leftovers(image.topics[name]) if name not in image.deletions else []
        if of_topic and (await topic_values(context, name))[DRAIN_KEY]:
            left += of_topic
    return left


def _deletion(leftover: Leftover) -> DeleteRecordsRequest:
    asked = DeleteRecordsPartition(partition_index=leftover.tp.partition, offset=leftover.sealed_offset)
    topics = [DeleteRecordsTopic(name=leftover.tp.topic, partitions=[asked])]
    return DeleteRecordsRequest(topics=topics, timeout_ms=_REPLICAS_ANSWER_WITHIN_MS)
