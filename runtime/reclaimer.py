"""Frees the blocks of removed files in a thread: the kernel takes 0.4 s for a gibibyte.

The close of an unlinked file's last descriptor frees the file's blocks. Code that removes a large file keeps a
descriptor open, and passes the descriptor on to be closed here.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading

SMALL_FILE_BYTES = 4 << 20
"""Files up to this size are freed at once, which takes the kernel less than 2 ms."""
MAX_WAITING = 256
"""Descriptors that may wait to be closed."""
_END = -1


class Reclaimer:
    """Closes descriptors in one thread. The thread starts with the first descriptor and ends with this object."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._started = False

    @property
    def has_room(self) -> bool:
        """Whether another descriptor may wait to be closed."""
        return self._queue.qsize() < MAX_WAITING

    def close(self, fd: int) -> None:
        """Close ``fd`` soon, without waiting for the file system; a finalizer may call this at any moment.

        While the interpreter ends, ``fd`` is closed at once: no thread can start any more (Python 3.11 would wait for
        it).
        """
        if sys.is_finalizing():
            os.close(fd)
            return
        self._queue.put(fd)
        if not self._started:
            self._started = True
            try:
                threading.Thread(target=_close_all, args=(self._queue,), name="reclaimer", daemon=True).start()
            except RuntimeError:  # the interpreter is ending, and the kernel closes everything
                self._started = False

    def __del__(self) -> None:
        self._queue.put(_END)


def _close_all(fds: queue.SimpleQueue[int]) -> None:
    while (fd := fds.get()) != _END:
        with contextlib.suppress(OSError):
            os.close(fd)
