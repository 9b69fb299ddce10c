"""Every administrative request at its size limits, through a broker, on a real ZooKeeper.

Each is refused with an error that names the limit, or done; other administrative requests are answered meanwhile, and
the connections stay. Real processes: what is shown is that no request ends one of them, or its ZooKeeper session.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from anabranch.testing.processes import ProcessCluster
from protocol.errors import ErrorCode
from protocol.framing import ADMIN_APIS
from protocol.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from protocol.generated.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from protocol.generated.elect_leaders import ElectLeadersRequest, TopicPartitions
from protocol.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from protocol.generated.list_partition_reassignments import ListPartitionReassignmentsRequest
from runtime.channel import Channel
from runtime.real_trio import RealNetwork

pytestmark = [pytest.mark.trio, pytest.mark.integration]
TOPIC, BROKER = 2, 4
LIST_KEY = "leader.replication.throttled.replicas"
MANY = 500
WITHIN_S = 120
MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with ProcessCluster(brokers=1) as running:
        yield running


@pytest.fixture
async def channels(cluster: ProcessCluster) -> AsyncIterator[tuple[Channel, Channel]]:
    """One for what is large, one for what is asked meanwhile."""
    async with connected(cluster) as large, connected(cluster) as other:
        yield large, other


@asynccontextmanager
async def connected(cluster: ProcessCluster) -> AsyncIterator[Channel]:
    host, port = cluster.bootstrap.split(":")
    async with Channel.open(RealNetwork(), host, int(port), "test", timeout_s=WITHIN_S) as channel:
        yield channel


async def asked(channels: tuple[Channel, Channel], request: Any) -> Any:
    """The answer, with small requests of another client answered before it and after it."""
    large, other = channels
    answers: list[Any] = []
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            answers.append(await large.request(request, timeout_s=WITHIN_S))
            nursery.cancel_scope.cancel()

        nursery.start_soon(ask)
        while True:
            await assert_served(other)
    await assert_served(other)
    return answers[0]


async def assert_served(channel: Channel) -> None:
    response = await channel.request(ListPartitionReassignmentsRequest(timeout_ms=60_000), timeout_s=WITHIN_S)
    assert response.error_code == ErrorCode.NONE


def topic(name: str, partitions: int = 1, **fields: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, **fields)


def creation(*topics: CreatableTopic) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=list(topics), timeout_ms=60_000)


def configs(*resources: tuple[int, str, dict[str, str]]) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterableConfig(name=key, config_operation=0, value=value) for key, value in given.items()],
            )
            for kind, name, given in resources
        ]
    )


def codes(results: list[Any]) -> dict[int, int]:
    return dict(Counter(result.error_code for result in results))


async def test_topics(channels: tuple[Channel, Channel]) -> None:
    longest = topic("n" * 249, configs=[CreatableTopicConfig(name=LIST_KEY, value="1:1," * 200_000 + "1:1")])
    assert codes((await asked(channels, creation(longest))).topics) == {ErrorCode.NONE: 1}
    for refused, code, words in (
        (topic("n" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, "can't be longer than 249"),
        (topic("n" * MIB), ErrorCode.INVALID_TOPIC_EXCEPTION, "can't be longer than 249"),
        (topic("t", 2**31 - 1), ErrorCode.INVALID_PARTITIONS, "at most 65536"),
        (topic("t", 1 << 16), ErrorCode.INVALID_PARTITIONS, "and 524288 are accepted"),
        (
            topic("t", configs=[CreatableTopicConfig(name=LIST_KEY, value="1:1," * 300_000 + "1:1")]),
            ErrorCode.INVALID_CONFIG,
            "jute.maxbuffer",
        ),
    ):
        (result,) = (await asked(channels, creation(refused))).topics
        assert (result.error_code, words in result.error_message) == (code, True), result.error_message
    given = [CreatableReplicaAssignment(partition_index=index, broker_ids=[1]) for index in range(50_000)]
    by_hand = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=given)
    (result,) = (await asked(channels, creation(by_hand))).topics
    assert result.error_code in (ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    illegal = creation(*(topic(f"/{number}") for number in range(MANY)))
    assert codes((await asked(channels, illegal)).topics) == {ErrorCode.INVALID_TOPIC_EXCEPTION: MANY}
    missing = DeleteTopicsRequest(topics=[DeleteTopicState(name=f"u{n}") for n in range(MANY)], timeout_ms=60_000)
    assert codes((await asked(channels, missing)).responses) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: MANY}
    illegal_names = DeleteTopicsRequest(topics=[DeleteTopicState(name="n" * MIB)], timeout_ms=60_000)
    assert codes((await asked(channels, illegal_names)).responses) == {ErrorCode.INVALID_TOPIC_EXCEPTION: 1}


async def test_configs(channels: tuple[Channel, Channel]) -> None:
    assert codes((await asked(channels, creation(topic("configured")))).topics) == {ErrorCode.NONE: 1}
    for request, code, words in (
        (configs((TOPIC, "configured", {LIST_KEY: "1:1," * 300_000 + "1:1"})), ErrorCode.INVALID_CONFIG, "jute.max"),
        (configs((TOPIC, "configured", {"k" * MIB: "1"})), ErrorCode.INVALID_CONFIG, "kkk"),
        (
            configs((TOPIC, "configured", {f"key{number}": "" for number in range(10 * MANY)})),
            ErrorCode.INVALID_CONFIG,
            "key0",
        ),
        (configs((TOPIC, "n" * MIB, {"retention.ms": "1"})), ErrorCode.INVALID_TOPIC_EXCEPTION, "longer than 249"),
        (configs((BROKER, "9" * 10_000, {"retention.ms": "1"})), ErrorCode.INVALID_REQUEST, "is not a broker id"),
        (configs((TOPIC, "a/b", {"retention.ms": "1"})), ErrorCode.INVALID_TOPIC_EXCEPTION, "illegal"),
    ):
        (result,) = (await asked(channels, request)).responses
        assert (result.error_code, words in result.error_message) == (code, True), result.error_message
    many = configs(*((TOPIC, f"u{number}", {"retention.ms": "1"}) for number in range(MANY)))
    assert codes((await asked(channels, many)).responses) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: MANY}
    same = configs(*((TOPIC, "configured", {"retention.ms": "1"}) for _ in range(10 * MANY)))
    assert codes((await asked(channels, same)).responses) == {ErrorCode.INVALID_REQUEST: 10 * MANY}


async def test_partitions(channels: tuple[Channel, Channel]) -> None:
    assert codes((await asked(channels, creation(topic("parts")))).topics) == {ErrorCode.NONE: 1}
    counts = [CreatePartitionsTopic(name="parts", count=2**31 - 1, assignments=None)]
    counts += [CreatePartitionsTopic(name=f"u{number}", count=2, assignments=None) for number in range(MANY)]
    found = (await asked(channels, CreatePartitionsRequest(topics=counts, timeout_ms=60_000))).results
    assert found[0].error_code == ErrorCode.INVALID_PARTITIONS
    assert "the largest count that fits is" in found[0].error_message
    assert codes(found[1:]) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: MANY}
    moves = [ReassignablePartition(partition_index=0, replicas=list(range(20_000)))]
    moves += [ReassignablePartition(partition_index=index, replicas=[1]) for index in range(1, 5 * MANY)]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="parts", partitions=moves)])
    (moved,) = (await asked(channels, request)).responses
    assert moved.partitions[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert codes(moved.partitions[1:]) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 5 * MANY - 1}
    wanted = [TopicPartitions(topic="parts", partitions=list(range(10 * MANY)))]
    elections = ElectLeadersRequest(topic_partitions=wanted, timeout_ms=60_000)
    (elected,) = (await asked(channels, elections)).replica_election_results
    unknown = {ErrorCode.ELECTION_NOT_NEEDED: 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 10 * MANY - 1}
    assert codes(elected.partition_result) == unknown


async def test_a_request_of_100_mib_is_refused_by_its_first_bytes(
    cluster: ProcessCluster, channels: tuple[Channel, Channel]
) -> None:
    """The connection is closed before the request has arrived."""
    host, port = cluster.bootstrap.split(":")
    for api_key in sorted(ADMIN_APIS):
        stream = await trio.open_tcp_stream(host, int(port))
        async with stream:
            await stream.send_all(struct.pack(">ihhih", 100 * MIB, api_key, 0, 1, -1))
            with trio.fail_after(WITHIN_S), pytest.raises(trio.BrokenResourceError):  # noqa: PT012
                while await stream.receive_some():
                    pytest.fail("answered")
                raise trio.BrokenResourceError
        await assert_served(channels[1])
    log = (cluster.directory / "data" / "logs" / "broker-1.log").read_text()
    assert log.count("admin.request.max.bytes") >= len(ADMIN_APIS)
