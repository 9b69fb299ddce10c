"""A request through a broker that is cut from ZooKeeper and the controller gets an error that clients repeat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_configs import AlterConfigsRequest, AlterConfigsResource
from anabranch.protocol.generated.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from anabranch.protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.generated.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest
from anabranch.protocol.generated.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.generated.elect_leaders import ElectLeadersRequest, TopicPartitions
from anabranch.protocol.generated.incremental_alter_configs import AlterConfigsResource as IncrementalResource
from anabranch.protocol.generated.incremental_alter_configs import IncrementalAlterConfigsRequest
from anabranch.protocol.generated.init_producer_id import InitProducerIdRequest
from anabranch.protocol.generated.list_partition_reassignments import ListPartitionReassignmentsRequest
from anabranch.protocol.generated.update_features import UpdateFeaturesRequest
from sim.zk import FakeSession
from tests.support.broker.broker_harness import one_broker

TOPIC = {"resource_type": 2, "resource_name": "t"}
SOON_MS = 20
REQUESTS: list[Any] = [
    CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=SOON_MS),
    DeleteTopicsRequest(topic_names=["t"], timeout_ms=SOON_MS),
    CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=2)], timeout_ms=SOON_MS),
    AlterConfigsRequest(resources=[AlterConfigsResource(**TOPIC, configs=[])]),
    IncrementalAlterConfigsRequest(resources=[IncrementalResource(**TOPIC, configs=[])]),
    AlterPartitionReassignmentsRequest(timeout_ms=SOON_MS, topics=[]),
    ListPartitionReassignmentsRequest(timeout_ms=SOON_MS, topics=None),
    ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])], timeout_ms=SOON_MS),
    UpdateFeaturesRequest(timeout_ms=SOON_MS),
    DescribeConfigsRequest(resources=[DescribeConfigsResource(**TOPIC)]),
    InitProducerIdRequest(transactional_id=None),
]


def error_codes(response: Any) -> Iterator[int]:
    """Every error code of a response, at any depth."""
    if (code := getattr(response, "error_code", 0)) != 0:
        yield code
    for name in ("topics", "responses", "results", "replica_election_results", "partition_result"):
        for part in getattr(response, name, None) or []:
            yield from error_codes(part)


@pytest.mark.trio
async def test_a_request_that_needs_zookeeper_or_the_controller_gets_a_retriable_error(tmp_path: Path) -> None:
    async with one_broker(tmp_path, {"request.timeout.ms": str(SOON_MS)}) as broker:
        await broker.create_topic("t")
        session = broker.env.zk
        assert isinstance(session, FakeSession)
        session.disconnect(server_down=True)
        for request in REQUESTS:
            version = 3 if request.API_KEY == ApiKey.DELETE_TOPICS else None
            found = {ErrorCode.of(code) for code in error_codes(await broker.request(request, version))}
            assert found, f"{type(request).__name__} succeeded"
            assert all(code.retriable for code in found), f"{type(request).__name__}: {found}"
        session.reconnect()
