"""Reads the lines of a file descriptor, each as soon as it is complete."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator

import anyio
import anyio.lowlevel

READ_BYTES = 1 << 16


class LineSplitter:
    """Joins pieces of any size into whole lines; an incomplete line waits for its end."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that ``piece`` completes, without their ends (``\\n`` or ``\\r\\n``)."""
        *whole, rest = piece.split(b"\n")
        if not whole:
            self._rest.append(piece)
            return []
        whole[0] = b"".join([*self._rest, whole[0]])
        self._rest = [rest] if rest else []
        return [line.removesuffix(b"\r") for line in whole]

    def end(self) -> list[bytes]:
        """The last line when the input ends without a line end."""
        rest = b"".join(self._rest)
        self._rest = []
        return [rest.removesuffix(b"\r")] if rest else []


async def read_lines(fd: int) -> AsyncGenerator[list[bytes], None]:
    """Yield each line of ``fd`` as soon as it is complete. The task may be cancelled while it waits for input."""
    splitter = LineSplitter()
    can_wait = True
    while True:
        if can_wait:
            try:
                await anyio.wait_readable(fd)
            except OSError:  # a regular file, or a device that is always ready: nothing to wait for
                can_wait = False
        else:
            await anyio.lowlevel.checkpoint()
        piece = os.read(fd, READ_BYTES)
        lines = splitter.feed(piece) if piece else splitter.end()
        if lines:
            yield lines
        if not piece:
            return
