"""Configs of BROKER_LOGGER (resource type 8): this process's log levels, until it ends (KIP-412).

A key is the name of a logger, its value a level by Kafka's name. The levels are this process's own, so a request is
served here and not forwarded.
"""

from __future__ import annotations

from collections.abc import Generator

import structlog

from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.describe_configs import DescribeConfigsResource, DescribeConfigsResourceResult
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from anabranch.protocol.named_items import ITEMS_A_STEP
from anabranch.runtime import log_setup

logger = structlog.get_logger(__name__)

_DYNAMIC_BROKER_LOGGER = 6
_SET, _DELETE = 0, 1


def describe(node_id: int, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
    """The level in force of each logger. Raises ``KafkaError`` for the loggers of another node."""
    _check_is_ours(node_id, resource.resource_name)
    levels = log_setup.levels()
    wanted = levels.keys() & resource.configuration_keys if resource.configuration_keys else levels.keys()
    return [
        DescribeConfigsResourceResult(
            name=name, value=level, read_only=False, config_source=_DYNAMIC_BROKER_LOGGER, is_sensitive=False
        )
        for name, level in levels.items()
        if name in wanted
    ]


def altered_in_steps(
    node_id: int, request: IncrementalAlterConfigsRequest
) -> Generator[bool, None, IncrementalAlterConfigsResponse]:
    """Set or unset the levels of each resource, all or none, and return the response. A repeated resource is refused.

    Yields True, after which other tasks may run, after every ``ITEMS_A_STEP`` resources.
    """
    response = IncrementalAlterConfigsResponse()
    named: dict[str, AlterConfigsResource] = {}
    repeated: set[str] = set()
    for number, resource in enumerate(request.resources, 1):
        if named.setdefault(resource.resource_name, resource) is not resource:
            repeated.add(resource.resource_name)
        if number % ITEMS_A_STEP == 0:
            yield True
    for number, (name, resource) in enumerate(named.items(), 1):
        response.responses.append(
            _altered(node_id, resource, is_repeated=name in repeated, validate_only=request.validate_only)
        )
        if number % ITEMS_A_STEP == 0:
            yield True
    return response


def _altered(
    node_id: int, resource: AlterConfigsResource, *, is_repeated: bool, validate_only: bool
) -> AlterConfigsResourceResponse:
    answer = AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    try:
        if is_repeated:
            message = f"the loggers of {resource.resource_name} are named more than once in the request"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        _alter(node_id, resource, validate_only)
    except KafkaError as error:
        answer.error_code, answer.error_message = error.code, error.message
    return answer


def _alter(node_id: int, resource: AlterConfigsResource, validate_only: bool) -> None:
    _check_is_ours(node_id, resource.resource_name)
    known = log_setup.names()
    changes: dict[str, str | None] = {}
    for config in resource.configs:
        if config.name in changes:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"logger {config.name} is named twice")
        if config.name not in known:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"logger {config.name} does not exist")
        changes[config.name] = _level(config.name, config.config_operation, config.value)
    if validate_only:
        return
    for name, level in changes.items():
        log_setup.set_level(name, level)
        logger.info("logging.level_set", of=name, to=level or "its parent's")


def _level(name: str, operation: int, value: str | None) -> str | None:
    if operation == _DELETE:
        if name == log_setup.ROOT:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the root logger has no parent to take a level from")
        return None
    if operation != _SET:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"operation {operation} on logger {name}: a level can only be set (0) or deleted (1)",
        )
    if value not in log_setup.LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{value!r} is not a level for {name}; levels are {', '.join(log_setup.LEVELS)}"
        )
    return value


def _check_is_ours(node_id: int, name: str) -> None:
    if name != str(node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"node {node_id} was asked for the loggers of node {name!r}, which only that node has",
        )
