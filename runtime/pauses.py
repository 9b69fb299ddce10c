"""Long CPU work, and the codecs of large messages, with pauses for other tasks; under trio and asyncio alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar, cast

from anabranch.protocol.decode_budget import free_in_steps
from anabranch.protocol.framing import (
    LARGE_FRAME_BYTES,
    MANY_ITEMS,
    MAX_ANSWER_BYTES,
    RequestHeader,
    decode_response,
    decode_response_in_steps,
    encode_request,
    encode_request_in_steps,
    encode_response,
    encode_response_in_steps,
)
from anabranch.protocol.message import Message, has_more_items
from anabranch.protocol.types import Part
from anabranch.runtime.turns import pause

T = TypeVar("T")

STEPS_AT_ONCE = 256
"""The number of steps between two pauses: a step of the codecs takes a few microseconds."""


async def with_pauses(
    steps: Generator[bool | None, None, T], before_first: Callable[[], Awaitable[None]] | None = None
) -> T:
    """The return value of ``steps``; other tasks run after every ``STEPS_AT_ONCE`` steps, and after a long one.

    Each of these pieces takes a turn. ``before_first`` is called at the first pause, if there is one.
    """
    count = 0
    while True:
        try:
            is_long = next(steps)
        except StopIteration as stop:
            return cast(T, stop.value)
        count += 1
        if is_long or count % STEPS_AT_ONCE == 0:
            if before_first is not None:
                await before_first()
                before_first = None
            await pause()


async def free(arrays: list[list[Any]]) -> None:
    """Free the items of large arrays with pauses: freeing a million at once takes 0.1 s. Nothing else may need them."""
    await with_pauses(free_in_steps(arrays))


async def read_response(api_key: int, api_version: int, frame: memoryview) -> Message:
    """The body of ``decode_response``, with pauses where the frame is large."""
    if len(frame) < LARGE_FRAME_BYTES:
        return decode_response(api_key, api_version, frame)[1]
    return (await with_pauses(decode_response_in_steps(api_key, api_version, frame)))[1]


async def write_request(header: RequestHeader, body: Message) -> list[Part]:
    """``encode_request``, with pauses where the body has many items."""
    if has_more_items(body, MANY_ITEMS):
        return await with_pauses(encode_request_in_steps(header, body))
    return encode_request(header, body)


async def write_response(
    api_key: int, api_version: int, correlation_id: int, response: Message, most_bytes: int = MAX_ANSWER_BYTES
) -> list[Part]:
    """``encode_response``, with pauses where the response has many items; it must not change meanwhile.

    Raises TooLargeError for many items of more than ``most_bytes``.
    """
    if has_more_items(response, MANY_ITEMS):
        return await with_pauses(encode_response_in_steps(api_key, api_version, correlation_id, response, most_bytes))
    return encode_response(api_key, api_version, correlation_id, response)
