"""Opens files of an audited directory: a FIFO or another special file must neither block nor end the audit."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

_NOT_REGULAR = "not a regular file"


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. Raises OSError with the path, also for a FIFO: its open would block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, _NOT_REGULAR, os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file. Raises the errors of ``open_file``."""
    with open_file(path) as file:
        return file.read()


def refuse_unreadable(path: str | os.PathLike[str]) -> None:
    """Raise OSError that names an unreadable file: ``path`` itself, or a file that Spark reads in the directory."""
    paths = [os.fspath(path)]
    if os.path.isdir(path):
        paths = [entry.path for entry in os.scandir(path) if not entry.name.startswith((".", "_"))]
    for one in sorted(paths):
        open_file(one).close()


def why(error: OSError) -> str:
    """The text of an error of ``open_file``, without the path."""
    return error.strerror or str(error)
