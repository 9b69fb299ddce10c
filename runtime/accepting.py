"""Accepts connections as long as a listener is open, also after a failed accept."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

import structlog
import trio

from anabranch.runtime.background import Background
from anabranch.runtime.env import Listener, Stream

logger = structlog.get_logger(__name__)

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
"""The longest pause after a failed accept. The pause is short because clients wait meanwhile."""


async def _at_once() -> None:
    return None


async def accept_connections(
    name: str,
    listener: Listener,
    background: Background,
    take: Callable[[Stream], None],
    room: Callable[[], Awaitable[None]] = _at_once,
) -> None:
    """Pass each connection to ``take``, until the listener is closed (EBADF) or the task is cancelled.

    accept(2) also reports errors of the connection to be accepted (EPROTO, ENETDOWN and others, Linux man page). These
    errors must not end the loop. ``room`` returns when another connection may be accepted.
    """
    in_a_row = 0
    while True:
        await room()
        try:
            stream = await listener.accept()
        except OSError as error:
            if error.errno == errno.EBADF:
                logger.info("listener.closed", listener=name, reason=str(error))
                return
            background.failed("listener", name, error, _LONGEST_PAUSE_S)
            if in_a_row:
                await trio.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(in_a_row, 10)))
            in_a_row += 1
            continue
        in_a_row = 0
        background.succeeded("listener", name)
        try:
            take(stream)
        except Exception as error:
            stream.close()
            background.failed_once("listener", name, error)
