"""AlterPartition (56), version 0: a leader asks for another ISR of partitions it leads (KIP-497).

The request changes the ISR and keeps the leader epoch. The leader learns the new partition epoch from the response, all
other brokers from UpdateMetadata. The controller responds after the write. If there is nothing to write, it first
confirms that it is still in office: a controller that was replaced unnoticed may only answer NOT_CONTROLLER
(KAFKA-14154). It compares the epochs before it judges the ISR. So INVALID_REQUEST or INELIGIBLE_REPLICA proves to the
leader that nothing was written since the state it knows.

A leader that proposes the other members of its ISR resigns because its disk is full (docs/adr/0025). The controller
elects one of them, and every replica gets the new leader epoch by LeaderAndIsr.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.controller import leader_selection
from anabranch.controller.admin.outcome import Outcome
from anabranch.controller.context import Context
from anabranch.controller.events import ReassignmentsDue
from anabranch.controller.image import PartitionImage
from anabranch.controller.reassignment import is_due
from anabranch.controller.state_writes import StateChange, write_states
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
    PartitionData,
)
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import PartitionState


async def alter_partition(context: Context, request: AlterPartitionRequest, version: int) -> Outcome:
    """Raises ``ControllerMovedError``, ``ImageStaleError``."""
    image = context.image
    broker = image.brokers.get(request.broker_id)
    if broker is None or request.broker_epoch < broker.epoch:
        await context.store.confirm_office()
        return Outcome(AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    changes: dict[TopicPartition, StateChange] = {}
    answers: dict[TopicPartition, AlterPartitionResponsePartitionData] = {}
    for topic in request.topics:
        for asked in topic.partitions:
            tp = TopicPartition(topic.name, asked.partition_index)
            answer = answers[tp] = AlterPartitionResponsePartitionData(partition_index=asked.partition_index)
            found = None if tp.topic in image.deletions else image.partition(tp)
            if found is None or found.state is None:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            replicas = image.topics[tp.topic].replicas(tp.partition)
            eligible = {id: broker.epoch for id, broker in image.electable(tp).items()}
            answer.error_code = judge(found, replicas, eligible, request.broker_id, asked)
            if answer.error_code == ErrorCode.NONE and resigns(found.state, request.broker_id, asked):
                wanted = list(asked.new_isr)
                state = leader_selection.resigned(found.state, replicas, eligible, wanted, image.controller_epoch)
                if state is None:
                    answer.error_code = ErrorCode.INELIGIBLE_REPLICA
                else:
                    changes[tp] = StateChange(tp, state)
            elif answer.error_code == ErrorCode.NONE and list(asked.new_isr) != found.state.isr:
                state = found.state.replace(isr=list(asked.new_isr), controller_epoch=image.controller_epoch)
                changes[tp] = StateChange(tp, state, isr_only=True)
    for tp in await write_states(context, list(changes.values())):
        answers[tp].error_code = ErrorCode.UNKNOWN_SERVER_ERROR
        del changes[tp]
    if not changes:
        await context.store.confirm_office()
    if any(is_due(image.topics[tp.topic], tp.partition, change.state.isr) for tp, change in changes.items()):
        context.events.put(ReassignmentsDue())
    return Outcome(_response(context, request, answers))


def judge(
    partition: PartitionImage, replicas: Sequence[int], eligible: Mapping[int, int], sender: int, asked: PartitionData
) -> ErrorCode:
    """NONE if the ISR may be written, or if it is stored already and the same leader repeats the request.

    ``eligible`` maps the brokers that may join to their broker epochs. A replica that registered again since its fetch
    may not join, because its log may have lost records (KIP-903).
    """
    state = partition.state
    assert state is not None
    if sender != state.leader or asked.leader_epoch != state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    new_isr = list(asked.new_isr)
    if asked.current_isr_version < partition.epoch and new_isr == state.isr:
        return ErrorCode.NONE  # the response was lost, and the leader repeats the request
    if asked.current_isr_version != partition.epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if resigns(state, sender, asked):
        is_rest = bool(new_isr) and set(new_isr) == set(state.isr) - {sender}
        return ErrorCode.NONE if is_rest else ErrorCode.INVALID_REQUEST
    if len(set(new_isr)) != len(new_isr) or not set(new_isr) <= set(replicas):
        return ErrorCode.INVALID_REQUEST
    epochs = dict(zip(new_isr, asked.new_isr_epochs))
    for replica in new_isr:
        if replica in state.isr:
            continue
        if replica not in eligible or epochs.get(replica, -1) not in (-1, eligible[replica]):
            return ErrorCode.INELIGIBLE_REPLICA  # KAFKA-14140, KIP-903
    return ErrorCode.NONE


def resigns(state: PartitionState, sender: int, asked: PartitionData) -> bool:
    """Whether the leader asks for an ISR without itself: another member of the ISR is to lead."""
    return sender == state.leader and sender not in asked.new_isr


def _response(
    context: Context,
    request: AlterPartitionRequest,
    answers: dict[TopicPartition, AlterPartitionResponsePartitionData],
) -> AlterPartitionResponse:
    for tp, answer in answers.items():
        partition = context.image.partition(tp)
        if not answer.error_code and partition is not None and partition.state is not None:
            answer.leader_id = partition.state.leader
            answer.leader_epoch = partition.state.leader_epoch
            answer.isr = list(partition.state.isr)
            answer.current_isr_version = partition.epoch
    return AlterPartitionResponse(
        topics=[
            AlterPartitionResponseTopicData(
                name=topic.name,
                partitions=[answers[TopicPartition(topic.name, asked.partition_index)] for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )
