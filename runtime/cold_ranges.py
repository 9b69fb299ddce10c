"""Finds bytes of files that are not in the page cache: a read of such bytes waits for the disk.

``is_cold`` checks without waiting (``RWF_NOWAIT``), at one byte in each piece that the kernel reads ahead.
``read_through`` is for a thread, and leaves the bytes in the page cache. On systems and file systems without
``RWF_NOWAIT``, such as macOS and tmpfs, nothing counts as cold.
"""

from __future__ import annotations

import contextlib
import errno
import os

WINDOW_BYTES = 1 << 20
"""The largest number of bytes sent between two checks. Bytes that leave the cache meanwhile cost a short wait."""
_READ_AHEAD_BYTES = 128 << 10
RWF_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)


def is_cold(fd: int, offset: int, length: int) -> bool | None:
    """Whether a read of these bytes would wait for the disk; one byte in each ``_READ_AHEAD_BYTES`` is tried.

    None: the file system cannot tell, for any bytes of this file.
    """
    if RWF_NOWAIT is None:
        return None
    if length <= 0:
        return False
    byte = bytearray(1)
    try:
        for at in (*range(offset, offset + length, _READ_AHEAD_BYTES), offset + length - 1):
            os.preadv(fd, [byte], at, RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError as error:
        # If it is another error, the read itself will report it.
        return None if error.errno == errno.EOPNOTSUPP else False
    return False


def read_through(fd: int, offset: int, length: int) -> None:
    """Read the bytes, and wait for the disk as long as it takes. Errors are ignored: the next read reports them."""
    end = offset + length
    with contextlib.suppress(OSError):
        while offset < end and (data := os.pread(fd, min(_READ_AHEAD_BYTES, end - offset), offset)):
            offset += len(data)
