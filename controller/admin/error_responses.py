"""Responses with an error for every item of a request, where each name is answered once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable
from operator import attrgetter
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
from anabranch.protocol.named_items import ITEMS_A_STEP

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
_OF_RESOURCES: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {
    ApiKey.ALTER_CONFIGS: (AlterConfigsResourceResponse, AlterConfigsResponse),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (IncrementalResourceResponse, IncrementalAlterConfigsResponse),
}
"""The result of a resource, and the response with these results."""
_name = attrgetter("name")
_state = attrgetter("name", "topic_id")
_resource = attrgetter("resource_type", "resource_name")


def error_response(api_key: int, request: Any, code: ErrorCode, message: str | None = None) -> Any:
    """A response with the error ``code`` for every item of a request that has few items."""
    steps = _in_steps(api_key, request, code, message)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def not_controller(api_key: int, request: Any) -> Generator[bool, None, Any]:
    """The response of a controller that is not in office, in steps. It makes the broker try the next controller."""
    message = "This controller is not active: the znode /controller names the active one."
    return _in_steps(api_key, request, ErrorCode.NOT_CONTROLLER, message)


def _in_steps(api_key: int, request: Any, code: ErrorCode, message: str | None) -> Generator[bool, None, Any]:
    error: dict[str, Any] = {"error_code": code, "error_message": message}
    if api_key in _TOP_LEVEL_ERROR:
        return _TOP_LEVEL_ERROR[api_key](error_code=code)
    if api_key in _TOP_LEVEL_MESSAGE:
        return _TOP_LEVEL_MESSAGE[api_key](**error)
    if api_key == ApiKey.CREATE_TOPICS:
        made = yield from _each_once(
            request.topics, _name, lambda name: CreatableTopicResult(name=name, configs=[], **error)
        )
        return CreateTopicsResponse(topics=made)
    if api_key == ApiKey.CREATE_PARTITIONS:
        results = yield from _each_once(
            request.topics, _name, lambda name: CreatePartitionsTopicResult(name=name, **error)
        )
        return CreatePartitionsResponse(results=results)
    if api_key == ApiKey.DELETE_TOPICS:
        by_name = yield from _each_once(request.topic_names, str, lambda name: DeletableTopicResult(name=name, **error))
        by_state = yield from _each_once(
            request.topics, _state, lambda of: DeletableTopicResult(name=of[0], topic_id=of[1], **error)
        )
        return DeleteTopicsResponse(responses=by_name + by_state)
    result, response = _OF_RESOURCES[api_key]
    answers = yield from _each_once(
        request.resources, _resource, lambda of: result(resource_type=of[0], resource_name=of[1], **error)
    )
    return response(responses=answers)


def _each_once(
    items: Iterable[Any], key: Callable[[Any], Hashable], answer: Callable[[Any], Any]
) -> Generator[bool, None, list[Any]]:
    """An answer to each key. Yields True, after which other tasks may run, after every ``ITEMS_A_STEP`` items."""
    answers: dict[Hashable, Any] = {}
    for number, item in enumerate(items, 1):
        named = key(item)
        if named not in answers:
            answers[named] = answer(named)
        if number % ITEMS_A_STEP == 0:
            yield True
    return list(answers.values())
