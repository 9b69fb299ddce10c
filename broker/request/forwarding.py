"""Forwards the requests that the active controller decides, in the same API and version.

NOT_CONTROLLER is retried here. The response waits until this broker shows the change, so that the client's next request
finds it. The request's timeout and ``MAX_WAIT_S`` limit the wait. If the client's connection ends, this broker stops
waiting. The controller then decides all the same what it has received.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.errors import ErrorCode, KafkaError

MAX_WAIT_S = 5.0
T = TypeVar("T")


def forward(
    ctx: RequestContext,
    request: Any,
    timeout_ms: int,
    results: Callable[[Any], Iterable[Any]],
    visible: Callable[[Any], bool],
    failed: Callable[[KafkaError], Any],
    version: int | None = None,
    wait: Callable[[Callable[[], bool], float], Awaitable[bool]] | None = None,
) -> Answer:
    """Send the request to the active controller, and wait until this broker shows the change.

    ``results(response)`` returns the parts that have an error code. ``visible(response)``: whether this broker shows
    the change. ``failed`` makes the response if the controller does not answer. ``version``: the version of the request
    to the controller, by default the client's version. ``wait`` replaces the wait for this broker's metadata.
    """
    asked_version = ctx.api_version if version is None else version
    node = ctx.node
    limit_ms = node.config.values.request_timeout_ms
    timeout_s = (min(timeout_ms, limit_ms) if timeout_ms > 0 else limit_ms) / 1000

    def refused(response: Any) -> bool:
        return any(result.error_code == ErrorCode.NOT_CONTROLLER for result in results(response))

    async def work() -> Any:
        deadline = node.env.clock.monotonic() + timeout_s
        response = await node.link.controller.request(request, asked_version, timeout_s, refused)
        left_s = min(deadline - node.env.clock.monotonic(), MAX_WAIT_S)
        await (wait or node.metadata.wait_for)(lambda: visible(response), max(left_s, 0.0))
        return response

    return node.later(work, failed, may_stop=True)


def refused_resources(request: Any, error: KafkaError, result: Callable[..., T]) -> list[T]:
    """Answer each resource of a request that alters configs with one ``result`` that has the error."""
    named = dict.fromkeys((resource.resource_type, resource.resource_name) for resource in request.resources)
    return [
        result(error_code=error.code, error_message=error.message, resource_type=type, resource_name=name)
        for type, name in named
    ]
