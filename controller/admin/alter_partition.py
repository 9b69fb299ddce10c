"""AlterPartition (56): a leader asks for another ISR of partitions that it leads (KIP-497).

The request changes the ISR and keeps the leader epoch. The response has the new partition epoch for the leader;
UpdateMetadata has it for all other brokers. The controller responds after the write. If there is nothing to write, the
controller first confirms that it is still in office. A replaced controller that has not noticed this may only answer
NOT_CONTROLLER (KAFKA-14154). The controller compares the epochs before it judges the ISR. So INVALID_REQUEST or
INELIGIBLE_REPLICA proves to the leader that its epochs are the stored epochs.

A leader whose disk is full resigns: it asks for an ISR without itself (docs/adr/0025). The controller elects a member
of that ISR, and every replica gets the new leader epoch by LeaderAndIsr.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.controller import leader_selection
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.image import ClusterImage, PartitionImage
from anabranch.controller.outcome import Outcome
from anabranch.controller.reassignment import is_due
from anabranch.controller.state_writes import StateChange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
    PartitionData,
)
from anabranch.protocol.sentinels import NO_EPOCH
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import PartitionState


def alter_partition(context: Context, request: AlterPartitionRequest, version: int) -> Decisions[Outcome]:
    """Raises ``ControllerMovedError``, ``ImageStaleError``."""
    effects = decide(context.image, request)
    response: AlterPartitionResponse = effects.response
    refused = yield effects
    for topic in response.topics if refused else ():
        topic.partitions = [
            AlterPartitionResponsePartitionData(
                partition_index=answer.partition_index, error_code=ErrorCode.UNKNOWN_SERVER_ERROR
            )
            if TopicPartition(topic.name, answer.partition_index) in refused
            else answer
            for answer in topic.partitions
        ]
    return Outcome(response)


def decide(image: ClusterImage, request: AlterPartitionRequest) -> Effects:
    """The effects of a request. ``response`` has the states and versions of the partitions once they are written."""
    broker = image.brokers.get(request.broker_id)
    if broker is None or request.broker_epoch < broker.epoch:
        response = AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        return Effects(confirms_office=True, response=response)
    errors: dict[TopicPartition, ErrorCode] = {}
    changes: dict[TopicPartition, StateChange] = {}
    for topic in request.topics:
        for asked in topic.partitions:
            tp = TopicPartition(topic.name, asked.partition_index)
            errors[tp], change = _judged(image, tp, request.broker_id, asked)
            if change is not None:
                changes[tp] = change
    answers = {tp: _answer(image, tp, error, changes.get(tp)) for tp, error in errors.items()}
    response = AlterPartitionResponse(
        topics=[
            AlterPartitionResponseTopicData(
                name=topic.name,
                partitions=[answers[TopicPartition(topic.name, asked.partition_index)] for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )
    return Effects(independent=list(changes.values()), confirms_office=True, response=response)


def _judged(
    image: ClusterImage, tp: TopicPartition, sender: int, asked: PartitionData
) -> tuple[ErrorCode, StateChange | None]:
    """The error code, and the change to write: None if the request is refused or the ISR is stored already."""
    found = None if tp.topic in image.deletions else image.partition(tp)
    if found is None or found.state is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    topic, state, isr = image.topics[tp.topic], found.state, list(asked.new_isr)
    replicas = topic.replicas(tp.partition)
    eligible = {id: broker.epoch for id, broker in image.electable(tp).items()}
    error = judge(found, replicas, eligible, sender, asked)
    if error != ErrorCode.NONE:
        return error, None
    completes = is_due(topic, tp.partition, isr)
    if resigns(state, sender, asked):
        changed = leader_selection.resigned(state, replicas, eligible, isr, image.controller_epoch)
        if changed is None:
            return ErrorCode.INELIGIBLE_REPLICA, None
        return ErrorCode.NONE, StateChange(tp, changed, completes=completes)
    if isr == state.isr:
        return ErrorCode.NONE, None
    changed = state.replace(isr=isr, controller_epoch=image.controller_epoch)
    return ErrorCode.NONE, StateChange(tp, changed, isr_only=True, completes=completes)


def judge(
    partition: PartitionImage, replicas: Sequence[int], eligible: Mapping[int, int], sender: int, asked: PartitionData
) -> ErrorCode:
    """NONE if the ISR may be written, or if it is stored already and the same leader repeats the request.

    ``eligible`` maps the brokers that may join the ISR to their broker epochs. A replica that registered again since
    its fetch may not join, because its log may have lost records (KIP-903).
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
        if replica not in eligible or epochs.get(replica, NO_EPOCH) not in (NO_EPOCH, eligible[replica]):
            return ErrorCode.INELIGIBLE_REPLICA  # KAFKA-14140, KIP-903
    return ErrorCode.NONE


def resigns(state: PartitionState, sender: int, asked: PartitionData) -> bool:
    """Whether the leader asks for an ISR without itself, so that another member of the ISR leads."""
    return sender == state.leader and sender not in asked.new_isr


def _answer(
    image: ClusterImage, tp: TopicPartition, error: ErrorCode, change: StateChange | None
) -> AlterPartitionResponsePartitionData:
    """The answer for a partition after ``change``, if there is a change, is written."""
    answer = AlterPartitionResponsePartitionData(partition_index=tp.partition, error_code=error)
    found = image.partition(tp)
    if error == ErrorCode.NONE and found is not None and found.state is not None:
        state = found.state if change is None else change.state
        answer.leader_id, answer.leader_epoch, answer.isr = state.leader, state.leader_epoch, list(state.isr)
        answer.current_isr_version = found.epoch if change is None else found.epoch + 1
    return answer
