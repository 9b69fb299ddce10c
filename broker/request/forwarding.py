"""Forwards the requests that the active controller decides, in the same API and version.

NOT_CONTROLLER is retried here. The response waits until this broker shows the change, so that the client's next request
finds it. The request's timeout and ``MAX_WAIT_S`` limit the wait. If the client's connection ends, this broker stops
waiting. The controller then decides all the same what it has received. A response of very many items is handled in
steps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.error_responses import error_response_in_steps
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.named_items import ITEMS_A_STEP
from anabranch.runtime.pauses import with_pauses
from anabranch.runtime.turns import pause

MAX_WAIT_S = 5.0

WaitFor: TypeAlias = Callable[[Callable[[], bool], float], Awaitable[bool]]


def forward(
    ctx: RequestContext,
    request: Any,
    timeout_ms: int = 0,
    results: Callable[[Any], Iterable[Any]] = lambda response: [response],
    shows: Callable[[Any], bool] = lambda result: True,
    version: int | None = None,
    wait_for: WaitFor | None = None,
) -> Answer:
    """Send the request to the active controller, and wait until this broker shows the change.

    ``results(response)`` returns the parts that have an error code. ``shows(result)``: whether this broker shows the
    change of a part without an error. ``version``: the version of the request to the controller, by default the
    client's version. ``wait_for`` replaces the wait for this broker's metadata.
    """
    asked_version = ctx.api_version if version is None else version
    node = ctx.node
    limit_ms = node.config.values.request_timeout_ms
    timeout_s = (min(timeout_ms, limit_ms) if timeout_ms > 0 else limit_ms) / 1000
    wait_for = wait_for or node.metadata.wait_for

    def refused(response: Any) -> bool:
        return any(result.error_code == ErrorCode.NOT_CONTROLLER for result in results(response))

    async def work() -> Any:
        clock = node.env.clock
        deadline = clock.monotonic() + timeout_s
        response = await node.link.controller.request(request, asked_version, timeout_s, refused)
        deadline = min(deadline, clock.monotonic() + MAX_WAIT_S)
        for number, result in enumerate(results(response), 1):
            if not result.error_code and not shows(result):
                left_s = max(deadline - clock.monotonic(), 0.0)
                if not await wait_for(partial(shows, result), left_s):
                    break
            if number % ITEMS_A_STEP == 0:
                await pause()
        return response

    def failed(error: KafkaError) -> Awaitable[Any]:
        return with_pauses(error_response_in_steps(ctx.api_key, request, error.code, error.message))

    return node.later(work, failed, may_stop=True)
