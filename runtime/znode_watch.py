"""Follows znodes: reads them again when a watch fires, and when the session is connected again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

from anabranch.runtime.env import SessionState, Watch, ZkError, ZkStore
from anabranch.runtime.signal import Signal

RETRY_S = 0.5


async def follow(
    zk: ZkStore, read: Callable[[Watch], Awaitable[None]], on_error: Callable[[ZkError], None]
) -> NoReturn:
    """Call ``read(watch)`` now and after each change, until cancelled; ``read`` sets the watch on the znodes it reads.

    If ``read`` raises a ``ZkError``, ``on_error`` gets the error. ``read`` is called again after ``RETRY_S``; without a
    connection, when the session is connected again. ``watch`` is always the same callback, so that watches do not pile
    up.
    """
    changed = Signal()

    def on_state(state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            changed.set()

    watch = changed.set
    unregister = zk.on_state(on_state)
    try:
        while True:
            changed.clear()
            try:
                await read(watch)
            except ZkError as error:
                on_error(error)
                await changed.wait(RETRY_S if zk.state is SessionState.CONNECTED else None)
            else:
                await changed.wait()
    finally:
        unregister()
