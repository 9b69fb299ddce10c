"""Bytes of files that are not in the page cache: a read of them waits for the disk.

``is_cold`` asks without waiting (``RWF_NOWAIT``), at one byte in each piece that the kernel reads ahead.
``read_through`` is for a thread, and leaves the bytes in the page cache. Where the system or the file system cannot be
asked nothing counts as cold: tmpfs, macOS.
"""

from __future__ import annotations

import contextlib
import os

WINDOW_BYTES = 512 << 10
"""So much is sent at most between two looks: what is dropped from the cache in between costs one short wait."""
_READ_AHEAD_BYTES = 128 << 10
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)


def is_cold(fd: int, offset: int, length: int) -> bool:
    """Whether a read of these bytes would wait for the disk, as far as one byte of each piece tells."""
    if _NOWAIT is None or length <= 0:
        return False
    byte = bytearray(1)
    try:
        for at in (*range(offset, offset + length, _READ_AHEAD_BYTES), offset + length - 1):
            os.preadv(fd, [byte], at, _NOWAIT)
    except BlockingIOError:
        return True
    except OSError:  # it cannot be asked, or the read itself is to say what is wrong
        return False
    return False


def read_through(fd: int, offset: int, length: int) -> None:
    """Read the bytes, and wait for the disk as long as it takes. What fails fails again where it is noticed."""
    end = offset + length
    with contextlib.suppress(OSError):
        while offset < end and (data := os.pread(fd, min(_READ_AHEAD_BYTES, end - offset), offset)):
            offset += len(data)
