"""Every test of the client's IO runs under both event loops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

Run = Callable[[Callable[[], Awaitable[Any]]], Any]

_TEST_DEADLINE_S = 20.0


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run an async function to its end, under asyncio and under trio, with a deadline."""

    def run_async(function: Callable[[], Awaitable[Any]]) -> Any:
        async def with_deadline() -> Any:
            with anyio.fail_after(_TEST_DEADLINE_S):
                return await function()

        return anyio.run(with_deadline, backend=request.param)

    return run_async
