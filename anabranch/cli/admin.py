"""Running one piece of work against an admin client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from anabranch import Admin
from anabranch.cli.logs import show_warnings
from anabranch.cli.options import pairs_of

T = TypeVar("T")

API_TIMEOUT_MS = 20_000
"""How long a command tries before it gives up, in ms: someone is waiting at a terminal."""


def with_admin(bootstrap_server: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    """``work`` with a client of ``bootstrap_server``; its result."""

    async def run() -> T:
        async with Admin(
            bootstrap_servers=bootstrap_server, client_id="anabranch", default_api_timeout_ms=API_TIMEOUT_MS
        ) as admin:
            return await work(admin)

    show_warnings()
    return anyio.run(run)


def parse_configs(settings: list[str] | None) -> dict[str, str]:
    """The pairs of ``--config``. Raises ``UsageError`` for one without ``=``."""
    return pairs_of("--config", settings, "retention.ms=3600000")
