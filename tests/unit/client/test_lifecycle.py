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
