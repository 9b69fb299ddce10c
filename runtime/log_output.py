"""Writes a process's log lines in a thread, so that a pipe without a reader never blocks the event loop."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque

STDERR = 2
MAX_WAITING_BYTES = 4 << 20
"""The bytes of lines that may wait to be written; lines above that are dropped and counted."""
_LAST_WAIT_S = 1.0


class LogOutput:
    """A text stream for loggers. A thread writes to ``fd``; ``write`` never waits for it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log-output", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._waiting_bytes + len(data) > MAX_WAITING_BYTES:
                self._dropped += 1
            else:
                self._lines.append(data)
                self._waiting_bytes += len(data)
                self._changed.notify()
        return len(text)

    def flush(self) -> None:
        """Do nothing: the writing thread takes each line at once."""

    def close(self) -> None:
        """Write the waiting lines, for at most a second."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_LAST_WAIT_S)

    def _run(self) -> None:
        while (data := self._next()) is not None:
            with contextlib.suppress(OSError):
                while data:
                    data = data[os.write(self._fd, data) :]

    def _next(self) -> bytes | None:
        with self._changed:
            while not self._lines and not self._is_closed:
                self._changed.wait()
            if not self._lines:
                return None
            data = b"".join(self._lines)
            self._lines.clear()
            self._waiting_bytes = 0
            if self._dropped:
                data += b"log lines dropped while nobody read them: %d\n" % self._dropped
                self._dropped = 0
            return data
