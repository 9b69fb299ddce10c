"""Sends every administrative request at its size limits to a broker, on a real ZooKeeper.

Each request is done, or refused with an error that names the limit. Other administrative requests get responses in the
meantime, and the connections stay open. The processes are real: no request ends one of them, or its ZooKeeper session.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_configs import AlterableConfig as OldConfig
from anabranch.protocol.generated.alter_configs import AlterConfigsRequest
from anabranch.protocol.generated.alter_configs import AlterConfigsResource as OldConfigsResource
from anabranch.protocol.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from anabranch.protocol.generated.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from anabranch.protocol.generated.api_versions import ApiVersionsRequest
from anabranch.protocol.generated.create_acls import AclCreation, CreateAclsRequest
from anabranch.protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.generated.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from anabranch.protocol.generated.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from anabranch.protocol.generated.delete_groups import DeleteGroupsRequest
from anabranch.protocol.generated.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.generated.describe_acls import DescribeAclsRequest
from anabranch.protocol.generated.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.generated.describe_groups import DescribeGroupsRequest
from anabranch.protocol.generated.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from anabranch.protocol.generated.describe_producers import DescribeProducersRequest
from anabranch.protocol.generated.describe_producers import TopicRequest as DescribeProducersTopicRequest
from anabranch.protocol.generated.elect_leaders import ElectLeadersRequest, TopicPartitions
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.generated.list_groups import ListGroupsRequest
from anabranch.protocol.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from anabranch.protocol.generated.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from anabranch.protocol.generated.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from anabranch.protocol.message_limits import ADMIN_APIS
from anabranch.runtime.channel import Channel
from anabranch.runtime.real_trio import TrioNetwork
from anabranch.testing.processes import ProcessCluster, wait_for

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
    """One channel for large requests, and one for other requests in the meantime."""
    async with connected(cluster) as large, connected(cluster) as other:
        yield large, other


@asynccontextmanager
async def connected(cluster: ProcessCluster) -> AsyncIterator[Channel]:
    host, port = cluster.bootstrap.split(":")
    async with Channel.open(TrioNetwork(), host, int(port), "test", timeout_s=WITHIN_S) as channel:
        yield channel


async def asked(channels: tuple[Channel, Channel], request: Any) -> Any:
    """The response to a large request. Another client's small requests are answered before and after this response."""
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


async def test_topic_requests_beyond_a_limit_get_their_error(channels: tuple[Channel, Channel]) -> None:
    longest = topic("n" * 249, configs=[CreatableTopicConfig(name=LIST_KEY, value="1:1," * 200_000 + "1:1")])
    assert codes((await asked(channels, creation(longest))).topics) == {ErrorCode.NONE: 1}
    for refused, code, words in (
        (topic("n" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, "can't be longer than 249"),
        (topic("n" * MIB), ErrorCode.INVALID_TOPIC_EXCEPTION, "can't be longer than 249"),
        (topic("t", 2**31 - 1), ErrorCode.INVALID_PARTITIONS, "at most 65536"),
        (topic("t", 1 << 16), ErrorCode.INVALID_PARTITIONS, "at most 524288 are accepted"),
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


async def test_config_requests_beyond_a_limit_get_their_error(channels: tuple[Channel, Channel]) -> None:
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
    assert codes((await asked(channels, same)).responses) == {ErrorCode.INVALID_REQUEST: 1}


async def test_partition_requests_beyond_a_limit_get_their_error(channels: tuple[Channel, Channel]) -> None:
    assert codes((await asked(channels, creation(topic("parts")))).topics) == {ErrorCode.NONE: 1}
    counts = [CreatePartitionsTopic(name="parts", count=2**31 - 1, assignments=None)]
    counts += [CreatePartitionsTopic(name=f"u{number}", count=2, assignments=None) for number in range(MANY)]
    found = (await asked(channels, CreatePartitionsRequest(topics=counts, timeout_ms=60_000))).results
    assert found[0].error_code == ErrorCode.INVALID_PARTITIONS
    assert "the largest count is" in found[0].error_message
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


LARGE_COUNT = 10 * MANY
INDEXES = list(range(LARGE_COUNT))
GROUPS = ["g" * 32_000, *(f"g{number}" for number in range(MANY))]
UNKNOWN, OUT_OF_RANGE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_OUT_OF_RANGE


def flat(topics: list[Any], inner: str = "partitions") -> list[Any]:
    return [found for topic in topics for found in getattr(topic, inner)]


OTHERS: dict[ApiKey, tuple[Any, Callable[[Any], bool]]] = {
    ApiKey.ALTER_CONFIGS: (
        AlterConfigsRequest(
            resources=[
                OldConfigsResource(
                    resource_type=TOPIC, resource_name=f"u{number}", configs=[OldConfig(name="retention.ms", value="1")]
                )
                for number in range(MANY)
            ]
        ),
        lambda found: codes(found.responses) == {UNKNOWN: MANY},
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (
        ListPartitionReassignmentsRequest(
            topics=[ListPartitionReassignmentsTopics(name="n" * 30_000, partition_indexes=INDEXES)], timeout_ms=60_000
        ),
        lambda found: (found.error_code, found.topics) == (ErrorCode.NONE, []),
    ),
    ApiKey.UPDATE_FEATURES: (
        UpdateFeaturesRequest(
            feature_updates=[FeatureUpdateKey(feature="f" * 30_000, max_version_level=2**15 - 1)]
            + [FeatureUpdateKey(feature=f"f{number}", max_version_level=1) for number in range(MANY)]
        ),
        lambda found: found.error_code != ErrorCode.NONE or all(result.error_code for result in found.results),
    ),
    ApiKey.DELETE_RECORDS: (
        DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name="large",
                    partitions=[DeleteRecordsPartition(partition_index=index, offset=2**63 - 1) for index in INDEXES],
                )
            ],
            timeout_ms=60_000,
        ),
        lambda found: codes(flat(found.topics)) == {OUT_OF_RANGE: 1, UNKNOWN: LARGE_COUNT - 1},
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path="/" + "d" * 30_000, topics=[AlterReplicaLogDirTopic(name="large", partitions=INDEXES)]
                )
            ]
        ),
        lambda found: codes(flat(found.results)) == {ErrorCode.LOG_DIR_NOT_FOUND: LARGE_COUNT},
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (
        DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="large", partitions=INDEXES)]),
        lambda found: [len(flat(directory.topics)) for directory in found.results] == [1],
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=["k" * 1_000])
                for name in ["n" * 30_000, *(f"u{number}" for number in range(MANY))]
            ]
        ),
        lambda found: ErrorCode.NONE not in codes(found.results) and len(found.results) == MANY + 1,
    ),
    ApiKey.DELETE_GROUPS: (
        DeleteGroupsRequest(groups_names=GROUPS),
        lambda found: codes(found.results) == {ErrorCode.NOT_COORDINATOR: MANY + 1},
    ),
    ApiKey.DESCRIBE_GROUPS: (
        DescribeGroupsRequest(groups=GROUPS),
        lambda found: codes(found.groups) == {ErrorCode.NOT_COORDINATOR: MANY + 1},
    ),
    ApiKey.OFFSET_DELETE: (
        OffsetDeleteRequest(
            group_id="g" * 32_000,
            topics=[
                OffsetDeleteRequestTopic(
                    name="large",
                    partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in INDEXES],
                )
            ],
        ),
        lambda found: (found.error_code, found.topics) == (ErrorCode.NOT_COORDINATOR, []),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (
        DescribeProducersRequest(topics=[DescribeProducersTopicRequest(name="large", partition_indexes=INDEXES)]),
        lambda found: codes(flat(found.topics)) == {ErrorCode.NONE: 1, UNKNOWN: LARGE_COUNT - 1},
    ),
    ApiKey.LIST_GROUPS: (
        ListGroupsRequest(states_filter=["s" * 30_000, *(f"s{number}" for number in range(MANY))]),
        lambda found: (found.error_code, found.groups) == (ErrorCode.NONE, []),
    ),
    ApiKey.DESCRIBE_ACLS: (
        DescribeAclsRequest(resource_type_filter=TOPIC, resource_name_filter="n" * 30_000),
        lambda found: (found.error_code, found.resources) == (ErrorCode.SECURITY_DISABLED, []),
    ),
    ApiKey.CREATE_ACLS: (
        CreateAclsRequest(
            creations=[
                AclCreation(resource_type=TOPIC, resource_name=f"u{number}", principal="User:" + "p" * 100, host="*")
                for number in range(MANY)
            ]
        ),
        lambda found: codes(found.results) == {ErrorCode.SECURITY_DISABLED: MANY},
    ),
    ApiKey.DELETE_ACLS: (
        DeleteAclsRequest(
            filters=[DeleteAclsFilter(resource_type_filter=TOPIC, resource_name_filter=f"u{n}") for n in range(MANY)]
        ),
        lambda found: codes(found.filter_results) == {ErrorCode.SECURITY_DISABLED: MANY},
    ),
}
"""Requests at their limits, and a check of the response. No group was ever created, so none has a coordinator."""
IN_TESTS_OF_THEIR_OWN = {
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.ELECT_LEADERS,
}
ASKS_NOTHING = {ApiKey.DESCRIBE_CLUSTER}
OF_CLIENTS_AND_BROKERS = {
    *(ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.FIND_COORDINATOR),
    *(ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP),
    *(ApiKey.SYNC_GROUP, ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.CONSUMER_GROUP_POSITION),
    *(ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS, ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA),
    *(ApiKey.UPDATE_METADATA, ApiKey.TOPIC_READERS, ApiKey.DESCRIBE_WITHHELD),
}


@pytest.mark.parametrize("key", OTHERS, ids=lambda key: key.name)
async def test_every_other_administrative_request_is_answered_at_its_size_limits(
    channels: tuple[Channel, Channel], key: ApiKey
) -> None:
    await asked(channels, creation(topic("large")))
    request, is_right = OTHERS[key]
    response = await asked(channels, request)
    assert is_right(response), str(response)[:1_000]


async def test_every_administrative_request_is_tried_here(channels: tuple[Channel, Channel]) -> None:
    versions = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    served = {ApiKey(found.api_key) for found in (await asked(channels, versions)).api_keys}
    assert served - OF_CLIENTS_AND_BROKERS - ASKS_NOTHING == OTHERS.keys() | IN_TESTS_OF_THEIR_OWN
    assert served >= ADMIN_APIS, "every API with a size limit is served"


async def test_a_request_of_100_mib_is_refused_by_its_first_bytes(
    cluster: ProcessCluster, channels: tuple[Channel, Channel]
) -> None:
    """The connection is closed before the whole request has arrived."""
    host, port = cluster.bootstrap.split(":")
    for api_key in sorted(ADMIN_APIS):
        stream = await trio.open_tcp_stream(host, int(port))
        async with stream:
            await stream.send_all(struct.pack(">ihhih", 100 * MIB, api_key, 0, 1, -1))
            with trio.fail_after(WITHIN_S), pytest.raises(trio.BrokenResourceError):  # noqa: PT012
                while await stream.receive_some():
                    pytest.fail(f"{api_key.name} was answered")
                raise trio.BrokenResourceError
        await assert_served(channels[1])

    def is_logged() -> bool:
        log = cluster.broker_log(1)
        return all(f"{key.name} request of {100 * MIB} bytes" in log for key in ADMIN_APIS)

    await trio.to_thread.run_sync(wait_for, is_logged, WITHIN_S, "each refusal is logged")
