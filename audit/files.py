"""How files of an audited directory are opened: a file that is none must not hold up or end the audit."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

_NOT_REGULAR = "no regular file"


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, to read. Raises OSError that names the path, also for a FIFO, which would be waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, _NOT_REGULAR, os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file. Raises OSError as ``open_file`` does."""
    with open_file(path) as file:
        return file.read()


def refuse_unreadable(path: str | os.PathLike[str]) -> None:
    """Raise OSError that names what cannot be opened: the file, or one that Spark reads of the directory."""
    paths = [os.fspath(path)]
    if os.path.isdir(path):
        paths = [entry.path for entry in os.scandir(path) if not entry.name.startswith((".", "_"))]
    for one in sorted(paths):
        open_file(one).close()


def why(error: OSError) -> str:
    """What an error of ``open_file`` says, without the path."""
    return error.strerror or str(error)
