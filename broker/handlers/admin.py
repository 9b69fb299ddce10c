"""CreateTopics (19), DeleteTopics (20), AlterConfigs (33), CreatePartitions (37), ElectLeaders (43),
IncrementalAlterConfigs (44), AlterPartitionReassignments (45), ListPartitionReassignments (46), UpdateFeatures (57).

Levels of loggers are this process's own and set here. The rest the active controller decides: a request is forwarded in
the same API and version, and NOT_CONTROLLER is retried here. The answer is held back until this broker's own metadata
shows what was changed, within the request's time, so that a client that asks next finds it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from anabranch.broker.request_context import Answer, RequestContext
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from anabranch.protocol.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from anabranch.protocol.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from anabranch.protocol.generated.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from anabranch.protocol.generated.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from anabranch.protocol.generated.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterConfigsResourceResponse as IncrementalResourceResponse,
)
from anabranch.protocol.generated.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from anabranch.protocol.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from anabranch.protocol.generated.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from anabranch.runtime import broker_loggers

_MAX_METADATA_WAIT_S = 5.0


def _forward(
    ctx: RequestContext,
    request: Any,
    timeout_ms: int,
    results: Callable[[Any], Iterable[Any]],
    visible: Callable[[Any], bool],
    failed: Callable[[KafkaError], Any],
    version: int | None = None,
    wait: Callable[[Callable[[], bool], float], Awaitable[bool]] | None = None,
) -> Answer:
    """``results(response)`` are what carries error codes; ``visible(response)``: this broker's metadata shows it.

    ``wait``: for something else than the metadata.
    ``version``: to ask the controller in, where the client's has no room for what it may answer.
    """
    asked_version = ctx.api_version if version is None else version
    node = ctx.node
    limit_ms = node.config.values["request.timeout.ms"]
    timeout_s = (min(timeout_ms, limit_ms) if timeout_ms > 0 else limit_ms) / 1000

    def refused(response: Any) -> bool:
        return any(result.error_code == ErrorCode.NOT_CONTROLLER for result in results(response))

    async def work() -> Any:
        deadline = node.env.clock.monotonic() + timeout_s
        response = await node.controller.request(request, asked_version, timeout_s, refused)
        left_s = min(deadline - node.env.clock.monotonic(), _MAX_METADATA_WAIT_S)
        await (wait or node.wait_for_metadata)(lambda: visible(response), max(left_s, 0.0))
        return response

    return node.later(work, failed)


def create_topics(ctx: RequestContext, request: CreateTopicsRequest) -> Answer:
    def visible(response: CreateTopicsResponse) -> bool:
        return request.validate_only or all(
            ctx.node.metadata.has_leaders(topic.name) for topic in response.topics if not topic.error_code
        )

    def failed(error: KafkaError) -> CreateTopicsResponse:
        return CreateTopicsResponse(
            topics=[
                CreatableTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
                for topic in request.topics
            ]
        )

    return _forward(ctx, request, request.timeout_ms, lambda response: response.topics, visible, failed)


def delete_topics(ctx: RequestContext, request: DeleteTopicsRequest) -> Answer:
    names: list[str | None] = [*request.topic_names, *(topic.name for topic in request.topics)]

    def visible(response: DeleteTopicsResponse) -> bool:
        return not any(topic.name in ctx.node.metadata.topics for topic in response.responses if not topic.error_code)

    def failed(error: KafkaError) -> DeleteTopicsResponse:
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(name=name, error_code=error.code, error_message=error.message) for name in names
            ]
        )

    return _forward(ctx, request, request.timeout_ms, lambda response: response.responses, visible, failed)


def create_partitions(ctx: RequestContext, request: CreatePartitionsRequest) -> Answer:
    wanted = {topic.name: topic.count for topic in request.topics}

    def visible(response: CreatePartitionsResponse) -> bool:
        metadata = ctx.node.metadata
        return request.validate_only or all(
            (metadata.partition_count(result.name) or 0) >= wanted[result.name] and metadata.has_leaders(result.name)
            for result in response.results
            if not result.error_code
        )

    def failed(error: KafkaError) -> CreatePartitionsResponse:
        return CreatePartitionsResponse(
            results=[
                CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=error.message)
                for name in wanted
            ]
        )

    return _forward(ctx, request, request.timeout_ms, lambda response: response.results, visible, failed)


def alter_configs(ctx: RequestContext, request: AlterConfigsRequest) -> Answer:
    def failed(error: KafkaError) -> AlterConfigsResponse:
        return AlterConfigsResponse(
            responses=[
                AlterConfigsResourceResponse(
                    error_code=error.code,
                    error_message=error.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in request.resources
            ]
        )

    return _forward(ctx, request, 0, lambda response: response.responses, lambda _: True, failed)


def incremental_alter_configs(ctx: RequestContext, request: IncrementalAlterConfigsRequest) -> Answer:
    def failed(error: KafkaError) -> IncrementalAlterConfigsResponse:
        return IncrementalAlterConfigsResponse(
            responses=[
                IncrementalResourceResponse(
                    error_code=error.code,
                    error_message=error.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in request.resources
            ]
        )

    loggers = [each for each in request.resources if each.resource_type == broker_loggers.RESOURCE]
    if not loggers:
        return _forward(ctx, request, 0, lambda response: response.responses, lambda _: True, failed)
    if len(loggers) < len(request.resources):
        return failed(KafkaError(ErrorCode.INVALID_REQUEST, "levels of loggers are changed in a request of their own"))
    return IncrementalAlterConfigsResponse(
        responses=[
            broker_loggers.altered(ctx.node.config.broker_id, each, validate_only=request.validate_only)
            for each in loggers
        ]
    )


def elect_leaders(ctx: RequestContext, request: ElectLeadersRequest) -> Answer:
    def failed(error: KafkaError) -> ElectLeadersResponse:
        """Version 0 has no error of the whole request, so every partition carries it."""
        return ElectLeadersResponse(
            error_code=error.code,
            replica_election_results=[
                ReplicaElectionResult(
                    topic=topic.topic,
                    partition_result=[
                        PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)
                        for index in topic.partitions
                    ],
                )
                for topic in request.topic_partitions or []
            ],
        )

    version = API[ApiKey.ELECT_LEADERS].max_version
    return _forward(ctx, request, request.timeout_ms, lambda response: [response], lambda _: True, failed, version)


def alter_partition_reassignments(ctx: RequestContext, request: AlterPartitionReassignmentsRequest) -> Answer:
    def failed(error: KafkaError) -> AlterPartitionReassignmentsResponse:
        return AlterPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)

    return _forward(ctx, request, request.timeout_ms, lambda response: [response], lambda _: True, failed)


def list_partition_reassignments(ctx: RequestContext, request: ListPartitionReassignmentsRequest) -> Answer:
    def failed(error: KafkaError) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)

    return _forward(ctx, request, request.timeout_ms, lambda response: [response], lambda _: True, failed)


def update_features(ctx: RequestContext, request: UpdateFeaturesRequest) -> Answer:
    """Answered once this broker has read what is finalized since: a client that asks it next finds that."""
    features = ctx.node.features

    def visible(response: UpdateFeaturesResponse) -> bool:
        return features.epoch >= response.features_epoch

    def failed(error: KafkaError) -> UpdateFeaturesResponse:
        return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)

    return _forward(
        ctx, request, request.timeout_ms, lambda response: [response], visible, failed, wait=features.wait_until
    )
