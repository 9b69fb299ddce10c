"""Decides the effect of a file system error on a replica: the error passes, the disk is full, or the replica fails."""

from __future__ import annotations

import errno

from anabranch.runtime.env import File

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PASSES = _NO_SPACE | {
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOBUFS,
    errno.EAGAIN,
    errno.EINTR,
    errno.EBUSY,
    errno.ETIMEDOUT,
}


class SyncFailedError(OSError):
    """fdatasync failed. The content on disk is not known, even if a later fdatasync succeeds."""


def is_out_of_space(error: OSError) -> bool:
    """Whether the file system, a quota or a limit of file sizes leaves no room."""
    return error.errno in _NO_SPACE and not isinstance(error, SyncFailedError)


def passes(error: OSError) -> bool:
    """Whether the same call may succeed later and nothing is lost: there was no space, no descriptor, or no memory."""
    return error.errno in _PASSES and not isinstance(error, SyncFailedError)


async def sync(file: File) -> None:
    """fdatasync an open file. Raises ``SyncFailedError``."""
    try:
        await file.sync()
    except OSError as error:
        raise SyncFailedError(error.errno, error.strerror or str(error), file.path) from error
