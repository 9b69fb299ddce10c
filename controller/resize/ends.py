"""Where a partition that is marked for deletion ends: asked of its leader, written as ``sealed_offset``.

The leader takes no more records once it has acknowledged the layout that marks it, so its log end stays; the partition
can be sealed there once the high watermark has reached it (hole 7). Each leader after that is asked again: an unclean
election may have lost records below the seal, which is then lowered, or consumers would wait for ever (hole 15).
"""

from __future__ import annotations

import logging
from typing import cast

from controller import list_offsets
from controller.context import Context
from controller.events import BrokerAnswered, ResizesDue
from controller.image import Ending, OffsetQuestion, PartitionImage, TopicImage
from controller.partitions import StateChange, write_states
from controller.resize import plan
from protocol.errors import ErrorCode
from protocol.generated.list_offsets import ListOffsetsRequest
from protocol.types import TopicPartition
from zk_schemas.partition_state import Layout

_log = logging.getLogger(__name__)
MAX_LOOKS = 2
"""So often the drain's look at marked partitions finds one that could be sealed while others are waited for."""


def ask(context: Context, topic: TopicImage) -> None:
    """Ask the leaders of marked partitions what has to be known next of each."""
    layout = Layout(topic.znode.undeleted_partition_count, topic.znode.layout_version)
    settled = plan.all_sealed(topic) and plan.survivors_told(topic)
    for index in plan.marked(topic):
        partition = topic.partitions[index]
        state = partition.state
        assert state is not None
        if not topic.told(index) or (state.sealed_offset < 0 and topic.layout(index) != layout):
            continue
        ending = ending_of(partition)
        question = _next_question(ending, state.sealed_offset, settled)
        if question is not None and question not in ending.asked:
            ending.asked.add(question)
            context.batch.ask(state.leader, TopicPartition(topic.name, index), question)


def seals(topic: TopicImage, controller_epoch: int) -> list[plan.Change]:
    """Shrink, the end of step 2: each marked partition is sealed where its leader said that it ends.

    All at once: what each write has brokers told delays the orders for the survivors, which is when producers go on.
    For a partition without a leader, which cannot say, nobody is kept waiting, nor for long for one that lags.
    """
    led = [(index, state) for index in plan.marked(topic) if (state := topic.state(index)) and state.leader >= 0]
    unsealed = [(index, state, ending_of(topic.partitions[index])) for index, state in led if state.sealed_offset < 0]
    is_whole = all(ending.confirmed for _, _, ending in unsealed)
    return [
        plan.Change(index, state.replace(sealed_offset=ending.end_offset, controller_epoch=controller_epoch))
        for index, state, ending in unsealed
        if ending.confirmed and (is_whole or ending.looks >= MAX_LOOKS)
    ]


def ending_of(partition: PartitionImage) -> Ending:
    """What the present leader said; blank after a leader change."""
    assert partition.state is not None
    if partition.ending is None or partition.ending.leader_epoch != partition.state.leader_epoch:
        partition.ending = Ending(partition.state.leader_epoch)
    return partition.ending


def ask_again(context: Context) -> None:
    """Let what leaders could not say yet be asked once more."""
    for ending in _endings(context):
        ending.asked.clear()


def look_again(context: Context) -> None:
    """As ``ask_again``, for log starts that have not reached the seal and replicas that could not be deleted too."""
    for ending in _endings(context):
        ending.looks += ending.confirmed
        ending.asked.clear()
        ending.stop_sent.clear()
        ending.log_start_offset = -1


def _endings(context: Context) -> list[Ending]:
    image = context.image
    marked = (topic.partitions[index] for topic in image.topics.values() for index in plan.marked(topic))
    return [partition.ending for partition in marked if partition.ending is not None]


async def on_offsets_answered(context: Context, event: BrokerAnswered) -> None:
    """Take in what leaders said. Raises ``ControllerMovedError``, ``ImageStaleError``."""
    request = cast(ListOffsetsRequest, event.request)
    question = _question(request)
    epochs = {
        TopicPartition(topic.name, asked.partition_index): asked.current_leader_epoch
        for topic in request.topics
        for asked in topic.partitions
    }
    changes, learnt = list[tuple[StateChange, int]](), False
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
            ending = ending_of(partition)
            if found.error_code != ErrorCode.NONE:
                _log.info(
                    "%s: broker %s does not know its %s: error %s", tp, state.leader, question.value, found.error_code
                )
                context.events.soon()
                continue
            if question is OffsetQuestion.WATERMARK and not 0 <= ending.end_offset <= found.offset:
                context.events.soon()
                continue
            learnt = True
            ending.asked.discard(question)
            change = _take(context, tp, partition, question, found.offset)
            if change is not None:
                changes.append((change, state.sealed_offset))
    refused = await write_states(context, [change for change, _ in changes])
    for change, sealed_offset in changes:
        if change.tp in refused:
            continue
        _log.warning(
            "resize: topic=%s step=seal-lowered partitions=%s sealed=%s end=%s",
            *(*change.tp, sealed_offset, change.state.sealed_offset),
        )
    if learnt:
        context.events.put(ResizesDue())


def _question(request: ListOffsetsRequest) -> OffsetQuestion:
    if request.replica_id >= 0:
        return OffsetQuestion.END
    timestamps = [asked.timestamp for topic in request.topics for asked in topic.partitions]
    return OffsetQuestion.WATERMARK if timestamps[:1] == [list_offsets.LATEST] else OffsetQuestion.START


def _next_question(ending: Ending, sealed_offset: int, settled: bool) -> OffsetQuestion | None:
    if ending.end_offset < 0:
        return OffsetQuestion.END
    if sealed_offset < 0:
        return None if ending.confirmed else OffsetQuestion.WATERMARK
    if settled and ending.log_start_offset < 0:
        return OffsetQuestion.START
    return None


def _take(
    context: Context, tp: TopicPartition, partition: PartitionImage, question: OffsetQuestion, offset: int
) -> StateChange | None:
    """Remember an answer; the change of state it calls for, or None."""
    state, ending = partition.state, ending_of(partition)
    assert state is not None
    if question is OffsetQuestion.START:
        ending.log_start_offset = offset
        return None
    if question is OffsetQuestion.WATERMARK:
        ending.confirmed |= state.sealed_offset < 0
        return None
    ending.end_offset = offset
    if 0 <= state.sealed_offset <= offset:
        ending.confirmed = True
    if state.sealed_offset <= offset:
        return None
    ending.confirmed = True
    return StateChange(tp, state.replace(sealed_offset=offset, controller_epoch=context.image.controller_epoch))
