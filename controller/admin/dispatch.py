"""The requests that the controller serves, their handlers, and the error responses.

A request is decided in slices. Each slice waits in the queue of events like any other event.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from anabranch.controller.admin.alter_configs import alter_configs
from anabranch.controller.admin.alter_partition import alter_partition
from anabranch.controller.admin.alter_partition_reassignments import alter_partition_reassignments
from anabranch.controller.admin.controlled_shutdown import controlled_shutdown
from anabranch.controller.admin.create_partitions import create_partitions
from anabranch.controller.admin.create_topics import create_topics
from anabranch.controller.admin.delete_topics import delete_topics
from anabranch.controller.admin.elect_leaders import elect_leaders
from anabranch.controller.admin.incremental_alter_configs import incremental_alter_configs
from anabranch.controller.admin.list_partition_reassignments import list_partition_reassignments
from anabranch.controller.admin.slices import joined, sliced
from anabranch.controller.admin.update_features import update_features
from anabranch.controller.context import Context
from anabranch.controller.events import AdminCall, TopicListChanged
from anabranch.controller.giving_up import give_up
from anabranch.controller.outcome import Outcome, UnreadTopicError
from anabranch.controller.store import ControllerMovedError, ImageStaleError
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.alter_configs import AlterConfigsResourceResponse, AlterConfigsResponse
from anabranch.protocol.generated.alter_partition import AlterPartitionResponse
from anabranch.protocol.generated.alter_partition_reassignments import AlterPartitionReassignmentsResponse
from anabranch.protocol.generated.api_versions import ApiVersion, ApiVersionsResponse
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
from anabranch.runtime.env import ZkError, ZkRequestTooLargeError

logger = structlog.get_logger(__name__)
Handler = Callable[[Context, Any, int], Awaitable[Outcome]]


HANDLERS: dict[int, Handler] = {
    ApiKey.CONTROLLED_SHUTDOWN: controlled_shutdown,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.ALTER_PARTITION: alter_partition,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    ApiKey.UPDATE_FEATURES: update_features,
}


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


async def on_call(context: Context, call: AdminCall) -> None:
    """Decide one slice of a request. An error becomes the response to the slice, and the controller goes on."""
    if call.left is None:
        call.left = sliced(call.api_key, call.body, context.image)
    some = call.left[0]
    try:
        outcome = await HANDLERS[call.api_key](context, some, call.version)
    except (ControllerMovedError, ImageStaleError):
        raise
    except UnreadTopicError:
        context.events.put(TopicListChanged())  # the watch also puts this event, but perhaps later
        context.events.put(call)
        return
    except ZkError as error:
        give_up(context, f"request {ApiKey(call.api_key).name}", error)
        too_large = isinstance(error, ZkRequestTooLargeError)
        refusal = KafkaError(ErrorCode.INVALID_REQUEST if too_large else ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        outcome = Outcome(error_response(call.api_key, some, refusal.code, refusal.message))
    except Exception:
        logger.exception("request.failed", api=ApiKey(call.api_key).name, version=call.version)
        outcome = Outcome(error_response(call.api_key, some, ErrorCode.UNKNOWN_SERVER_ERROR))
    call.left.popleft()
    call.outcomes.append(outcome)
    if call.left:
        context.events.put(call)
        return
    call.outcome = joined(call.api_key, call.body, call.outcomes)
    call.decided.set()


def api_versions(error_code: int = ErrorCode.NONE) -> ApiVersionsResponse:
    """The APIs and versions that this listener serves."""
    served = sorted([ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CONFIGS, *HANDLERS])
    if error_code == ErrorCode.UNSUPPORTED_VERSION:
        served = [ApiKey.API_VERSIONS]
    keys = [
        ApiVersion(api_key=key, min_version=API[ApiKey(key)].min_version, max_version=API[ApiKey(key)].max_version)
        for key in served
    ]
    return ApiVersionsResponse(error_code=error_code, api_keys=keys)


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
        by_name = [DeletableTopicResult(name=name, **error) for name in request.topic_names]
        by_state = [DeletableTopicResult(name=t.name, topic_id=t.topic_id, **error) for t in request.topics]
        return DeleteTopicsResponse(responses=by_name + by_state)
    named = [{"resource_type": r.resource_type, "resource_name": r.resource_name} for r in request.resources]
    if api_key == ApiKey.ALTER_CONFIGS:
        return AlterConfigsResponse(responses=[AlterConfigsResourceResponse(**error, **name) for name in named])
    return IncrementalAlterConfigsResponse(responses=[IncrementalResourceResponse(**error, **name) for name in named])


def not_controller(api_key: int, request: Any) -> Any:
    """The response of a controller that is not in office. It makes the broker try the next controller."""
    message = "This controller is not active: the znode /controller names the active one."
    return error_response(api_key, request, ErrorCode.NOT_CONTROLLER, message)
