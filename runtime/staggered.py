"""Connects to a host with several addresses: an address that does not answer delays the next one only a little.

The tries are staggered as in RFC 8305: the next address is tried when a try fails, or after ``STAGGER_S``. All tries go
on until one succeeds, so a slow address still counts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, zip_longest
from typing import Any, Protocol, TypeVar

import anyio

STAGGER_S = 0.25


class Closable(Protocol):
    """A connection."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


def in_turn(addresses: Sequence[tuple[Any, ...]], attempt: int) -> list[tuple[Any, ...]]:
    """The addresses of a host, the families alternating, rotated so that each attempt begins with another address."""
    first = [address for address in addresses if address[0] == addresses[0][0]]
    others = [address for address in addresses if address[0] != addresses[0][0]]
    ordered = [found for found in chain.from_iterable(zip_longest(first, others)) if found is not None]
    begin = attempt % len(ordered) if ordered else 0
    return ordered[begin:] + ordered[:begin]


async def connect_to_one(addresses: Sequence[tuple[Any, ...]], connect: Callable[[tuple[Any, ...]], Awaitable[T]]) -> T:
    """The first connection that succeeds; all other tries end. Raises an ``OSError`` that names each failure."""
    failures: list[OSError] = []
    found: list[T] = []

    async def attempt(address: tuple[Any, ...], failed: anyio.Event) -> None:
        try:
            connection = await connect(address)
        except OSError as error:
            failures.append(error)
            failed.set()
        else:
            found.append(connection)
            tasks.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            for address in addresses:
                failed = anyio.Event()
                tasks.start_soon(attempt, address, failed)
                with anyio.move_on_after(STAGGER_S):
                    await failed.wait()
    except BaseException:
        _close(found)
        raise
    _close(found[1:])
    if found:
        return found[0]
    texts = dict.fromkeys(error.strerror or str(error) for error in failures)
    raise OSError(failures[-1].errno, "; ".join(texts))


def _close(connections: Sequence[Closable]) -> None:
    for connection in connections:
        connection.close()
