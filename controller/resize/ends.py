"""Asks leaders for the start and end offsets of partitions marked for deletion.

A leader that has acknowledged the marking layout takes no more records of clients. After that, only transaction markers
move its log end. Each new leader is asked again, because an unclean election may have lost records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import structlog

from anabranch.controller import view
from anabranch.controller.context import Context
from anabranch.controller.events import BrokerAnswered, PartitionProcessed, ReplicasBehind, ResizesDue
from anabranch.controller.image import Ending, Leftover, OffsetQuestion, TopicImage
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.list_offsets import ListOffsetsRequest
from anabranch.protocol.sentinels import NO_OFFSET
from anabranch.protocol.types import TopicPartition

logger = structlog.get_logger(__name__)


def ask(context: Context, topic: TopicImage) -> None:
    """Ask the leaders of draining partitions for the offsets that are not known yet."""
    for p in view.drainable(topic):
        partition = topic.partitions[p]
        assert partition.state is not None
        ending = partition.ending_of_leader()
        for question in OffsetQuestion:
            if _answer(ending, question) < 0 and question not in ending.asked:
                ending.asked.add(question)
                context.batch.ask(partition.state.leader, TopicPartition(topic.name, p), question)


def ask_again(context: Context) -> None:
    """Allow the questions that leaders could not answer yet to be repeated."""
    for ending in _endings(context):
        ending.asked.clear()


def look_again(context: Context) -> None:
    """Like ``ask_again``, but also ask for log starts again and repeat StopReplica for replicas that still exist."""
    for ending in _endings(context):
        ending.asked.clear()
        ending.stop_sent.clear()
        ending.log_start_offset = NO_OFFSET


def _endings(context: Context) -> Iterator[Ending]:
    for topic in context.image.topics.values():
        for p in view.marked(topic):
            if (ending := topic.partitions[p].ending) is not None:
                yield ending


def on_offsets_answered(context: Context, event: BrokerAnswered) -> None:
    """Store the offsets that leaders answered."""
    request = cast(ListOffsetsRequest, event.request)
    question = OffsetQuestion.END if request.replica_id >= 0 else OffsetQuestion.START
    epochs = {
        TopicPartition(topic.name, asked.partition_index): asked.current_leader_epoch
        for topic in request.topics
        for asked in topic.partitions
    }
    for answered in event.response.topics:
        for found in answered.partitions:
            tp = TopicPartition(answered.name, found.partition_index)
            partition = context.image.partition(tp)
            state = partition.state if partition is not None else None
            if (
                partition is None
                or state is None
                or tp.topic in context.image.deletions
                or (state.leader, state.leader_epoch) != (event.broker.id, epochs[tp])
            ):
                continue
            if found.error_code != ErrorCode.NONE:
                logger.info(
                    "resize.offset_unknown",
                    partition=str(tp),
                    broker=state.leader,
                    offset=question.value,
                    error=ErrorCode.of(found.error_code).name,
                )
                context.events.soon()
                continue
            ending = partition.ending_of_leader()
            ending.asked.discard(question)
            if question is OffsetQuestion.END:
                ending.end_offset = found.offset
            else:
                ending.log_start_offset = found.offset
            context.events.put(ResizesDue())


def on_partition_processed(context: Context, event: PartitionProcessed) -> None:
    """Note that every group is done with a partition, if nothing has changed since the groups were asked."""
    if (ending := _ending_of(context, event.of)) is not None:
        ending.is_processed, ending.behind = True, ()


def on_replicas_behind(context: Context, event: ReplicasBehind) -> None:
    """Note the brokers that delay a deletion of records, and ask the leader again: it may be empty."""
    if (ending := _ending_of(context, event.of)) is not None:
        ending.behind, ending.log_start_offset = event.brokers, NO_OFFSET
        context.events.put(ResizesDue())


def _ending_of(context: Context, of: Leftover) -> Ending | None:
    """The reports of the leader that was asked; None if the partition has changed since."""
    topic = context.image.topics.get(of.tp.topic)
    if topic is None or view.leftover(topic, of.tp.partition) != of:
        return None
    return topic.partitions[of.tp.partition].ending


def _answer(ending: Ending, question: OffsetQuestion) -> int:
    return ending.end_offset if question is OffsetQuestion.END else ending.log_start_offset
