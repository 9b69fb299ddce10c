"""StopReplica is compared with bytes that Kafka 3.9.1's own classes wrote (KIP-570, Public Interfaces)."""

from __future__ import annotations

import pytest

from anabranch.protocol.generated.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
    StopReplicaTopicV1,
)

BROKER_EPOCH = 99
STATES = [
    StopReplicaPartitionState(partition_index=0, leader_epoch=5, delete_partition=True),
    StopReplicaPartitionState(partition_index=2, leader_epoch=-2, delete_partition=False),
]
UNGROUPED = [StopReplicaPartitionV0(topic_name="t", partition_index=index) for index in (0, 2)]
GROUPED = [StopReplicaTopicV1(name="t", partition_indexes=[0, 2])]
REQUESTS = [
    (StopReplicaRequest(delete_partitions=True, ungrouped_partitions=UNGROUPED), 0),
    (StopReplicaRequest(delete_partitions=True, broker_epoch=BROKER_EPOCH, topics=GROUPED), 1),
    (StopReplicaRequest(delete_partitions=True, broker_epoch=BROKER_EPOCH, topics=GROUPED), 2),
    (
        StopReplicaRequest(
            broker_epoch=BROKER_EPOCH, topic_states=[StopReplicaTopicState(topic_name="t", partition_states=STATES)]
        ),
        3,
    ),
]
REQUEST_BYTES = [
    "000003e80000000701000000020001740000000000017400000002",
    "000003e80000000700000000000000630100000001000174000000020000000000000002",
    "000003e8000000070000000000000063010202740300000000000000020000",
    "000003e8000000070000000000000063020274030000000000000005010000000002fffffffe00000000",
]
RESPONSE = StopReplicaResponse(
    partition_errors=[StopReplicaPartitionError(topic_name="t", partition_index=2, error_code=74)]
)
RESPONSE_BYTES = ["00000000000100017400000002004a"] * 2 + ["000002027400000002004a0000"] * 2


@pytest.mark.parametrize(("request_of", "version"), REQUESTS)
def test_each_version_of_the_request_has_kafkas_bytes(request_of: StopReplicaRequest, version: int) -> None:
    request_of.controller_id, request_of.controller_epoch = 1000, 7
    assert request_of.encode(version).hex() == REQUEST_BYTES[version]
    assert StopReplicaRequest.decode(bytes.fromhex(REQUEST_BYTES[version]), version) == request_of


@pytest.mark.parametrize("version", range(4))
def test_each_version_of_the_response_has_kafkas_bytes(version: int) -> None:
    assert RESPONSE.encode(version).hex() == RESPONSE_BYTES[version]
    assert StopReplicaResponse.decode(bytes.fromhex(RESPONSE_BYTES[version]), version) == RESPONSE


def test_before_version_3_a_request_names_no_leader_epoch() -> None:
    """KIP-570: the default is -1, and an older version cannot carry another value."""
    assert StopReplicaPartitionState().leader_epoch == -1
    assert all(not StopReplicaRequest.decode(bytes.fromhex(REQUEST_BYTES[v]), v).topic_states for v in range(3))
