"""ElectLeaders (43): elect the first replica or, since version 1, any live replica (KIP-460).

An unclean election by request needs no config. Every partition has its own error. ``slices`` turns a request for all
partitions into a request that names each partition. Its response leaves out the partitions that need no election. The
controller responds once every live broker has acknowledged the new leaders.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.image import ClusterImage
from anabranch.controller.leaders import chosen
from anabranch.controller.outcome import NOT_WRITTEN_MESSAGE, TIMED_OUT_MESSAGE, Outcome, ResponseWait
from anabranch.controller.state_writes import StateChange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from anabranch.protocol.request_kinds import ElectionType
from anabranch.protocol.types import TopicPartition


class _Known(ResponseWait):
    """The wait until every live broker knows the leaders that one slice elected.

    ``result`` is the list of the partitions' results.
    """

    def time_out(self) -> None:
        for result in self.result:
            result.error_code, result.error_message = ErrorCode.REQUEST_TIMED_OUT, TIMED_OUT_MESSAGE


def elect_leaders(context: Context, request: ElectLeadersRequest, version: int) -> Decisions[Outcome]:
    """Raises ``ControllerMovedError``, ``ImageStaleError``."""
    try:
        election_type = ElectionType(request.election_type)
    except ValueError:
        return Outcome(ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST))
    assert request.topic_partitions is not None, "slices name partitions"
    asked = {
        topic.topic: [TopicPartition(topic.topic, index) for index in topic.partitions]
        for topic in request.topic_partitions
    }
    effects = decide(context.image, [tp for tps in asked.values() for tp in tps], election_type)
    results: dict[TopicPartition, PartitionResult] = effects.response
    refused = yield effects
    for tp in refused:
        results[tp].error_code, results[tp].error_message = ErrorCode.UNKNOWN_SERVER_ERROR, NOT_WRITTEN_MESSAGE
    flush = context.senders.last_flush + 1
    elected = [results[change.tp] for change in effects.independent if change.tp not in refused]
    waits: list[ResponseWait] = (
        [_Known(lambda context: context.senders.acknowledged(flush), elected)] if elected else []
    )
    topics = [
        ReplicaElectionResult(topic=name, partition_result=[results[tp] for tp in tps]) for name, tps in asked.items()
    ]
    return Outcome(ElectLeadersResponse(replica_election_results=topics), waits, request.timeout_ms)


def decide(image: ClusterImage, tps: Iterable[TopicPartition], election_type: ElectionType) -> Effects:
    """The effects of the elections; ``response`` has the result of each partition."""
    results = {tp: PartitionResult(partition_id=tp.partition) for tp in tps}
    changes = []
    for tp, result in results.items():
        try:
            changes.append(_elect(image, tp, election_type))
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
    return Effects(independent=changes, response=results)


def _elect(image: ClusterImage, tp: TopicPartition, election_type: ElectionType) -> StateChange:
    """Raises ``KafkaError``."""
    if tp.topic in image.deletions:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted.")
    found, led = image.partition(tp), image.led(tp)
    if found is not None and found.state is not None and found.state.newer_log:
        raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"{found.state.newer_log}.")
    if led is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    return chosen(image, led, election_type)
