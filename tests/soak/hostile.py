"""Sends one frame to a process, on a connection of its own."""

from __future__ import annotations

import struct

import trio

from tests.soak.network import HOST

ANSWER_LIMIT_S = 0.3
"""A request may be parked, or have no answer: the next frame follows."""


async def send_frame(port: int, frame: bytes) -> str:
    """Returns how it ended: ``answered``, ``closed`` or ``no answer``."""
    try:
        async with await trio.open_tcp_stream(HOST, port) as stream:
            await stream.send_all(struct.pack(">i", len(frame)) + frame)
            with trio.move_on_after(ANSWER_LIMIT_S):
                return "answered" if await stream.receive_some() else "closed"
            return "no answer"
    except (trio.BrokenResourceError, OSError):
        return "closed"
