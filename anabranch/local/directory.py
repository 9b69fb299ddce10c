"""The directory of a local cluster, in which one cluster runs at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch.command_error import CommandError

LOCK_FILE = ".lock"


@contextmanager
def held_directory(directory: Path) -> Iterator[None]:
    """Make ``directory`` and hold its lock file, which has only the id of this process.

    The kernel releases the lock when the process ends, however it ends. Raises ``CommandError`` when another process
    holds the lock.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK_FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise CommandError(
                f"a cluster runs in {directory}: process {pid} holds {path}; stop it, or choose another --dir"
            ) from None
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)
