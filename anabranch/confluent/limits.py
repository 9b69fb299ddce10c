"""Time limits of calls: ``timeout`` is in seconds, and a negative number or None leaves the limit of the client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from anabranch.client.errors import KafkaTimeoutError

T = TypeVar("T")


def limit(timeout: float | None) -> float | None:
    """Seconds; None without a limit of its own, which is any negative number in confluent-kafka."""
    return None if timeout is None or timeout < 0 else timeout


def within(
    timeout: float | None, name: str, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any
) -> Callable[[], Awaitable[T]]:
    """``function`` with its arguments. After ``timeout`` it is cancelled and raises ``KafkaTimeoutError``."""
    limit_s = limit(timeout)

    async def call() -> T:
        with anyio.move_on_after(limit_s):
            return await function(*args, **kwargs)
        raise KafkaTimeoutError(f"{name} did not end within {limit_s} s")

    call.__name__ = name
    return call
