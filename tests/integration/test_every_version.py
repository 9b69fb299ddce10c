"""Every advertised API at every version: a plausible request gets a response that can be decoded and is no refusal."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterator

import pytest
import trio

from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
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
from anabranch.protocol.generated.consumer_group_position import (
    ConsumerGroupPositionRequest,
    ConsumerGroupPositionRequestPartition,
    ConsumerGroupPositionRequestTopic,
)
from anabranch.protocol.generated.create_acls import AclCreation, CreateAclsRequest
from anabranch.protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.generated.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from anabranch.protocol.generated.delete_groups import DeleteGroupsRequest
from anabranch.protocol.generated.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.generated.describe_acls import DescribeAclsRequest
from anabranch.protocol.generated.describe_cluster import DescribeClusterRequest
from anabranch.protocol.generated.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.generated.describe_groups import DescribeGroupsRequest
from anabranch.protocol.generated.describe_log_dirs import DescribeLogDirsRequest
from anabranch.protocol.generated.describe_producers import DescribeProducersRequest, TopicRequest
from anabranch.protocol.generated.describe_withheld import DescribeWithheldRequest, DescribeWithheldRequestTopic
from anabranch.protocol.generated.elect_leaders import ElectLeadersRequest, TopicPartitions
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.generated.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.generated.heartbeat import HeartbeatRequest
from anabranch.protocol.generated.incremental_alter_configs import AlterableConfig as IncrementalConfig
from anabranch.protocol.generated.incremental_alter_configs import AlterConfigsResource as IncrementalResource
from anabranch.protocol.generated.incremental_alter_configs import IncrementalAlterConfigsRequest
from anabranch.protocol.generated.init_producer_id import InitProducerIdRequest
from anabranch.protocol.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from anabranch.protocol.generated.leave_group import LeaveGroupRequest, MemberIdentity
from anabranch.protocol.generated.list_groups import ListGroupsRequest
from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.generated.list_partition_reassignments import ListPartitionReassignmentsRequest
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.generated.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from anabranch.protocol.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from anabranch.protocol.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsRequest,
    PartitionLeaderEpochsForPartitionsRequestPartition,
    PartitionLeaderEpochsForPartitionsRequestTopic,
)
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.generated.sync_group import SyncGroupRequest
from anabranch.protocol.generated.topic_readers import TopicReadersRequest, TopicReadersRequestTopic
from anabranch.protocol.generated.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from anabranch.protocol.message import Message
from anabranch.runtime.channel import Channel
from anabranch.runtime.real_trio import TrioNetwork
from anabranch.testing.processes import ProcessCluster
from tests.support.controller.topics import create_topic
from tests.support.log.batches import batch_of

pytestmark = pytest.mark.integration

TOPIC = "versions"
NEVER_RESIZED = "never-resized"
GROUP = "versions-group"
TOPIC_RESOURCE, COMMIT_OFFSET = 2, 1
FROM_CONTROLLER = {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA, ApiKey.CONTROLLED_SHUTDOWN}
"""APIs between the controller and brokers, which every other test with a cluster uses.

``component/test_stop_replica`` tests the older versions of StopReplica.
"""
EXPECTED: dict[tuple[ApiKey, int | None], set[ErrorCode]] = {
    (ApiKey.HEARTBEAT, None): {ErrorCode.UNKNOWN_MEMBER_ID},
    (ApiKey.SYNC_GROUP, None): {ErrorCode.UNKNOWN_MEMBER_ID},
    (ApiKey.LEAVE_GROUP, None): {ErrorCode.UNKNOWN_MEMBER_ID},
    (ApiKey.DELETE_GROUPS, None): {ErrorCode.GROUP_ID_NOT_FOUND},
    (ApiKey.ALTER_REPLICA_LOG_DIRS, None): {ErrorCode.LOG_DIR_NOT_FOUND},
    (ApiKey.ELECT_LEADERS, None): {ErrorCode.ELECTION_NOT_NEEDED},
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, None): {ErrorCode.NO_REASSIGNMENT_IN_PROGRESS},
    (ApiKey.UPDATE_FEATURES, None): {ErrorCode.INVALID_REQUEST},
    **{
        (key, None): {ErrorCode.SECURITY_DISABLED}
        for key in (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS)
    },
    **{(ApiKey.JOIN_GROUP, version): {ErrorCode.MEMBER_ID_REQUIRED} for version in (4, 5, 6, 7)},
}
"""By API and version (None: all versions): the errors of a request that cannot succeed in this test."""


def offset_fetch(version: int) -> Message:
    if version >= 8:
        topics = [OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=topics)])
    return OffsetFetchRequest(group_id=GROUP, topics=[OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])])


def delete_topics(version: int) -> Message:
    if version >= 6:
        return DeleteTopicsRequest(topics=[DeleteTopicState(name=f"made-{version}")], timeout_ms=10_000)
    return DeleteTopicsRequest(topic_names=[f"made-{version}"], timeout_ms=10_000)


def leave_group(version: int) -> Message:
    if version >= 3:
        return LeaveGroupRequest(group_id="nobody", members=[MemberIdentity(member_id="m")])
    return LeaveGroupRequest(group_id="nobody", member_id="m")


REQUESTS: dict[ApiKey, Callable[[int], Message]] = {
    ApiKey.PRODUCE: lambda v: ProduceRequest(
        acks=-1,
        timeout_ms=5_000,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch_of(1))])],
    ),
    ApiKey.FETCH: lambda v: FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        topics=[
            FetchTopic(topic=TOPIC, partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)]),
        ],
    ),
    ApiKey.LIST_OFFSETS: lambda v: ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(timestamp=-1)])]
    ),
    ApiKey.METADATA: lambda v: MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]),
    ApiKey.OFFSET_COMMIT: lambda v: OffsetCommitRequest(
        group_id=GROUP,
        topics=[
            OffsetCommitRequestTopic(
                name=TOPIC, partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
            )
        ],
    ),
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.FIND_COORDINATOR: lambda v: (
        FindCoordinatorRequest(coordinator_keys=[GROUP]) if v >= 4 else FindCoordinatorRequest(key=GROUP)
    ),
    ApiKey.JOIN_GROUP: lambda v: JoinGroupRequest(
        group_id=f"join-{v}",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\0\0\0\0")],
    ),
    ApiKey.HEARTBEAT: lambda v: HeartbeatRequest(group_id="nobody", generation_id=1, member_id="m"),
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.SYNC_GROUP: lambda v: SyncGroupRequest(
        group_id="nobody", generation_id=1, member_id="m", protocol_type="consumer", protocol_name="range"
    ),
    ApiKey.DESCRIBE_GROUPS: lambda v: DescribeGroupsRequest(groups=[GROUP]),
    ApiKey.LIST_GROUPS: lambda v: ListGroupsRequest(),
    ApiKey.API_VERSIONS: lambda v: ApiVersionsRequest(client_software_name="test", client_software_version="1"),
    ApiKey.CREATE_TOPICS: lambda v: CreateTopicsRequest(
        topics=[CreatableTopic(name=f"created-{v}", num_partitions=1, replication_factor=1)], timeout_ms=10_000
    ),
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.DELETE_RECORDS: lambda v: DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=TOPIC, partitions=[DeleteRecordsPartition(partition_index=0, offset=0)])],
        timeout_ms=5_000,
    ),
    ApiKey.INIT_PRODUCER_ID: lambda v: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda v: OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)])],
    ),
    ApiKey.DESCRIBE_ACLS: lambda v: DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1),
    ApiKey.CREATE_ACLS: lambda v: CreateAclsRequest(creations=[AclCreation(resource_name=TOPIC, principal="User:u")]),
    ApiKey.DELETE_ACLS: lambda v: DeleteAclsRequest(filters=[DeleteAclsFilter(operation=1)]),
    ApiKey.DESCRIBE_CONFIGS: lambda v: DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=TOPIC, configuration_keys=None)]
    ),
    ApiKey.ALTER_CONFIGS: lambda v: AlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=TOPIC_RESOURCE,
                resource_name=TOPIC,
                configs=[AlterableConfig(name="retention.ms", value="-1")],
            )
        ]
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda v: IncrementalAlterConfigsRequest(
        resources=[
            IncrementalResource(
                resource_type=TOPIC_RESOURCE,
                resource_name=TOPIC,
                configs=[IncrementalConfig(name="retention.ms", config_operation=0, value="-1")],
            )
        ]
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: lambda v: AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDir(path="/nowhere", topics=[AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])])]
    ),
    ApiKey.DESCRIBE_LOG_DIRS: lambda v: DescribeLogDirsRequest(topics=None),
    ApiKey.ELECT_LEADERS: lambda v: ElectLeadersRequest(
        topic_partitions=[TopicPartitions(topic=TOPIC, partitions=[0])], timeout_ms=10_000
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda v: AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=TOPIC, partitions=[ReassignablePartition(partition_index=0)])]
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda v: ListPartitionReassignmentsRequest(),
    ApiKey.UPDATE_FEATURES: lambda v: UpdateFeaturesRequest(
        feature_updates=[FeatureUpdateKey(feature="unknown", max_version_level=1)]
    ),
    ApiKey.CREATE_PARTITIONS: lambda v: CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=TOPIC, count=2 << v, assignments=None)], timeout_ms=10_000
    ),
    ApiKey.DELETE_GROUPS: lambda v: DeleteGroupsRequest(groups_names=[f"join-{v}-gone"]),
    ApiKey.OFFSET_DELETE: lambda v: OffsetDeleteRequest(
        group_id=GROUP,
        topics=[OffsetDeleteRequestTopic(name=TOPIC, partitions=[OffsetDeleteRequestPartition(partition_index=0)])],
    ),
    ApiKey.DESCRIBE_CLUSTER: lambda v: DescribeClusterRequest(),
    ApiKey.DESCRIBE_PRODUCERS: lambda v: DescribeProducersRequest(
        topics=[TopicRequest(name=TOPIC, partition_indexes=[0])]
    ),
    ApiKey.CONSUMER_GROUP_POSITION: lambda v: ConsumerGroupPositionRequest(
        group_id=GROUP,
        generation_id=-1,
        topics=[
            ConsumerGroupPositionRequestTopic(
                name=TOPIC,
                partitions=[ConsumerGroupPositionRequestPartition(partition_index=0, need_position=True)],
            )
        ],
    ),
    ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS: lambda v: PartitionLeaderEpochsForPartitionsRequest(
        topics=[
            PartitionLeaderEpochsForPartitionsRequestTopic(
                name=NEVER_RESIZED, partitions=[PartitionLeaderEpochsForPartitionsRequestPartition(partition_index=0)]
            )
        ],
    ),
    ApiKey.DESCRIBE_WITHHELD: lambda v: DescribeWithheldRequest(
        topics=[DescribeWithheldRequestTopic(name=TOPIC, partition_indexes=[0])]
    ),
    ApiKey.TOPIC_READERS: lambda v: TopicReadersRequest(
        topics=[TopicReadersRequestTopic(name=TOPIC, partition_indexes=[0])]
    ),
}


@pytest.fixture(scope="module")
def one_broker() -> Iterator[ProcessCluster]:
    with ProcessCluster(brokers=1) as cluster:
        create_topic(cluster.bootstrap, TOPIC, 1)
        create_topic(cluster.bootstrap, NEVER_RESIZED, 1)
        for version in range(API[ApiKey.DELETE_TOPICS].min_version, API[ApiKey.DELETE_TOPICS].max_version + 1):
            create_topic(cluster.bootstrap, f"made-{version}", 1)
        trio.run(coordinator_loaded, cluster.bootstrap)
        yield cluster


async def coordinator_loaded(bootstrap: str) -> None:
    """Wait until ``GROUP`` has a coordinator. The first request for the coordinator creates the internal topic."""
    with trio.fail_after(60):
        while errors_in(await ask(bootstrap, REQUESTS[ApiKey.FIND_COORDINATOR](4), 4)) != set():
            await trio.sleep(0.05)  # polls: the internal topic is created
        while errors_in(await ask(bootstrap, offset_fetch(7), 7)) != set():
            await trio.sleep(0.05)  # polls: its partition is loaded


async def ask(bootstrap: str, request: Message, version: int) -> Message:
    host, port = bootstrap.split(",")[0].split(":")
    async with Channel.open(TrioNetwork(), host, int(port), client_id="versions") as channel:
        response: Message = await channel.request(request, version=version, timeout_s=30)
        return response


def errors_in(value: object) -> set[ErrorCode]:
    """All error codes in a response except NONE."""
    if isinstance(value, list):
        return {code for item in value for code in errors_in(item)}
    if not isinstance(value, Message) and not hasattr(type(value), "__slots__"):
        return set()
    found = set()
    for name in getattr(type(value), "__slots__", ()):
        inner = getattr(value, name)
        if name == "error_code" and inner:
            found.add(ErrorCode.of(inner))
        elif not isinstance(inner, uuid.UUID | bytes | str | int):
            found |= errors_in(inner)
    return found


CASES = [
    (key, version)
    for key in sorted(REQUESTS)
    for version in range(max(API[key].min_version, 3 if key is ApiKey.PRODUCE else 0), API[key].max_version + 1)
]


@pytest.mark.parametrize(("key", "version"), CASES, ids=[f"{key.name}-{version}" for key, version in CASES])
def test_each_version_of_each_api_is_answered(one_broker: ProcessCluster, key: ApiKey, version: int) -> None:
    response = trio.run(functools.partial(ask, one_broker.bootstrap, REQUESTS[key](version), version))
    refused = EXPECTED.get((key, version), EXPECTED.get((key, None), set()))
    assert errors_in(response) == refused


def test_every_advertised_api_has_requests_in_this_file(one_broker: ProcessCluster) -> None:
    response = trio.run(functools.partial(ask, one_broker.bootstrap, ApiVersionsRequest(), 0))
    advertised = {ApiKey(entry.api_key): (entry.min_version, entry.max_version) for entry in response.api_keys}
    assert set(advertised) - FROM_CONTROLLER == set(REQUESTS)
    assert advertised == {key: (API[key].min_version, API[key].max_version) for key in advertised}
