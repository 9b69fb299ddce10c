"""Empties partitions marked for deletion once every group has read them, if the topic's configs allow it (``Marked``).

Without draining, topics whose records never expire could not shrink (hole 23). A compacted topic keeps its marked
partitions, unless ``delete.latest.values.when.drained`` is true. A group counts if it has committed an offset of the
topic or has a member that subscribes to the topic. There must be at least one such group. If a fact is missing, the
deletion waits for the next round. While a coordinator is loading or unavailable, all partitions wait. While a group is
in a rebalance, every partition that the group may read waits, even if the group has committed the partition's end.

If retention has emptied a partition, its owners are asked before it is removed: they may have received records that
they have not flushed yet. ``ordered_resize.removal`` decides both.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple

import structlog

from anabranch.controller import view
from anabranch.controller.context import Context
from anabranch.controller.events import PartitionProcessed, ReplicasBehind
from anabranch.controller.image import ClusterImage, Leftover, OffsetQuestion, TopicImage
from anabranch.controller.resize.readers import IncarnationQuestion, ask_all, ask_one
from anabranch.controller.resize.waits import Round
from anabranch.controller.topic_config import topic_values
from anabranch.ordered_resize import explain
from anabranch.ordered_resize.delete_when_drained import Marked
from anabranch.ordered_resize.explain import Wait
from anabranch.ordered_resize.progress import Pair, ReadProgress, facts_of
from anabranch.ordered_resize.reader_answers import ReadingGroup, live_reports_count, reader_of, wanted_reports_count
from anabranch.ordered_resize.removal import drain_wait, removal_wait
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.progress_reader import ProgressReader

logger = structlog.get_logger(__name__)
_REPLICAS_ANSWER_WITHIN_MS = 5_000


class AskedLeftover(NamedTuple):
    """A leftover about which groups are asked; ``log_start_offset`` is from its leader."""

    of: Leftover
    log_start_offset: int

    @property
    def tp(self) -> TopicPartition:
        return self.of.tp

    @property
    def is_empty(self) -> bool:
        return self.log_start_offset >= self.of.end_offset

    @property
    def question(self) -> IncarnationQuestion:
        return IncarnationQuestion(self.tp, self.of.incarnation, 0 if self.is_empty else self.of.end_offset)

    def wait(self, groups: Sequence[ReadingGroup]) -> Wait | None:
        """The wait for one of the groups; None if they are all done with the partition."""
        pair = Pair(self.tp.partition, self.of.leader_epoch)
        facts = facts_of(pair, self.log_start_offset, self.of.end_offset)
        reports = live_reports_count if self.is_empty else wanted_reports_count
        readers = [reader_of(group, reports, only=self.tp.partition) for group in groups]
        decide = removal_wait if self.is_empty else drain_wait
        return decide(ReadProgress(facts, readers), pair)


def leftovers(topic: TopicImage, partitions: Container[int] | None = None) -> list[AskedLeftover]:
    """Draining partitions that have records, or that groups may not have processed; ``partitions`` limits them."""
    found = []
    for index in view.drainable(topic, partitions):
        left, ending = view.leftover(topic, index), topic.partitions[index].ending
        if left is None or ending is None:
            continue
        if view.is_empty(topic, index):
            is_left = not view.is_processed(topic, index)
        else:
            is_left = OffsetQuestion.START not in ending.asked and 0 <= ending.log_start_offset < ending.end_offset
        if is_left:
            found.append(AskedLeftover(left, ending.log_start_offset))
    return found


def standing(image: ClusterImage, topic: TopicImage) -> dict[int, Wait]:
    """The waits of marked partitions for anything but groups: for a merge, a leader, or brokers with replicas."""
    found: dict[int, str] = {}
    merge = "" if view.snapshot_of(image, topic).is_stored else explain.for_merge(view.unfinished(topic))
    for index in view.marked(topic):
        state = topic.state(index)
        if state is not None and state.being_removed:
            away = sorted(replica for replica in topic.replicas(index) if replica not in image.brokers)
            if away:
                found[index] = explain.for_replicas(away)
        elif merge:
            found[index] = merge
        elif topic.znode.wanted is not None and index < topic.znode.wanted:
            found[index] = explain.for_grow(topic.znode.wanted)
        elif state is not None and state.leader < 0:
            found[index] = explain.A_LEADER
    return {index: Wait(on=index, why=why) for index, why in found.items()}


def waits_after(image: ClusterImage, before: Mapping[TopicPartition, Wait], found: Round) -> dict[TopicPartition, Wait]:
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
        self._groups: dict[TopicPartition, ReadingGroup] = {}

    async def still_hold(self, reader: ProgressReader, left: Sequence[AskedLeftover]) -> dict[TopicPartition, Wait]:
        """The waits of the partitions in ``left`` that still wait for the group of the last round."""
        before, self._groups = self._groups, {}
        by_coordinator: dict[int, list[AskedLeftover]] = {}
        for leftover in left:
            if leftover.tp in before:
                by_coordinator.setdefault(before[leftover.tp].coordinator, []).append(leftover)
        waits: dict[TopicPartition, Wait] = {}
        for coordinator, of_coordinator in by_coordinator.items():
            names = {before[leftover.tp].answer.group_id for leftover in of_coordinator}
            questions = [leftover.question for leftover in of_coordinator]
            groups = await ask_one(reader, coordinator, names, questions)
            for leftover in of_coordinator:
                name = before[leftover.tp].answer.group_id
                again = [group for group in groups.get(leftover.tp.topic, ()) if group.answer.group_id == name]
                if again and (wait := self.wait(leftover, again)) is not None:
                    waits[leftover.tp] = wait
        return waits

    def wait(self, leftover: AskedLeftover, groups: Sequence[ReadingGroup]) -> Wait | None:
        """The wait for one of the groups, which is remembered; None if they are all done with the partition."""
        wait = leftover.wait(groups)
        if wait is not None and wait.group:
            self._groups[leftover.tp] = next(group for group in groups if group.answer.group_id == wait.group)
        return wait


async def drain(current: Callable[[], Context], reader: ProgressReader, holders: Holders) -> Round:
    """Run one round: delete records that every group has read. The results are reported to the queue, too.

    Questions take time, so ``current`` gives the context after each question. Meanwhile a partition may be removed,
    moved or created again, and another controller may be in office. An error about one partition does not stop the
    other partitions. Raises ``ControllerMovedError``.
    """
    waits, left = _left(current())
    found = Round(waits, set())
    held = await holders.still_hold(reader, left)
    waits.update(held)
    left = [leftover for leftover in left if leftover.tp not in held]
    if not left:
        return found
    groups = await ask_all(reader, current().image, [leftover.question for leftover in left])
    for leftover in left:
        if groups.unknown:
            waits[leftover.tp] = _not_learnt(leftover, groups.unknown)
            continue
        wait = holders.wait(leftover, groups.of.get(leftover.tp.topic, ()))
        if wait is None and leftover.is_empty:
            found.processed.add(leftover.tp)
            current().events.put(PartitionProcessed(leftover.of))
        elif wait is None:
            try:
                wait = await _delete(current, reader, leftover, found.processed)
            except (OSError, KafkaError) as error:
                wait = _not_learnt(leftover, error)
        if wait is not None:
            waits[leftover.tp] = wait
    return found


def _not_learnt(leftover: AskedLeftover, why: object) -> Wait:
    return Wait(on=leftover.tp.partition, why=explain.for_positions(why))


async def _delete(
    current: Callable[[], Context], reader: ProgressReader, leftover: AskedLeftover, processed: set[TopicPartition]
) -> Wait | None:
    """Delete the records, if nothing has changed since the questions. Returns the wait for a broker that refuses.

    If the records are deleted, the partition is added to ``processed``. Raises ``ControllerMovedError``, ``OSError``,
    ``KafkaError``.
    """
    await current().store.confirm_office()
    image, of = current().image, leftover.of
    if Marked.of(topic_values(image, of.tp.topic)) is not Marked.DRAINED:
        return None  # the config was altered while the groups were asked
    topic = image.topics.get(of.tp.topic)
    if (
        topic is None
        or of.leader not in image.brokers
        or topic.name in image.deletions
        or leftover not in leftovers(topic, [of.tp.partition])
    ):
        return None
    answer = await reader.ask(of.leader, _deletion(of))
    error = answer.topics[0].partitions[0].error_code
    if error == ErrorCode.REQUEST_TIMED_OUT and (behind := _behind(image, topic, of.tp.partition)):
        current().events.put(ReplicasBehind(of, behind))
        return Wait(on=of.tp.partition, why=explain.for_lagging_replicas(behind))
    if error != ErrorCode.NONE:
        return Wait(on=of.tp.partition, why=explain.for_refused_deletion(of.leader, ErrorCode.of(error).name))
    processed.add(of.tp)
    current().events.put(PartitionProcessed(of))
    topic_name, partition = of.tp
    logger.info("resize.drained", topic=topic_name, partitions=partition, end=of.end_offset)
    return None


def _behind(image: ClusterImage, topic: TopicImage, index: int) -> tuple[int, ...]:
    """The live brokers whose replicas are not in sync. The leader waits for them before it answers DeleteRecords."""
    state = topic.state(index)
    isr = state.isr if state is not None else ()
    return tuple(sorted(id for id in topic.replicas(index) if id in image.brokers and id not in isr))


def _left(context: Context) -> tuple[dict[TopicPartition, Wait], list[AskedLeftover]]:
    """The waits of partitions that must not be drained, and the leftovers of the partitions that may be drained."""
    image, waits, left = context.image, dict[TopicPartition, Wait](), list[AskedLeftover]()
    for name in sorted(image.topics):
        topic = image.topics[name]
        if name in image.deletions or topic.unreadable or topic.frozen or not view.marked(topic):
            continue
        for index, wait in standing(image, topic).items():
            waits[TopicPartition(name, index)] = wait
        values = topic_values(image, name)
        marked = Marked.of(values)
        for leftover in leftovers(topic):
            if leftover.is_empty or marked is Marked.DRAINED:
                left.append(leftover)
            else:
                waits[leftover.tp] = Wait(on=leftover.tp.partition, why=explain.for_records(marked, values))
    return waits, left


def _deletion(leftover: Leftover) -> DeleteRecordsRequest:
    asked = DeleteRecordsPartition(
        partition_index=leftover.tp.partition, offset=leftover.end_offset, leader_epoch=leftover.leader_epoch
    )
    topics = [DeleteRecordsTopic(name=leftover.tp.topic, partitions=[asked])]
    return DeleteRecordsRequest(topics=topics, timeout_ms=_REPLICAS_ANSWER_WITHIN_MS)
