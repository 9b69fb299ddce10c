"""The controller's handling of StopReplica responses (KIP-570): each response counts only for its own replica."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from anabranch.controller import deletion
from anabranch.controller.events import BrokerAnswered, RemovalDue, ResizesDue
from anabranch.controller.image import LiveBroker, PartitionImage
from anabranch.controller.resize import deleting_replicas
from anabranch.controller.states import PartitionStatus, ReplicaStatus
from anabranch.protocol.generated.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from anabranch.protocol.sentinels import LEADER_DURING_DELETE
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint
from anabranch.zk_schemas.partition_state import PartitionState
from tests.unit.controller.test_request_batch import batch

BROKER = LiveBroker(1, 5, BrokerRegistration([Endpoint("PLAINTEXT", "a", 9092)]))


def context() -> Any:
    """Return the context of a controller with the topic ``t`` on broker 1."""
    events: list[Any] = []
    return SimpleNamespace(image=batch()._image, events=SimpleNamespace(put=events.append), queued=events)


def answer(leader_epoch: int, incarnation: int = 2) -> BrokerAnswered:
    """Return the response of broker 1, which has deleted its replica of ``t-0`` in this leader epoch."""
    state = StopReplicaPartitionState(
        partition_index=0, leader_epoch=leader_epoch, delete_partition=True, incarnation=incarnation
    )
    request = StopReplicaRequest(topic_states=[StopReplicaTopicState(topic_name="t", partition_states=[state])])
    return BrokerAnswered(BROKER, request, StopReplicaResponse())


def test_a_topic_is_deleted_once_its_own_stop_replica_is_answered() -> None:
    """KIP-570: a replica that one reassignment dropped and another reassignment added still exists."""
    of = context()
    of.image.deletions["t"] = {(0, 1): ReplicaStatus.DELETION_STARTED}
    deletion.on_stop_replica_answered(of, answer(4))
    assert of.queued == [] and of.image.deletions["t"] == {(0, 1): ReplicaStatus.DELETION_STARTED}
    deletion.on_stop_replica_answered(of, answer(-2))
    assert of.queued == [RemovalDue("t")]


def test_a_partition_is_removed_once_its_own_stop_replica_is_answered() -> None:
    """KIP-570: a response of an earlier leader epoch or of another incarnation is not about the removed partition."""
    of = context()
    partition = PartitionImage(PartitionStatus.ONLINE, PartitionState(1, LEADER_DURING_DELETE, 6, [1]), 3, 2)
    of.image.topics["t"].partitions[0] = partition
    for earlier in (answer(5), answer(6, incarnation=1)):
        deleting_replicas.on_stop_replica_answered(of, earlier)
        assert of.queued == [] and partition.ending is None
    deleting_replicas.on_stop_replica_answered(of, answer(6))
    assert of.queued == [ResizesDue()] and partition.ending is not None and partition.ending.stopped == {BROKER.id}
