"""Responses with an error for the whole request, or for each item of it, where each name is answered once.

They are for the requests that the active controller decides. A request may have very many items, so such a response is
made in steps.
"""

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
from anabranch.protocol.generated.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
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
}
"""Responses with an error code for the whole request."""
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
    steps = error_response_in_steps(api_key, request, code, message)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def not_controller(api_key: int, request: Any) -> Generator[bool, None, Any]:
    """The response of a controller that is not in office, in steps. It makes the broker try the next controller."""
    message = "This controller is not active: the znode /controller names the active one."
    return error_response_in_steps(api_key, request, ErrorCode.NOT_CONTROLLER, message)


def error_response_in_steps(
    api_key: int, request: Any, code: ErrorCode, message: str | None
) -> Generator[bool, None, Any]:
    """``error_response`` for any number of items. Yields True, after which other tasks may run, in between."""
    error: dict[str, Any] = {"error_code": code, "error_message": message}
    if api_key in _TOP_LEVEL_ERROR:
        return _TOP_LEVEL_ERROR[api_key](error_code=code)
    if api_key in _TOP_LEVEL_MESSAGE:
        return _TOP_LEVEL_MESSAGE[api_key](**error)
    if api_key == ApiKey.ELECT_LEADERS:
        return (yield from _not_elected(request, code, message))
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


def _not_elected(
    request: ElectLeadersRequest, code: ErrorCode, message: str | None
) -> Generator[bool, None, ElectLeadersResponse]:
    """Every named partition has the error too: version 0 has no error for the whole request."""
    response = ElectLeadersResponse(error_code=code)
    topics: dict[str, ReplicaElectionResult] = {}
    answered: set[tuple[str, int]] = set()
    count = 0
    for topic in request.topic_partitions or ():
        if topic.topic not in topics:
            topics[topic.topic] = ReplicaElectionResult(topic=topic.topic)
            response.replica_election_results.append(topics[topic.topic])
        results = topics[topic.topic].partition_result
        for index in topic.partitions:
            if (topic.topic, index) not in answered:
                answered.add((topic.topic, index))
                results.append(PartitionResult(partition_id=index, error_code=code, error_message=message))
            count += 1
            if count % ITEMS_A_STEP == 0:
                yield True
    return response


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
