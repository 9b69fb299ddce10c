"""Converts between protocol messages and the types of ``Admin``. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from anabranch.client.admin.types import (
    ALL_BROKERS,
    ClusterDescription,
    ConfigEntry,
    ConfigOp,
    ConfigSynonym,
    ControllerDescription,
    GroupDescription,
    LogDirDescription,
    MemberDescription,
    NewTopic,
    PartitionReassignment,
    ReplicaSize,
    RetainedOnReplica,
)
from anabranch.client.cluster import Node
from anabranch.client.errors import ErrorCode, KafkaError, error_for
from anabranch.client.group.group_protocol import PROTOCOL_TYPE, decode_assignment
from anabranch.protocol.config_resources import ResourceType
from anabranch.protocol.generated import alter_configs as alter
from anabranch.protocol.generated import incremental_alter_configs as incremental
from anabranch.protocol.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from anabranch.protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.generated.create_topics import CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig
from anabranch.protocol.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.generated.describe_cluster import (
    DescribeClusterActiveController,
    DescribeClusterController,
    DescribeClusterResponse,
)
from anabranch.protocol.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from anabranch.protocol.generated.describe_groups import DescribedGroup, DescribedGroupMember
from anabranch.protocol.generated.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsRetained,
)
from anabranch.protocol.generated.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from anabranch.protocol.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from anabranch.protocol.generated.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from anabranch.protocol.request_kinds import ElectionType, StockCheck
from anabranch.protocol.sentinels import NO_COUNT
from anabranch.protocol.types import TopicPartition

_INT16_MAX = 2**15 - 1
_INT32_MAX = 2**31 - 1


class ConfigOwner(NamedTuple):
    """The owner of a config: Kafka's resource type, and the name in requests."""

    type: int
    name: str

    @classmethod
    def topic(cls, name: str) -> ConfigOwner:
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int) -> ConfigOwner:
        """The resource of a broker; ``ALL_BROKERS`` stands for the default of all brokers."""
        return cls(ResourceType.BROKER, "" if broker_id == ALL_BROKERS else str(broker_id))

    @classmethod
    def loggers(cls, broker_id: int) -> ConfigOwner:
        return cls(ResourceType.BROKER_LOGGER, str(broker_id))


def code_error(code: int, what: str | None = None, message: str | None = None) -> KafkaError | None:
    """The error for a code; None for no error. The error's message begins with ``what``, if ``what`` is given."""
    if not code:
        return None
    detail = message or ErrorCode.of(code).message
    names_subject = what is None or detail.startswith(f"{what} ")
    return error_for(code, detail if names_subject else f"{what}: {detail}")


def first_error(results: Iterable[Any]) -> KafkaError | None:
    """The first error among results that have ``name``, ``error_code`` and ``error_message``."""
    for result in results:
        if result.error_code:
            return code_error(result.error_code, result.name, result.error_message)
    return None


def first_resource_error(response: Any) -> KafkaError | None:
    """The first error of an AlterConfigs or IncrementalAlterConfigs response."""
    for result in response.responses:
        if result.error_code:
            return code_error(result.error_code, result.resource_name, result.error_message)
    return None


# ---------------------------------------------------------------- topics


def creatable(topic: NewTopic) -> CreatableTopic:
    """The request's entry for a topic. Raises ``KafkaError`` for counts that do not fit into the fields."""
    _fits(ErrorCode.INVALID_PARTITIONS, topic.name, "partition count", topic.num_partitions, _INT32_MAX)
    _fits(ErrorCode.INVALID_REPLICATION_FACTOR, topic.name, "replication factor", topic.replication_factor, _INT16_MAX)
    assigned = bool(topic.replica_assignments)
    return CreatableTopic(
        name=topic.name,
        num_partitions=NO_COUNT if assigned else topic.num_partitions,
        replication_factor=NO_COUNT if assigned else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=p, broker_ids=list(brokers))
            for p, brokers in sorted(topic.replica_assignments.items())
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def counts_question(topic: str, timeout_ms: int, **wanted: bool) -> CreatePartitionsRequest:
    """A question to the controller about a topic's count. A broker that does not know it refuses ``NO_COUNT``."""
    asked = CreatePartitionsTopic(name=topic, count=NO_COUNT, assignments=None, **wanted)
    return CreatePartitionsRequest(topics=[asked], timeout_ms=timeout_ms, validate_only=True)


def partition_counts(
    counts: Mapping[str, int], timeout_ms: int, validate_only: bool, spares_stock_producers: bool
) -> CreatePartitionsRequest:
    """A request for counts by topic. Raises ``KafkaError`` for a count that does not fit into the field."""
    for name, count in counts.items():
        _fits(ErrorCode.INVALID_PARTITIONS, name, "partition count", count, _INT32_MAX)
    return CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in counts.items()],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
        stock_check=StockCheck.PRODUCERS if validate_only and spares_stock_producers else StockCheck.NONE,
    )


def _fits(code: ErrorCode, topic: str, what: str, count: int, largest: int) -> None:
    if not -largest <= count <= largest:
        raise KafkaError(code, f"{topic}: {what} {count} is out of range; the largest possible is {largest}")


def delete_topics(names: Iterable[str], timeout_ms: int) -> DeleteTopicsRequest:
    """A request that fits all versions: version 6 has ``topics``, earlier versions have ``topic_names``."""
    wanted = list(names)
    return DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in wanted], topic_names=wanted, timeout_ms=timeout_ms
    )


def delete_records_topics(before: Mapping[TopicPartition, int]) -> list[DeleteRecordsTopic]:
    topics: dict[str, DeleteRecordsTopic] = {}
    for tp, offset in before.items():
        topics.setdefault(tp.topic, DeleteRecordsTopic(name=tp.topic)).partitions.append(
            DeleteRecordsPartition(partition_index=tp.partition, offset=offset)
        )
    return list(topics.values())


def read_deleted_records(response: DeleteRecordsResponse) -> dict[TopicPartition, int]:
    lows: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            error = code_error(p.error_code, str(tp))
            if error is not None:
                raise error
            lows[tp] = p.low_watermark
    return lows


# ---------------------------------------------------------------- leaders and replicas


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, in the order given."""
    found: dict[str, list[int]] = {}
    for tp in partitions:
        found.setdefault(tp.topic, []).append(tp.partition)
    return found


def elect_leaders(
    election_type: ElectionType, partitions: Iterable[TopicPartition] | None, timeout_ms: int
) -> ElectLeadersRequest:
    named = None if partitions is None else by_topic(dict.fromkeys(partitions))
    wanted = None if named is None else [TopicPartitions(topic=n, partitions=p) for n, p in named.items()]
    return ElectLeadersRequest(election_type=int(election_type), topic_partitions=wanted, timeout_ms=timeout_ms)


def read_elections(response: ElectLeadersResponse) -> dict[TopicPartition, KafkaError | None]:
    results = {}
    for topic in response.replica_election_results:
        for p in topic.partition_result:
            tp = TopicPartition(topic.topic, p.partition_id)
            results[tp] = code_error(p.error_code, str(tp), p.error_message)
    return results


def alter_partition_reassignments(
    targets: Mapping[TopicPartition, Sequence[int] | None], timeout_ms: int
) -> AlterPartitionReassignmentsRequest:
    topics: dict[str, ReassignableTopic] = {}
    for tp, replicas in targets.items():
        topics.setdefault(tp.topic, ReassignableTopic(name=tp.topic)).partitions.append(
            ReassignablePartition(partition_index=tp.partition, replicas=None if replicas is None else list(replicas))
        )
    return AlterPartitionReassignmentsRequest(topics=list(topics.values()), timeout_ms=timeout_ms)


def read_altered_reassignments(
    response: AlterPartitionReassignmentsResponse,
) -> dict[TopicPartition, KafkaError | None]:
    results = {}
    for topic in response.responses:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            results[tp] = code_error(p.error_code, str(tp), p.error_message)
    return results


def list_partition_reassignments(
    partitions: Iterable[TopicPartition] | None, timeout_ms: int
) -> ListPartitionReassignmentsRequest:
    named = None if partitions is None else by_topic(dict.fromkeys(partitions))
    wanted = None
    if named is not None:
        wanted = [ListPartitionReassignmentsTopics(name=n, partition_indexes=p) for n, p in named.items()]
    return ListPartitionReassignmentsRequest(topics=wanted, timeout_ms=timeout_ms)


def read_reassignments(response: ListPartitionReassignmentsResponse) -> dict[TopicPartition, PartitionReassignment]:
    return {
        TopicPartition(topic.name, p.partition_index): PartitionReassignment(
            tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
        )
        for topic in response.topics
        for p in topic.partitions
    }


# ---------------------------------------------------------------- configs


def describe_configs(resources: Iterable[ConfigOwner], keys: Sequence[str] | None) -> DescribeConfigsRequest:
    wanted = None if keys is None else list(keys)
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=r.type, resource_name=r.name, configuration_keys=wanted)
            for r in resources
        ],
        include_documentation=True,
        include_synonyms=True,
    )


def read_configs(response: DescribeConfigsResponse) -> dict[str | int, dict[str, ConfigEntry]]:
    found: dict[str | int, dict[str, ConfigEntry]] = {}
    for result in response.results:
        error = code_error(result.error_code, result.resource_name, result.error_message)
        if error is not None:
            raise error
        name: str | int = result.resource_name
        if result.resource_type == ResourceType.BROKER:
            name = int(result.resource_name) if result.resource_name else ALL_BROKERS
        found[name] = {c.name: _config_entry(c) for c in result.configs}
    return found


def _config_entry(c: DescribeConfigsResourceResult) -> ConfigEntry:
    synonyms = tuple(ConfigSynonym(s.name, s.value, s.source) for s in c.synonyms)
    return ConfigEntry(c.name, c.value, c.config_source, c.read_only, c.is_sensitive, c.documentation, synonyms)


def alter_configs(
    resource: ConfigOwner, values: Mapping[str, str | None], validate_only: bool
) -> alter.AlterConfigsRequest:
    configs = [alter.AlterableConfig(name=name, value=value) for name, value in values.items()]
    target = alter.AlterConfigsResource(resource_type=resource.type, resource_name=resource.name, configs=configs)
    return alter.AlterConfigsRequest(resources=[target], validate_only=validate_only)


def incremental_alter_configs(
    resource: ConfigOwner, values: Mapping[str, str | tuple[ConfigOp, str | None] | None], validate_only: bool
) -> incremental.IncrementalAlterConfigsRequest:
    configs: list[incremental.AlterableConfig] = []
    for name, value in values.items():
        if isinstance(value, tuple):
            operation, text = value
        else:
            operation, text = (ConfigOp.DELETE if value is None else ConfigOp.SET), value
        configs.append(incremental.AlterableConfig(name=name, config_operation=int(operation), value=text))
    target = incremental.AlterConfigsResource(resource_type=resource.type, resource_name=resource.name, configs=configs)
    return incremental.IncrementalAlterConfigsRequest(resources=[target], validate_only=validate_only)


# ---------------------------------------------------------------- log dirs and groups


def describe_log_dirs(partitions: Iterable[TopicPartition] | None) -> DescribeLogDirsRequest:
    if partitions is None:
        return DescribeLogDirsRequest(topics=None)
    topics: dict[str, DescribableLogDirTopic] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, DescribableLogDirTopic(topic=tp.topic)).partitions.append(tp.partition)
    return DescribeLogDirsRequest(topics=list(topics.values()))


def read_log_dirs(response: DescribeLogDirsResponse) -> list[LogDirDescription]:
    """Read a response. Raises the error of the whole request, which exists since version 3 (KIP-784)."""
    error = code_error(response.error_code, "DescribeLogDirs")
    if error is not None:
        raise error
    return [
        LogDirDescription(
            result.log_dir,
            {
                TopicPartition(topic.name, p.partition_index): ReplicaSize(
                    p.partition_size, p.offset_lag, p.is_future_key, _read_retained(p.retained)
                )
                for topic in result.topics
                for p in topic.partitions
            },
            code_error(result.error_code, result.log_dir),
            None if result.total_bytes < 0 else result.total_bytes,
            None if result.usable_bytes < 0 else result.usable_bytes,
        )
        for result in response.results
    ]


def _read_retained(retained: DescribeLogDirsRetained | None) -> RetainedOnReplica | None:
    if retained is None:
        return None
    return RetainedOnReplica(
        retained.start_offset,
        retained.end_offset,
        retained.size_bytes,
        retained.since_ms,
        retained.until_ms,
        retained.group_id,
    )


def read_cluster(response: DescribeClusterResponse) -> ClusterDescription:
    nodes = sorted((Node(b.broker_id, b.host, b.port, b.rack) for b in response.brokers), key=lambda node: node.id)
    active, running = response.active_controller, response.running_controllers
    in_office = None if active is None or active.controller_id < 0 else _read_controller(active)
    standby = None
    if running is not None:
        others = [one for one in running if in_office is None or one.controller_id != in_office.id]
        standby = tuple(map(_read_controller, others))
    return ClusterDescription(
        response.cluster_id, response.controller_id, tuple(nodes), in_office, active is not None, standby
    )


def _read_controller(controller: DescribeClusterActiveController | DescribeClusterController) -> ControllerDescription:
    return ControllerDescription(controller.controller_id, controller.host, controller.port, controller.release or None)


def read_group(group: DescribedGroup, coordinator: Node) -> GroupDescription:
    members = tuple(_read_member(member, group.protocol_type) for member in group.members)
    return GroupDescription(
        group.group_id, group.group_state, group.protocol_type, group.protocol_data, members, coordinator
    )


def _read_member(member: DescribedGroupMember, protocol_type: str) -> MemberDescription:
    readable = protocol_type == PROTOCOL_TYPE
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        tuple(sorted(decode_assignment(member.member_assignment))) if readable else (),
        member.awaited_ms if member.awaited_ms >= 0 else None,
        member.wait_left_ms if member.wait_left_ms >= 0 else None,
    )


def offset_delete(group_id: str, partitions: Iterable[TopicPartition]) -> OffsetDeleteRequest:
    topics: dict[str, OffsetDeleteRequestTopic] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, OffsetDeleteRequestTopic(name=tp.topic)).partitions.append(
            OffsetDeleteRequestPartition(partition_index=tp.partition)
        )
    return OffsetDeleteRequest(group_id=group_id, topics=list(topics.values()))


def offset_delete_error(group_id: str, response: OffsetDeleteResponse) -> KafkaError | None:
    if response.error_code:
        return code_error(response.error_code, group_id)
    for topic in response.topics:
        for p in topic.partitions:
            if p.error_code:
                return code_error(p.error_code, f"{topic.name}-{p.partition_index}")
    return None
