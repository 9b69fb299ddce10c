"""Reads the facts that the decision of a request needs besides the image and the answers of brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from anabranch.controller.context import Context
from anabranch.controller.events import AdminCall, Event
from anabranch.controller.reads.brokers import read_locked
from anabranch.protocol.api_keys import ApiKey
from anabranch.zk_schemas import paths

Facts: TypeAlias = tuple[Any, ...]
"""The further arguments of the request's handler."""


async def read_nothing(_context: Context, _event: Event) -> None:
    """The image has all facts that the decision needs."""


async def read_facts(context: Context, call: AdminCall) -> Facts | Exception:
    """Read the facts for a request. Returns the error of a read, as the handler raises it like the error of a write."""
    read = _READS.get(call.api_key)
    try:
        return call.answers if read is None else (*call.answers, *await read(context))
    except Exception as error:
        return error


async def _existing(context: Context) -> Facts:
    """The topics that have a znode."""
    return (await context.store.children(paths.TOPICS),)


async def _existing_and_requested(context: Context) -> Facts:
    """The topics that have a znode, and the topics whose deletion is requested."""
    existing = await context.store.children(paths.TOPICS)
    return set(existing), set(await context.store.children(paths.DELETE_TOPICS))


async def _brokers(context: Context) -> Facts:
    return (await read_locked(context),)


_READS: dict[int, Callable[[Context], Awaitable[Facts]]] = {
    ApiKey.CREATE_TOPICS: _existing,
    ApiKey.DELETE_TOPICS: _existing_and_requested,
    ApiKey.UPDATE_FEATURES: _brokers,
}
