"""One batch of requests contains only the last change of each partition for a broker."""

from __future__ import annotations

import uuid

from anabranch.controller.image import ClusterImage, LiveBroker, PartitionImage, TopicImage
from anabranch.controller.request_batch import RequestBatch
from anabranch.controller.states import PartitionStatus
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode

TP = TopicPartition("t", 0)


def cluster(**changes: object) -> ClusterImage:
    """Return the image of a controller with one broker and one topic whose znode has ``changes``."""
    broker = LiveBroker(1, 5, BrokerRegistration([Endpoint("PLAINTEXT", "a", 9092)]))
    topic = TopicImage("t", TopicZnode.new(uuid.UUID(int=1), {0: [1]}).replace(**changes), 0, 1)
    topic.partitions[0] = PartitionImage(PartitionStatus.ONLINE, PartitionState(1, 1, 4, [1]), 3, 2)
    return ClusterImage(1000, 1, brokers={1: broker}, topics={"t": topic})


def batch(**changes: object) -> RequestBatch:
    """Return a batch for that image."""
    return RequestBatch(cluster(**changes), None)


def kinds(requests: RequestBatch) -> list[str]:
    return [type(request).__name__ for request in requests.build()[1]]


def test_a_replica_dropped_and_added_again_is_not_stopped() -> None:
    """KIP-570: a StopReplica sent after the LeaderAndIsr would delete the replica that was just added."""
    requests = batch()
    requests.stop_replica(1, TP, delete=True)
    requests.leader_and_isr(TP)
    assert "LeaderAndIsrRequest" in kinds(requests)
    requests.stop_replica(1, TP, delete=True)
    requests.leader_and_isr(TP)
    assert not any(request.topic_states for request in requests.build()[1] if "Stop" in type(request).__name__)


def test_only_a_broker_that_joins_is_sent_the_removed_partitions() -> None:
    """The other brokers saw the removal.

    A broker that was not registered would treat an unknown partition as a new partition.
    """
    requests = batch(last_leader_epochs={0: 3, 1: 5})

    def sent() -> list[tuple[int, int, int]]:
        states = requests.build()[1][-1].topic_states[0].partition_states
        return [(state.partition_index, state.leader, state.leader_epoch) for state in states]

    requests.metadata([TP])
    assert sent() == [(0, 1, 4)]
    requests.everything_to(1)
    assert sent() == [(0, 1, 4), (1, -2, 5)]


def test_a_replica_added_and_dropped_again_is_only_stopped() -> None:
    """KIP-570: only the last change is sent."""
    requests = batch()
    requests.leader_and_isr(TP)
    requests.stop_replica(1, TP, delete=True)
    assert kinds(requests) == ["UpdateMetadataRequest", "StopReplicaRequest"]


def stopped(requests: RequestBatch) -> list[tuple[int, int, bool, int]]:
    """Return ``(partition, leader epoch, delete, incarnation)`` of the one StopReplica in the batch."""
    (request,) = (request for request in requests.build()[1] if isinstance(request, StopReplicaRequest))
    return [
        (state.partition_index, state.leader_epoch, state.delete_partition, state.incarnation)
        for topic in request.topic_states
        for state in topic.partition_states
    ]


def test_stopped_and_deleted_replicas_go_in_one_request() -> None:
    """KIP-570: from version 3 on one StopReplica has both kinds, each partition with its leader epoch."""
    image = cluster(partitions={0: [1], 1: [1]})
    requests = RequestBatch(image, None)
    image.topics["t"].partitions[1] = PartitionImage(PartitionStatus.ONLINE, PartitionState(1, 1, 9, [1]), 3, 7)
    requests.stop_replica(1, TP, delete=True)
    requests.stop_replica(1, TopicPartition("t", 1), delete=False)
    assert stopped(requests) == [(0, 4, True, 2), (1, 9, False, 7)]


def test_a_topic_is_deleted_with_the_leader_epoch_that_overrides_all_others() -> None:
    """KIP-570: a deletion raises no leader epoch, so the StopReplica names -2."""
    image = cluster()
    requests = RequestBatch(image, None)
    image.deletions["t"] = {}
    requests.stop_replica(1, TP, delete=True)
    assert stopped(requests) == [(0, -2, True, 2)]


def test_a_deletion_without_a_known_incarnation_names_the_last_possible_one() -> None:
    """KIP-570: without an incarnation, a late StopReplica would delete the topic's successor."""
    image = cluster()
    requests = RequestBatch(image, None)
    image.deletions["t"] = {}
    image.topics["t"].deletion_zxid = 40
    del image.topics["t"].partitions[0]
    requests.stop_replica(1, TP, delete=True)
    assert stopped(requests) == [(0, -2, True, 40)]


def test_a_partition_that_is_no_longer_known_is_not_stopped() -> None:
    """KIP-570: a StopReplica with neither leader epoch nor incarnation would delete a newer replica."""
    image = cluster()
    requests = RequestBatch(image, None)
    requests.stop_replica(1, TP, delete=True)
    del image.topics["t"]
    assert requests.build()[1] == []
