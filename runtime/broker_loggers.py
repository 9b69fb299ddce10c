"""Configs of BROKER_LOGGER (resource type 8): this process's log levels, until it ends (KIP-412).

A key is the name of a logger, its value a level by Kafka's name. The levels are this process's own, so a request is
served here and not forwarded.
"""

from __future__ import annotations

import structlog

from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.describe_configs import DescribeConfigsResource, DescribeConfigsResourceResult
from anabranch.protocol.generated.incremental_alter_configs import AlterConfigsResource, AlterConfigsResourceResponse
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


def altered(node_id: int, resource: AlterConfigsResource, *, validate_only: bool) -> AlterConfigsResourceResponse:
    """Set or unset levels, all or none, and return the response."""
    answer = AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    try:
        _alter(node_id, resource, validate_only)
    except KafkaError as error:
        answer.error_code, answer.error_message = error.code, error.message
    return answer


def _alter(node_id: int, resource: AlterConfigsResource, validate_only: bool) -> None:
    _check_is_ours(node_id, resource.resource_name)
    changes: dict[str, str | None] = {}
    for config in resource.configs:
        if config.name in changes:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"logger {config.name} is named twice")
        if not log_setup.exists(config.name):
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
