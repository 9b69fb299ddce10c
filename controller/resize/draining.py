"""Empties partitions marked for deletion once every group has read them, if the topic's configs allow it (``Marked``).

Without draining, topics whose records never expire could not shrink (hole 23). A compacted topic keeps its marked
partitions, unless ``delete.latest.values.when.drained`` is true. A group counts if it has committed an offset of the
topic or has a member that subscribes to the topic. There must be at least one such group. If a fact is missing, the
deletion waits for the next round. While a coordinator is loading or unavailable, all partitions wait. While a group is
in a rebalance, every partition that the group may read waits, even if the group has committed the partition's end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import structlog

from anabranch.controller import view
from anabranch.controller.context import Context
from anabranch.controller.events import PartitionProcessed, ReplicasBehind
from anabranch.controller.image import ClusterImage, Leftover, OffsetQuestion, TopicImage
from anabranch.controller.resize import owners
from anabranch.controller.resize.groups import (
    BrokerLink,
    Group,
    UnknownGroupsError,
    read_again,
    read_groups,
    unprocessed,
)
from anabranch.controller.resize.waits import DrainWait, Round
from anabranch.controller.topic_config import topic_values
from anabranch.ordered_resize.explain import listed, named
from anabranch.ordered_resize.marked import DRAIN_KEY, LOSS_KEY, Marked, is_compacted
from anabranch.ordered_resize.resize import is_stored
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.plurals import one_or_many
from anabranch.protocol.types import TopicPartition

logger = structlog.get_logger(__name__)
_REPLICAS_ANSWER_WITHIN_MS = 5_000


def leftovers(topic: TopicImage, partitions: Container[int] | None = None) -> list[Leftover]:
    """Draining partitions that still have records; ``partitions`` limits them."""
    found = []
    for index in view.drainable(topic, partitions):
        left, ending = view.leftover(topic, index), topic.partitions[index].ending
        if left is None or ending is None:
            continue
        if OffsetQuestion.START not in ending.asked and 0 <= ending.log_start_offset < ending.end_offset:
            found.append(left)
    return found


def standing(image: ClusterImage, topic: TopicImage) -> dict[int, DrainWait]:
    """The waits of marked partitions for anything but groups: for a merge, a leader, or brokers with replicas."""
    found = {}
    merge = None if is_stored(view.snapshot_of(image, topic)) else DrainWait(f"the merge: {view.unfinished(topic)}")
    for index in view.marked(topic):
        state = topic.state(index)
        if state is not None and state.being_removed:
            away = sorted(replica for replica in topic.replicas(index) if replica not in image.brokers)
            if away:
                found[index] = DrainWait(f"brokers {listed(away)} to delete their replicas")
        elif merge is not None:
            found[index] = merge
        elif index < (topic.znode.wanted or 0):
            found[index] = DrainWait(f"the resize to {topic.znode.wanted} partitions, which counts it again")
        elif state is not None and state.leader < 0:
            found[index] = DrainWait("a leader")
    return found


def waits_after(
    image: ClusterImage, before: Mapping[TopicPartition, DrainWait], found: Round
) -> dict[TopicPartition, DrainWait]:
    """The waits of marked partitions after a round: the waits ``found`` in it, and the waits ``before`` that may go on.

    A wait for a group ends when every group has processed the partition, even before the partition is removed.
    """
    marked = {TopicPartition(name, index) for name, topic in image.topics.items() for index in view.marked(topic)}
    lasting = {
        tp: wait
        for tp, wait in before.items()
        if tp in marked - found.processed and not view.is_processed(image.topics[tp.topic], tp.partition)
    }
    return lasting | {tp: wait for tp, wait in found.waits.items() if tp in marked}


class Holders:
    """The group for which each partition waits. While the partition waits for this group, no other group is asked."""

    def __init__(self) -> None:
        self._groups: dict[TopicPartition, Group] = {}

    async def still_hold(
        self, link: BrokerLink, image: ClusterImage, left: Sequence[Leftover]
    ) -> dict[TopicPartition, DrainWait]:
        """The waits of the partitions in ``left`` that still wait for the group of the last round.

        Each group is read once.
        """
        asked: dict[str, Group | None] = {}
        waits: dict[TopicPartition, DrainWait] = {}
        before, self._groups = self._groups, {}
        for leftover in left:
            group = before.get(leftover.tp)
            if group is None:
                continue
            if group.name not in asked:
                asked[group.name] = await read_again(link, image, group)
            again = asked[group.name]
            if again is not None and again.may_read(leftover.tp.topic):
                with contextlib.suppress(OSError, KafkaError, UnknownGroupsError):  # on an error all groups are read
                    wait = await self._wait(link, image, again, leftover)
                    if wait is not None:
                        waits[leftover.tp] = wait
        return waits

    async def read_by_all(
        self, link: BrokerLink, image: ClusterImage, groups: Sequence[Group], leftover: Leftover
    ) -> DrainWait | None:
        """The wait for a group that may still read the partition; None if all groups are done with it.

        At least one group must read the topic. All groups are asked, even if it is already clear that some group has
        not read the partition. The wait for a member that never reports is as long as its session timeout, and begins
        with the first question. Because all groups are asked in the same round, these waits run at the same time.
        """
        reading = [group for group in groups if group.may_read(leftover.tp.topic)]
        found: DrainWait | None = None if reading else DrainWait("a group that reads the topic")
        for group in sorted(reading, key=lambda group: group.reads(leftover.tp.topic)):
            found = await self._wait(link, image, group, leftover) or found
        return found

    async def _wait(self, link: BrokerLink, image: ClusterImage, group: Group, leftover: Leftover) -> DrainWait | None:
        wait = await unprocessed(link, image, group, leftover.tp, leftover.incarnation, leftover.end_offset)
        if wait is not None:
            self._groups[leftover.tp] = group
        return wait


async def drain(current: Callable[[], Context], link: BrokerLink, holders: Holders) -> Round:
    """Run one round: delete records that every group has read. The results are reported to the queue, too.

    Questions take time, so ``current`` gives the context after each question. Meanwhile a partition may be removed,
    moved or created again, and another controller may be in office. An error about one partition does not stop the
    other partitions. Raises ``ControllerMovedError``.
    """
    waits, processed = await owners.confirm(current, link)
    standing_waits, left = _left(current())
    waits |= standing_waits
    held = await holders.still_hold(link, current().image, left)
    waits |= held
    left = [leftover for leftover in left if leftover.tp not in held]
    topics = {leftover.tp.topic for leftover in left}
    try:
        groups = (await read_groups(link, lambda: current().image, topics)).require_all() if left else []
    except UnknownGroupsError as error:
        return Round(waits | {leftover.tp: _not_learnt(error) for leftover in left}, processed)
    for leftover in left:
        try:
            wait = await holders.read_by_all(link, current().image, groups, leftover)
            if wait is None:
                wait = await _delete(current, link, leftover, processed)
        except (OSError, KafkaError, UnknownGroupsError) as error:
            wait = _not_learnt(error)
        if wait is not None:
            waits[leftover.tp] = wait
    return Round(waits, processed)


def _not_learnt(error: Exception) -> DrainWait:
    return DrainWait(f"the groups' positions: {error}")


async def _delete(
    current: Callable[[], Context], link: BrokerLink, leftover: Leftover, processed: set[TopicPartition]
) -> DrainWait | None:
    """Delete the records, if nothing has changed since the questions. Returns the wait for a broker that refuses.

    If the records are deleted, the partition is added to ``processed``. Raises ``ControllerMovedError``, ``OSError``,
    ``KafkaError``.
    """
    await current().store.confirm_office()
    image = current().image
    if Marked.of(topic_values(image, leftover.tp.topic)) is not Marked.DRAINED:
        return None  # the config was altered while the groups were asked
    topic, leader = image.topics.get(leftover.tp.topic), image.brokers.get(leftover.leader)
    if (
        topic is None
        or leader is None
        or topic.name in image.deletions
        or leftover not in leftovers(topic, [leftover.tp.partition])
    ):
        return None
    answer = (await link.ask(leader, (_deletion(leftover), None)))[0]
    error = answer.topics[0].partitions[0].error_code
    if error == ErrorCode.REQUEST_TIMED_OUT and (behind := _behind(image, topic, leftover.tp.partition)):
        current().events.put(ReplicasBehind(leftover, behind))
        return DrainWait(
            f"{named('broker', behind)} to delete {one_or_many(len(behind), 'its', 'their')} records: not in sync"
        )
    if error != ErrorCode.NONE:
        return DrainWait(f"broker {leader.id} to delete its records: {ErrorCode.of(error).name}")
    processed.add(leftover.tp)
    current().events.put(PartitionProcessed(leftover))
    topic_name, partition = leftover.tp
    logger.info("resize.drained", topic=topic_name, partitions=partition, end=leftover.end_offset)
    return None


def _behind(image: ClusterImage, topic: TopicImage, index: int) -> tuple[int, ...]:
    """The live brokers whose replicas are not in sync. The leader waits for them before it answers DeleteRecords."""
    state = topic.state(index)
    isr = state.isr if state is not None else ()
    return tuple(sorted(id for id in topic.replicas(index) if id in image.brokers and id not in isr))


def _left(context: Context) -> tuple[dict[TopicPartition, DrainWait], list[Leftover]]:
    """The waits of partitions that must not be drained, and the leftovers of the partitions that may be drained."""
    image, waits, left = context.image, dict[TopicPartition, DrainWait](), list[Leftover]()
    for name in sorted(image.topics):
        topic = image.topics[name]
        if name in image.deletions or topic.unreadable or topic.frozen or not view.marked(topic):
            continue
        for index, wait in standing(image, topic).items():
            waits[TopicPartition(name, index)] = wait
        of_topic = leftovers(topic)
        if not of_topic:
            continue
        values = topic_values(image, name)
        if Marked.of(values) is Marked.DRAINED:
            left += of_topic
        else:
            waits.update({leftover.tp: _keeps(values) for leftover in of_topic})
    return waits, left


def _keeps(values: Mapping[str, Any]) -> DrainWait:
    """The reason why the records of a drainable partition are not deleted."""
    if Marked.of(values) is Marked.EXPIRED:
        return DrainWait("their records to expire")
    if is_compacted(values):
        return DrainWait(f"{LOSS_KEY}=true: they have the latest values of their keys")
    return DrainWait(f"{DRAIN_KEY}=true: their records never expire")


def _deletion(leftover: Leftover) -> DeleteRecordsRequest:
    asked = DeleteRecordsPartition(
        partition_index=leftover.tp.partition, offset=leftover.end_offset, leader_epoch=leftover.leader_epoch
    )
    topics = [DeleteRecordsTopic(name=leftover.tp.topic, partitions=[asked])]
    return DeleteRecordsRequest(topics=topics, timeout_ms=_REPLICAS_ANSWER_WITHIN_MS)
