"""DescribeConfigs and IncrementalAlterConfigs for the loggers of this process (KIP-412).

The process answers these requests whether or not its controller is active.

All other resources of these APIs belong to the cluster. Requests for them are answered by the active controller only.
"""

from __future__ import annotations

from collections.abc import Generator

from anabranch.protocol.config_resources import ResourceType
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from anabranch.protocol.generated.incremental_alter_configs import IncrementalAlterConfigsRequest
from anabranch.protocol.message import Message
from anabranch.runtime import broker_loggers

_WHAT = "a controller has only the levels of its loggers as configs: ask a broker for all others"
_AT_ONCE = 16
"""The resources of a step. Each may name every logger."""


def answer(controller_id: int, request: Message) -> Generator[bool, None, Message | None]:
    """The response to DescribeConfigs, or to a change of loggers; None for any other request.

    Yields True, after which other tasks may run, in between.
    """
    if isinstance(request, DescribeConfigsRequest):
        described = DescribeConfigsResponse()
        for number, resource in enumerate(request.resources, 1):
            described.results.append(_described(controller_id, resource))
            if number % _AT_ONCE == 0:
                yield True
        return described
    if not isinstance(request, IncrementalAlterConfigsRequest) or not request.resources:
        return None
    if any(each.resource_type != ResourceType.BROKER_LOGGER for each in request.resources):
        return None
    return (yield from broker_loggers.altered_in_steps(controller_id, request))


def _described(controller_id: int, resource: DescribeConfigsResource) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        error_code=ErrorCode.NONE,
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    try:
        if resource.resource_type != ResourceType.BROKER_LOGGER:
            raise KafkaError(ErrorCode.INVALID_REQUEST, _WHAT)
        result.configs = broker_loggers.describe(controller_id, resource)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
    return result
