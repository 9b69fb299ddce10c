"""What holds of every client however its ``async with`` block ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from anabranch import Admin, Consumer, Producer

Run = Callable[[Callable[[], Awaitable[Any]]], Any]


@pytest.mark.parametrize("kind", [Admin, Consumer, Producer])
def test_a_client_that_is_cancelled_as_it_begins_ends(run: Run, kind: Any) -> None:
    async def check() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            async with kind(bootstrap_servers="127.0.0.1:1"):
                await anyio.sleep_forever()
        assert scope.cancelled_caught

    run(check)


@pytest.mark.parametrize("kind", [Admin, Consumer, Producer])
def test_the_block_of_a_closed_client_goes_on(run: Run, kind: Any) -> None:
    async def check() -> bool:
        often = {"metadata_max_age_ms": 1, "retry_backoff_ms": 1, "retry_backoff_max_ms": 1}
        async with kind(bootstrap_servers="127.0.0.1:1", **often) as client:
            await client.close()
            await anyio.sleep(0.1)  # pause: what still asks of the client's tasks asks within a few ms
            return True

    assert run(check)
