"""Responses to StopReplica requests that delete replicas."""

from __future__ import annotations

from typing import NamedTuple, cast

from anabranch.controller.events import BrokerAnswered
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.sentinels import NO_OFFSET
from anabranch.protocol.types import TopicPartition


class ReplicaDeletion(NamedTuple):
    """The response of ``broker`` about a replica that the broker had to delete in ``leader_epoch``.

    ``error`` 0 means that the replica is deleted. ``log_end_offset`` is -1 if the log end is not known.
    """

    tp: TopicPartition
    broker: int
    leader_epoch: int
    incarnation: int
    error: int
    log_end_offset: int


def deletions(event: BrokerAnswered) -> list[ReplicaDeletion]:
    """The replicas that a request asked to delete, in order of the request."""
    request = cast(StopReplicaRequest, event.request)
    answers = {(e.topic_name, e.partition_index): e for e in event.response.partition_errors}
    return [
        ReplicaDeletion(
            tp := TopicPartition(topic.topic_name, asked.partition_index),
            event.broker.id,
            asked.leader_epoch,
            asked.incarnation,
            event.response.error_code or (answers[tp].error_code if tp in answers else 0),
            answers[tp].log_end_offset if tp in answers else NO_OFFSET,
        )
        for topic in request.topic_states
        for asked in topic.partition_states
        if asked.delete_partition
    ]
