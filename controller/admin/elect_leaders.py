"""ElectLeaders (43), versions 0-2: the first replica leads (version 0 knows only that), or any that is live (KIP-460).

An unclean election asked for here needs no config. Every partition has its own error; asked about all partitions,
those that need no election are left out. Answered once every live broker knows the new leaders.
"""

from __future__ import annotations

from controller.admin.outcome import NOT_WRITTEN_MESSAGE, Outcome, Wait
from controller.context import Context
from controller.leaders import ElectionType, chosen
from controller.partitions import Led, StateChange, write_states
from protocol.errors import ErrorCode, KafkaError
from protocol.generated.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from protocol.types import TopicPartition


async def elect_leaders(context: Context, request: ElectLeadersRequest, version: int) -> Outcome:
    """Raises ``ControllerMovedError``, ``ImageStaleError``."""
    try:
        election_type = ElectionType(request.election_type)
    except ValueError:
        return Outcome(ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST))
    known = {led[0]: led for led in context.image.led_partitions()}
    results: dict[TopicPartition, PartitionResult] = {}
    changes: list[StateChange] = []
    for tp in dict.fromkeys(_asked(request, known)):
        result = PartitionResult(partition_id=tp.partition)
        try:
            changes.append(_elect(context, tp, known, election_type))
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
            if request.topic_partitions is None and error.code == ErrorCode.ELECTION_NOT_NEEDED:
                continue
        results[tp] = result
    refused = await write_states(context, changes)
    for tp in refused:
        results[tp].error_code, results[tp].error_message = ErrorCode.UNKNOWN_SERVER_ERROR, NOT_WRITTEN_MESSAGE
    flush = context.senders.last_flush + 1
    waits = [
        Wait(lambda context: context.senders.acknowledged(flush), results[change.tp])
        for change in changes
        if change.tp not in refused
    ]
    by_topic: dict[str, list[PartitionResult]] = {}
    for tp, result in results.items():
        by_topic.setdefault(tp.topic, []).append(result)
    response = ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(topic=name, partition_result=partitions) for name, partitions in by_topic.items()
        ]
    )
    return Outcome(response, waits, request.timeout_ms)


def _asked(request: ElectLeadersRequest, known: dict[TopicPartition, Led]) -> list[TopicPartition]:
    if request.topic_partitions is None:
        return list(known)
    return [TopicPartition(topic.topic, index) for topic in request.topic_partitions for index in topic.partitions]


def _elect(
    context: Context, tp: TopicPartition, known: dict[TopicPartition, Led], election_type: ElectionType
) -> StateChange:
    """Raises ``KafkaError``."""
    if tp.topic in context.image.deletions:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted.")
    if tp not in known:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    return chosen(context, known[tp], election_type)
