"""The public admin client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

import anyio

from anabranch.client.admin import codec, features, resize
from anabranch.client.admin.arguments import ADMIN_RULES, OFFSET_SPECS
from anabranch.client.admin.types import (
    ALL_BROKERS,
    ClusterDescription,
    ConfigEntry,
    ConfigOp,
    CreatedTopic,
    FeatureMetadata,
    FeatureUpdate,
    GroupDescription,
    GroupListing,
    GroupPosition,
    LogDirDescription,
    NewTopic,
    PartitionLineage,
    PartitionReassignment,
    ResizeGoal,
    TopicDescription,
    TopicListing,
    WithheldPartition,
)
from anabranch.client.arguments import judged
from anabranch.client.cluster import Cluster, Node
from anabranch.client.config import LINEAGES_AT_ONCE, AdminConfig
from anabranch.client.errors import ErrorCode, KafkaError, KafkaTimeoutError, error_for
from anabranch.client.group.coordinator_link import CoordinatorLink, OffsetAndMetadata, committed_offset
from anabranch.client.lifecycle import Client
from anabranch.client.net.connections import CHANGES, backoff_ms
from anabranch.client.net.offsets import EpochEnd, OffsetAndTimestamp, OffsetQueries, ask_lineages, in_requests
from anabranch.client.options import AdminOptions
from anabranch.client.tasks import Tasks
from anabranch.ordered_resize.autoscale import Measured
from anabranch.protocol.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from anabranch.protocol.generated.create_partitions import CreatePartitionsResponse, CreatePartitionsTopicResult
from anabranch.protocol.generated.create_topics import CreateTopicsRequest
from anabranch.protocol.generated.delete_groups import DeleteGroupsRequest
from anabranch.protocol.generated.delete_records import DeleteRecordsRequest
from anabranch.protocol.generated.describe_cluster import DescribeClusterRequest
from anabranch.protocol.generated.describe_groups import DescribeGroupsRequest
from anabranch.protocol.generated.describe_withheld import DescribeWithheldRequest, DescribeWithheldRequestTopic
from anabranch.protocol.generated.list_groups import ListGroupsRequest
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from anabranch.protocol.message import Message
from anabranch.protocol.request_kinds import ElectionType
from anabranch.protocol.sentinels import (
    NO_EPOCH,
    NO_INCARNATION,
    NO_OFFSET,
    NO_TIMESTAMP,
)
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from anabranch.runtime.release import SOFTWARE_NAME, sent_version

T = TypeVar("T")

_FINAL_FOR_CHANGES = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Errors that are final for a change: the controller knows every topic, so an unknown topic does not exist."""

_STILL = "; the request may still be carried out"
"""The end of the error message of a change that got no response."""


@judged(ADMIN_RULES)
class Admin(Client[AdminConfig]):
    """``anabranch.Admin`` with an explicit environment."""

    def __init__(self, *, env: Env, **config: Unpack[AdminOptions]) -> None:
        super().__init__(AdminConfig.parse(config), env)
        self._queries: OffsetQueries

    async def _start(self, tasks: Tasks) -> None:
        self._metadata = self._make_metadata(allow_auto_create=False)
        self._queries = self._make_queries()
        self._connections.on_lost = lambda node_id: self._metadata.request_update()
        tasks.start_soon(self._metadata.run)

    def outage(self, least_s: float) -> str | None:
        """The problem if no broker has answered for ``least_s`` seconds. Otherwise, or if no response is due: None."""
        self._ensure_open()
        return self._metadata.silence_of(least_s)

    # ------------------------------------------------------------ asking

    async def _retry(
        self,
        what: str,
        attempt_once: Callable[[], Awaitable[T]],
        *,
        final: frozenset[ErrorCode] = frozenset(),
        timeout_ms: int | None = None,
        unless_answered: str = "",
    ) -> T:
        """Repeat ``attempt_once`` until it raises no retriable error, for at most ``timeout_ms``.

        ``timeout_ms`` is ``default_api_timeout_ms`` unless given. ``final`` are codes that are retriable elsewhere and
        final here. ``unless_answered`` ends the message of the time-out.
        """
        self._ensure_open()
        config = self._config
        limit_ms = config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        attempt, failure = 0, None
        with anyio.move_on_after(limit_ms / 1000):
            while True:
                self._ensure_open()
                attempt += 1
                try:
                    return await attempt_once()
                except KafkaError as error:
                    if not error.code.retriable or error.code in final or attempt > config.retries:
                        raise
                    failure = error
                first_ms, max_ms = config.retry_backoff_ms, config.retry_backoff_max_ms
                await anyio.sleep(backoff_ms(attempt, first_ms, max_ms, self._env.rng.random()) / 1000)
        metadata = self._metadata
        why = failure.message + metadata.address_hint if failure else metadata.silence or "there is no response yet"
        raise KafkaTimeoutError(f"{what} did not succeed within {limit_ms} ms: {why}{unless_answered}") from failure

    async def _ask(self, what: str, body: Message, node_id: int | None = None) -> Any:
        """Send a request to any broker, or to the one with ``node_id``. Errors in the response are not checked."""

        async def once() -> Any:
            node = self._metadata.any_node() if node_id is None else await self._node(node_id)
            return await self._connections.request(node, body)

        return await self._retry(what, once)

    async def _change(
        self,
        what: str,
        body: Message,
        first_error: Callable[[Any], KafkaError | None],
        node_id: int | None = None,
        *,
        changes: bool = True,
    ) -> Any:
        """Send a change and raise the first error of the response. Errors such as NOT_CONTROLLER are tried again.

        ``changes`` is False for a request that only validates.
        """

        async def once() -> Any:
            node = self._metadata.any_node(CHANGES) if node_id is None else await self._node(node_id)
            response = await self._connections.request(node, body, purpose=CHANGES)
            error = first_error(response)
            if error is not None:
                raise error
            return response

        return await self._retry(what, once, final=_FINAL_FOR_CHANGES, unless_answered=_STILL if changes else "")

    async def _node(self, node_id: int) -> Node:
        await self._metadata.ready(self._config.default_api_timeout_ms)
        node = self._metadata.node(node_id)
        if node is None:
            await self._metadata.refresh()
            node = self._metadata.node(node_id)
        if node is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {node_id}")
        return node

    async def _describe(self, topics: Iterable[str] | None) -> Cluster:
        """Fresh metadata of ``topics``, or of all topics."""
        request = MetadataRequest(
            topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
        )
        response: MetadataResponse = await self._ask("Metadata", request)
        return Cluster().merge(response, None)

    # ------------------------------------------------------------ topics

    async def create_topics(
        self, topics: Iterable[NewTopic], *, timeout_ms: int | None = None, validate_only: bool = False
    ) -> dict[str, CreatedTopic]:
        """Create topics; ``validate_only`` checks them and creates none. Returns the created topics by name."""
        request = CreateTopicsRequest(
            topics=[codec.creatable(topic) for topic in topics],
            timeout_ms=self._timeout_ms(timeout_ms),
            validate_only=validate_only,
        )
        response = await self._change(
            "CreateTopics", request, lambda r: codec.first_error(r.topics), changes=not validate_only
        )
        return {
            t.name: CreatedTopic(t.name, t.topic_id, t.num_partitions, t.replication_factor) for t in response.topics
        }

    async def delete_topics(self, names: Iterable[str], *, timeout_ms: int | None = None) -> None:
        """Delete topics with their records."""
        request = codec.delete_topics(names, self._timeout_ms(timeout_ms))
        await self._change("DeleteTopics", request, lambda r: codec.first_error(r.responses))

    async def list_topics(self, *, include_internal: bool = True) -> list[TopicListing]:
        """All topics, sorted by name."""
        cluster = await self._describe(None)
        return [
            TopicListing(topic.name, topic.topic_id, topic.internal)
            for _, topic in sorted(cluster.topics.items())
            if include_internal or not topic.internal
        ]

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Topics by name. Raises UNKNOWN_TOPIC_OR_PARTITION if one does not exist."""
        wanted = list(names)
        cluster = await self._describe(wanted)
        found: dict[str, TopicDescription] = {}
        for name in wanted:
            topic = cluster.topics.get(name)
            if topic is None or topic.error is not ErrorCode.NONE:
                code = topic.error if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise error_for(code, f"{name}: {code.message}")
            found[name] = TopicDescription(
                name,
                topic.topic_id,
                topic.internal,
                tuple(topic.partitions.values()),
                topic.initial_partition_count,
                topic.undeleted_partition_count,
                topic.layout_version,
                topic.ordered_delivery,
            )
        return found

    async def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        timeout_ms: int | None = None,
        validate_only: bool = False,
        spares_stock_producers: bool = False,
    ) -> dict[str, str]:
        """Set the partition count of each topic; a lower count merges partitions (KIP-253).

        The call returns when every leader has the new layout. If another resize has to end first, the count is queued
        and the call returns at once. POLICY_VIOLATION means that the resize is not possible now. INVALID_PARTITIONS
        means that it is never possible. ``validate_only`` checks this and changes nothing. A count cannot be below the
        count at the topic's creation. If a response is lost, the request is repeated. If the topic already has the
        count by then, no error is raised.

        Returns advice by topic, such as a warning that recent stock producers cannot follow the count. With
        ``validate_only`` and ``spares_stock_producers`` this warning is raised as POLICY_VIOLATION instead.
        """
        request = codec.partition_counts(counts, self._timeout_ms(timeout_ms), validate_only, spares_stock_producers)
        is_repeated = False
        advice: dict[str, str] = {}

        async def once() -> None:
            nonlocal is_repeated
            try:
                response = await self._connections.request(self._metadata.any_node(CHANGES), request, purpose=CHANGES)
                with_advice = (result for result in response.results if result.error_message and not result.error_code)
                advice.update((result.name, result.error_message) for result in with_advice)
                results = response.results
                if is_repeated and not validate_only:
                    results = [result for result in results if not await self._check_carried_out(result, counts)]
                error = codec.first_error(results)
                if error is not None:
                    raise error
            except KafkaError:
                is_repeated = True
                raise

        await self._retry("CreatePartitions", once, final=_FINAL_FOR_CHANGES)
        return advice

    async def measured_appends(self, topic: str) -> Measured:
        """The controller's measurement of the bytes appended to a topic, on which ``autoscale.enable`` is based.

        A topic without ``autoscale.enable`` is not measured before the first call. INVALID_PARTITIONS means that the
        broker is not Anabranch's.
        """
        result = await self._counts_of(topic, wants_measured=True)
        return Measured(result.appended_bytes, result.elapsed_ms, result.unchanged_ms)

    async def resize_goal(self, topic: str) -> ResizeGoal:
        """The counts of the last and the queued resize. INVALID_PARTITIONS: the broker does not know the question."""
        result = await self._counts_of(topic, wants_goal=True)
        return ResizeGoal(result.goal_count, None if result.queued_count < 0 else result.queued_count)

    async def _counts_of(self, topic: str, **wanted: bool) -> CreatePartitionsTopicResult:
        request = codec.counts_question(topic, self._timeout_ms(None), **wanted)

        async def once() -> CreatePartitionsTopicResult:
            response: CreatePartitionsResponse = await self._connections.request(self._metadata.any_node(), request)
            if (error := codec.first_error(response.results)) is not None:
                raise error
            return response.results[0]

        return await self._retry("CreatePartitions", once, final=_FINAL_FOR_CHANGES)

    async def describe_features(self, *, broker: int | None = None) -> FeatureMetadata:
        """The features that a broker (default: any) supports, and those finalized in the cluster (KIP-584)."""

        return features.read_features(await self._api_versions(broker))

    async def describe_release(self, broker: int) -> str | None:
        """The release of this project's software that a broker runs; None for another product."""
        return (await self._api_versions(broker)).software_version or None

    async def _api_versions(self, broker: int | None = None) -> ApiVersionsResponse:
        body = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=sent_version())
        response: ApiVersionsResponse = await self._ask("ApiVersions", body, broker)
        error = codec.code_error(response.error_code, "ApiVersions")
        if error is not None:
            raise error
        return response

    async def update_features(
        self, updates: Mapping[str, FeatureUpdate], *, timeout_ms: int | None = None, validate_only: bool = False
    ) -> dict[str, KafkaError | None]:
        """Finalize, downgrade or delete feature levels (KIP-584). Returns each feature's error, or None.

        INVALID_REQUEST means that the request is wrong, FEATURE_UPDATE_FAILED that the cluster does not allow the
        update. If a response is lost, the request is repeated. If the feature already has the level by then, this is no
        error.
        """
        request = features.update_request(updates, self._timeout_ms(timeout_ms), validate_only=validate_only)
        is_repeated = False

        async def once() -> dict[str, KafkaError | None]:
            nonlocal is_repeated
            try:
                response = await self._connections.request(self._metadata.any_node(CHANGES), request, purpose=CHANGES)
                results = features.read_results(response)
            except KafkaError:
                is_repeated = True
                raise
            if is_repeated and not validate_only and any(results.values()):
                finalized = (await self.describe_features()).finalized
                for name, update in updates.items():
                    level = finalized[name].max if name in finalized else 0
                    results[name] = None if level == max(update.max_version_level, 0) else results[name]
            return results

        return await self._retry("UpdateFeatures", once, unless_answered="" if validate_only else _STILL)

    async def _check_carried_out(self, result: CreatePartitionsTopicResult, counts: Mapping[str, int]) -> bool:
        """Find out whether a count was refused because the topic already has this count."""
        if result.error_code != ErrorCode.INVALID_PARTITIONS:
            return False
        return (await self.describe_topics([result.name]))[result.name].partition_count == counts[result.name]

    async def lineages(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PartitionLineage]:
        """Returns the lineage of each partition: the partitions that had its keys before (KIP-253).

        The result lacks a partition if no broker answers for the partition within ``timeout_ms``, for example because
        its topic was just deleted.
        """
        asked = list(partitions)
        found: dict[TopicPartition, PartitionLineage] = {}

        async def once() -> None:
            refused: KafkaError | None = None
            for some in in_requests([tp for tp in asked if tp not in found], LINEAGES_AT_ONCE):
                response = await ask_lineages(self._connections, self._metadata, some, lambda _: NO_INCARNATION)
                answered, error = resize.read_lineages(response)
                found.update(answered)
                refused = refused or error
            if refused is not None:
                raise refused

        try:
            await self._retry("PartitionLeaderEpochsForPartitions", once, timeout_ms=timeout_ms)
        except KafkaTimeoutError as error:
            if not isinstance(error.__cause__, KafkaError) or error.__cause__.code not in resize.ASK_AGAIN:
                raise
        return found

    async def withheld_partitions(self, topic: TopicDescription) -> dict[int, WithheldPartition]:
        """Returns each partition's leader epochs served to stock consumers, and the groups its leader waits for."""
        asked = DescribeWithheldRequestTopic(name=topic.name, partition_indexes=[p.partition for p in topic.partitions])
        request = DescribeWithheldRequest(topics=[asked])
        found: dict[int, WithheldPartition] = {}
        for leader in sorted({p.leader for p in topic.partitions if p.leader >= 0}):
            found |= resize.read_withheld(await self._ask("DescribeWithheld", request, leader))
        return found

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], *, within_ms: int | None = None
    ) -> dict[TopicPartition, EpochEnd]:
        """Asks each partition's leader for the end offset (exclusive) of a leader epoch; see ``EpochEnd``.

        With ``within_ms``, the result leaves out each partition whose leader does not answer in that time.
        """
        await self._retry("Metadata", lambda: self._know({tp.topic for tp in epochs}))
        timeout_ms, partial = self._patience(within_ms)
        return await self._queries.epoch_ends(epochs, timeout_ms, partial=partial)

    def _patience(self, within_ms: int | None) -> tuple[int, bool]:
        """The time limit for asking leaders, and whether partitions without an answer are left out."""
        return (self._config.default_api_timeout_ms, False) if within_ms is None else (within_ms, True)

    async def elect_leaders(
        self,
        election_type: ElectionType = ElectionType.PREFERRED,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect leaders of these partitions, or of all that need it (KIP-460). Returns each partition's error, or None.

        ELECTION_NOT_NEEDED means that the partition has the right leader already.
        """
        request = codec.elect_leaders(election_type, partitions, self._timeout_ms(timeout_ms))
        what = "ElectLeaders"
        response = await self._change(what, request, lambda r: codec.code_error(r.error_code, what))
        return codec.read_elections(response)

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, KafkaError | None]:
        """Begin to move each partition to these replicas, the preferred first; None cancels a move (KIP-455).

        Returns each partition's error, or None. ``list_partition_reassignments`` lists the moves that are not done yet.
        """
        request = codec.alter_partition_reassignments(targets, self._timeout_ms(timeout_ms))
        what = "AlterPartitionReassignments"
        response = await self._change(what, request, lambda r: codec.code_error(r.error_code, what, r.error_message))
        return codec.read_altered_reassignments(response)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Returns the partitions that are moving to other replicas; if ``partitions`` is given, only those of them."""
        request = codec.list_partition_reassignments(partitions, self._timeout_ms(timeout_ms))
        what = "ListPartitionReassignments"
        response = await self._change(
            what, request, lambda r: codec.code_error(r.error_code, what, r.error_message), changes=False
        )
        return codec.read_reassignments(response)

    async def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before each offset (-1: before the high watermark). Returns the new first offsets."""

        async def once() -> dict[TopicPartition, int]:
            await self._know({tp.topic for tp in before})
            lows: dict[TopicPartition, int] = {}
            for node, tps in self._by_leader(before).items():
                request = DeleteRecordsRequest(
                    topics=codec.delete_records_topics({tp: before[tp] for tp in tps}),
                    timeout_ms=self._timeout_ms(timeout_ms),
                )
                response = await self._connections.request(node, request, purpose=CHANGES)
                lows |= codec.read_deleted_records(response)
            return lows

        return await self._retry("DeleteRecords", once, unless_answered=_STILL)

    async def list_offsets(
        self,
        specs: Mapping[TopicPartition, str | int],
        *,
        read_committed: bool = False,
        within_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets by spec: "earliest", "latest", "max_timestamp", or a timestamp in ms.

        A partition without a record at or after the timestamp has offset -1. With ``within_ms``, a partition also has
        -1 if it has no leader or its leader does not answer in time. Without ``within_ms`` such a partition is an error
        after ``default_api_timeout_ms``.
        """
        self._ensure_open()
        timestamps = {tp: OFFSET_SPECS[spec] if isinstance(spec, str) else spec for tp, spec in specs.items()}
        await self._retry("Metadata", lambda: self._know({tp.topic for tp in specs}))
        timeout_ms, partial = self._patience(within_ms)
        found = await self._queries.list_offsets(timestamps, timeout_ms, read_committed=read_committed, partial=partial)
        return {tp: found.get(tp, OffsetAndTimestamp(NO_OFFSET, NO_TIMESTAMP, NO_EPOCH)) for tp in specs}

    async def _know(self, topics: set[str]) -> None:
        """Fetch metadata of ``topics``. The error of a topic that does not exist is raised at once."""
        for topic in sorted(topics):
            self._metadata.want(topic)
        await self._metadata.refresh()
        for topic in sorted(topics):
            info = self._metadata.cluster.topics.get(topic)
            if info is None or not info.partitions:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error
                raise KafkaError(code, f"{topic}: {code.message}")

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> dict[Node, list[TopicPartition]]:
        found: dict[Node, list[TopicPartition]] = {}
        for tp in partitions:
            leader = self._metadata.leader(tp)
            if leader is None:
                raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader")
            found.setdefault(leader, []).append(tp)
        return found

    def _timeout_ms(self, timeout_ms: int | None) -> int:
        return self._config.request_timeout_ms if timeout_ms is None else timeout_ms

    # ------------------------------------------------------------ configs

    async def describe_configs(
        self, *, topics: Iterable[str] = (), brokers: Iterable[int] = (), keys: Sequence[str] | None = None
    ) -> dict[str | int, dict[str, ConfigEntry]]:
        """Config entries by key, for each topic name and broker id; ``keys`` None means all keys.

        ``ALL_BROKERS`` (-1) instead of a broker id is the default of all brokers. ``alter_configs`` and
        ``incremental_alter_configs`` accept it too.
        """
        found: dict[str | int, dict[str, ConfigEntry]] = {}
        resources = [codec.ConfigOwner.topic(name) for name in topics]
        asked: list[tuple[int | None, list[codec.ConfigOwner]]] = [(None, resources)] if resources else []
        asked += [(_asked(broker), [codec.ConfigOwner.broker(broker)]) for broker in brokers]
        for node_id, group in asked:
            response = await self._ask("DescribeConfigs", codec.describe_configs(group, keys), node_id)
            found |= codec.read_configs(response)
        return found

    async def alter_configs(
        self,
        *,
        topics: Mapping[str, Mapping[str, str | None]] | None = None,
        brokers: Mapping[int, Mapping[str, str | None]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Replace all overrides of each topic or broker by the given overrides."""
        for node_id, resource, values in _targets(topics, brokers):
            body = codec.alter_configs(resource, values, validate_only)
            await self._change("AlterConfigs", body, codec.first_resource_error, node_id, changes=not validate_only)

    async def incremental_alter_configs(
        self,
        *,
        topics: Mapping[str, Mapping[str, str | tuple[ConfigOp, str | None] | None]] | None = None,
        brokers: Mapping[int, Mapping[str, str | tuple[ConfigOp, str | None] | None]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change single keys: a value sets an override, None deletes it, (ConfigOp, value) names the operation."""
        for node_id, resource, values in _targets(topics, brokers):
            body = codec.incremental_alter_configs(resource, values, validate_only)
            await self._change(
                "IncrementalAlterConfigs", body, codec.first_resource_error, node_id, changes=not validate_only
            )

    async def describe_loggers(self, broker: int) -> dict[str, ConfigEntry]:
        """The level in force of each logger of a broker, by name."""
        request = codec.describe_configs([codec.ConfigOwner.loggers(broker)], None)
        found = codec.read_configs(await self._ask("DescribeConfigs", request, broker))
        return found[str(broker)]

    async def alter_loggers(
        self, broker: int, levels: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set loggers' levels until the broker stops: a Kafka level (TRACE to FATAL), or None for the parent's."""
        body = codec.incremental_alter_configs(codec.ConfigOwner.loggers(broker), levels, validate_only)
        await self._change(
            "IncrementalAlterConfigs", body, codec.first_resource_error, broker, changes=not validate_only
        )

    # ------------------------------------------------------------ cluster

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster: its id, its brokers and its controller."""
        response = await self._ask("DescribeCluster", DescribeClusterRequest())
        if response.error_code:
            raise error_for(response.error_code, response.error_message)
        return codec.read_cluster(response)

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[int, list[LogDirDescription]]:
        """The log directories of ``brokers`` (default: all), with the replicas of ``partitions`` (default: all)."""
        chosen = [node.id for node in (await self.describe_cluster()).nodes] if brokers is None else list(brokers)
        found: dict[int, list[LogDirDescription]] = {}
        request = codec.describe_log_dirs(partitions)
        for broker in chosen:
            response = await self._ask("DescribeLogDirs", request, broker)
            found[broker] = codec.read_log_dirs(response)
        return found

    # ------------------------------------------------------------ groups

    def _link(self, group_id: str) -> CoordinatorLink:
        self._ensure_open()
        return self._make_link(group_id)

    async def _ask_coordinator(
        self, what: str, group_id: str, body: Message, error_of: Callable[[Any], KafkaError | None]
    ) -> tuple[Any, Node]:
        link = self._link(group_id)

        async def once() -> tuple[Any, Node]:
            response = await link.request(body)
            error = error_of(response)
            if error is not None:
                link.moved()
                raise error
            return response, await link.find()

        return await self._retry(what, once)

    async def list_groups(self, *, states: Iterable[str] = ()) -> list[GroupListing]:
        """Returns all coordinators' groups, sorted by id; if ``states`` are given, only groups in these states."""
        found: dict[str, GroupListing] = {}
        for node in (await self.describe_cluster()).nodes:
            body = ListGroupsRequest(states_filter=list(states))

            async def once(node: Node = node, body: Message = body) -> Any:
                response = await self._connections.request(node, body)
                error = codec.code_error(response.error_code, str(node))
                if error is not None:
                    raise error
                return response

            response = await self._retry("ListGroups", once)
            for group in response.groups:
                found[group.group_id] = GroupListing(group.group_id, group.protocol_type, group.group_state)
        return [found[group_id] for group_id in sorted(found)]

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Groups by id. A group that does not exist has state "Dead"."""
        found: dict[str, GroupDescription] = {}
        for group_id in group_ids:
            response, node = await self._ask_coordinator(
                "DescribeGroups",
                group_id,
                DescribeGroupsRequest(groups=[group_id]),
                lambda r: codec.code_error(r.groups[0].error_code, r.groups[0].group_id),
            )
            found[group_id] = codec.read_group(response.groups[0], node)
        return found

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups that have no members, with their offsets."""
        for group_id in group_ids:
            await self._ask_coordinator(
                "DeleteGroups",
                group_id,
                DeleteGroupsRequest(groups_names=[group_id]),
                lambda r: codec.code_error(r.results[0].error_code, r.results[0].group_id),
            )

    async def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group, for ``partitions`` or for all."""
        return await self._link(group_id).fetch_offsets(partitions, self._config.default_api_timeout_ms)

    async def group_positions(
        self, group_id: str, partitions: Iterable[TopicPartition] = ()
    ) -> dict[TopicPartition, GroupPosition]:
        """A group's positions in ``partitions`` (KIP-253).

        The default is every partition that a member waits for or has reported. A position counts once its flush
        callback has returned. The coordinator knows only positions of the present generation.
        """
        response, _ = await self._ask_coordinator(
            "ConsumerGroupPosition",
            group_id,
            resize.group_positions_request(group_id, partitions),
            lambda r: codec.code_error(r.error_code, group_id),
        )
        return resize.read_group_positions(response)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Set committed offsets of a group without members. Raises UNKNOWN_MEMBER_ID if the group has members."""
        chosen = {tp: committed_offset("offsets", offset) for tp, offset in offsets.items()}
        await self._link(group_id).commit_offsets(chosen, self._config.default_api_timeout_ms)

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete committed offsets. Raises GROUP_SUBSCRIBED_TO_TOPIC while a member reads the topic."""
        body = codec.offset_delete(group_id, partitions)
        await self._ask_coordinator("OffsetDelete", group_id, body, lambda r: codec.offset_delete_error(group_id, r))


def _asked(broker: int) -> int | None:
    """The broker to ask for the configs of ``broker``: this broker, or any broker (None) for ``ALL_BROKERS``."""
    return None if broker == ALL_BROKERS else broker


def _targets(
    topics: Mapping[str, Mapping[str, Any]] | None, brokers: Mapping[int, Mapping[str, Any]] | None
) -> list[tuple[int | None, codec.ConfigOwner, Mapping[str, Any]]]:
    """(broker to ask or None for any, resource, values) for each change. A broker's own configs are sent to it."""
    found: list[tuple[int | None, codec.ConfigOwner, Mapping[str, Any]]] = [
        (None, codec.ConfigOwner.topic(name), values) for name, values in (topics or {}).items()
    ]
    found += [(_asked(broker), codec.ConfigOwner.broker(broker), values) for broker, values in (brokers or {}).items()]
    return found
