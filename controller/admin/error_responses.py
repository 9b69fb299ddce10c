"""Responses with an error for every item of a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_configs import AlterConfigsResourceResponse, AlterConfigsResponse
from anabranch.protocol.generated.alter_partition import AlterPartitionResponse
from anabranch.protocol.generated.alter_partition_reassignments import AlterPartitionReassignmentsResponse
from anabranch.protocol.generated.controlled_shutdown import ControlledShutdownResponse
from anabranch.protocol.generated.create_partitions import CreatePartitionsResponse, CreatePartitionsTopicResult
from anabranch.protocol.generated.create_topics import CreatableTopicResult, CreateTopicsResponse
from anabranch.protocol.generated.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from anabranch.protocol.generated.elect_leaders import ElectLeadersResponse
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterConfigsResourceResponse as IncrementalResourceResponse,
)
from anabranch.protocol.generated.incremental_alter_configs import IncrementalAlterConfigsResponse
from anabranch.protocol.generated.list_partition_reassignments import ListPartitionReassignmentsResponse
from anabranch.protocol.generated.update_features import UpdateFeaturesResponse

_TOP_LEVEL_ERROR: dict[int, Callable[..., Any]] = {
    ApiKey.CONTROLLED_SHUTDOWN: ControlledShutdownResponse,
    ApiKey.ALTER_PARTITION: AlterPartitionResponse,
    ApiKey.ELECT_LEADERS: ElectLeadersResponse,
}
"""Responses with an error code for the whole request. Version 0 of ElectLeaders, which no broker sends, has none."""
_TOP_LEVEL_MESSAGE: dict[int, Callable[..., Any]] = {
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: AlterPartitionReassignmentsResponse,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ListPartitionReassignmentsResponse,
    ApiKey.UPDATE_FEATURES: UpdateFeaturesResponse,
}
"""Responses with an error code and a message for the whole request."""


def error_response(api_key: int, request: Any, code: ErrorCode, message: str | None = None) -> Any:
    """A response with the error ``code`` for every item of the request."""
    error: dict[str, Any] = {"error_code": code, "error_message": message}
    if api_key in _TOP_LEVEL_ERROR:
        return _TOP_LEVEL_ERROR[api_key](error_code=code)
    if api_key in _TOP_LEVEL_MESSAGE:
        return _TOP_LEVEL_MESSAGE[api_key](**error)
    if api_key == ApiKey.CREATE_TOPICS:
        names = dict.fromkeys(topic.name for topic in request.topics)
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=name, configs=[], **error) for name in names])
    if api_key == ApiKey.CREATE_PARTITIONS:
        names = dict.fromkeys(topic.name for topic in request.topics)
        return CreatePartitionsResponse(results=[CreatePartitionsTopicResult(name=name, **error) for name in names])
    if api_key == ApiKey.DELETE_TOPICS:
        by_name = [DeletableTopicResult(name=name, **error) for name in dict.fromkeys(request.topic_names)]
        states = dict.fromkeys((topic.name, topic.topic_id) for topic in request.topics)
        by_state = [DeletableTopicResult(name=name, topic_id=id, **error) for name, id in states]
        return DeleteTopicsResponse(responses=by_name + by_state)
    resources = dict.fromkeys((resource.resource_type, resource.resource_name) for resource in request.resources)
    named = [{"resource_type": type, "resource_name": name} for type, name in resources]
    if api_key == ApiKey.ALTER_CONFIGS:
        return AlterConfigsResponse(responses=[AlterConfigsResourceResponse(**error, **name) for name in named])
    return IncrementalAlterConfigsResponse(responses=[IncrementalResourceResponse(**error, **name) for name in named])


def not_controller(api_key: int, request: Any) -> Any:
    """The response of a controller that is not in office. It makes the broker try the next controller."""
    message = "This controller is not active: the znode /controller names the active one."
    return error_response(api_key, request, ErrorCode.NOT_CONTROLLER, message)
