"""Runs a function with an admin client, for commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from anabranch import Admin, KafkaError, KafkaTimeoutError
from anabranch.cli.logs import warnings_shown
from anabranch.cli.options import api_timeout_ms, pairs_of
from anabranch.cli.progress import waiting
from anabranch.command_error import CommandError

T = TypeVar("T")


def with_admin(bootstrap_server: str, work: Callable[[Admin], Awaitable[T]], *, timeout_ms: int | None = None) -> T:
    """Run ``work`` with a client of ``bootstrap_server``, and return its result.

    A call ends after ``timeout_ms``, by default ``api_timeout_ms``.
    """
    limit_ms = api_timeout_ms() if timeout_ms is None else timeout_ms

    async def run() -> T:
        async with Admin(
            bootstrap_servers=bootstrap_server, client_id="anabranch", default_api_timeout_ms=limit_ms
        ) as admin:
            return await work(admin)

    with warnings_shown(), waiting(f"waiting for {bootstrap_server}"):
        return anyio.run(run)


def parse_configs(settings: list[str] | None, option: str = "--config") -> dict[str, str]:
    """Parse the ``key=value`` texts of ``option``. Raises ``UsageError`` for a text without ``=``."""
    return pairs_of(option, settings, "retention.ms=3600000")


async def existing_topics(admin: Admin, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names of existing topics, and the names of missing topics."""
    wanted = list(names)
    existing = {listing.name for listing in await admin.list_topics()} if wanted else set()
    return [name for name in wanted if name in existing], [name for name in wanted if name not in existing]


def absent_topic(name: str) -> CommandError:
    return CommandError(f"topic {name} does not exist; anabranch topics list shows those that do")


async def each(names: Iterable[str], work: Callable[[str], Awaitable[object]]) -> dict[str, KafkaError]:
    """Call ``work`` for each name in turn. Returns the errors by name; a timeout ends the loop and is raised."""
    refused: dict[str, KafkaError] = {}
    for name in names:
        try:
            await work(name)
        except KafkaTimeoutError:
            raise
        except KafkaError as error:
            refused[name] = error
    return refused
