"""How files of an audited directory are opened: a file that is none must not hold up or end the audit."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, to read. Raises OSError that names the path, also for a FIFO, which would be waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{os.fspath(path)} is no regular file")
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def why(error: OSError) -> str:
    """What an error of ``open_file`` says, without the path."""
    return error.strerror or "no regular file"
