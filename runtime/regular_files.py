"""Opens regular files only: the open or the read of a FIFO or of another special file would block."""

from __future__ import annotations

import errno
import os
import stat

_MODE = 0o644


def open_regular(path: str, flags: int) -> int:
    """Open a regular file; an ``opener`` for ``open``. Raises ``OSError``, also for anything but a regular file."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, _MODE)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def read_regular(path: str | os.PathLike[str], max_bytes: int = -1) -> bytes:
    """The first ``max_bytes`` of a regular file, or all of it. Raises ``OSError``."""
    with open(path, "rb", opener=open_regular) as file:
        return file.read(max_bytes)
