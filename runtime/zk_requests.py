"""The length of a ZooKeeper request, and the check that a server accepts it: pure.

A server closes the connection on a request above its ``jute.maxbuffer``. A client that repeats the request loses the
connection again. The limit does not apply to responses.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.runtime.env import CheckOp, CreateOp, SetOp, ZkOp, ZkRequestTooLargeError

DEFAULT_MAX_REQUEST_BYTES = 0xFFFFF
"""ZooKeeper's default of ``jute.maxbuffer``."""
_OPERATION_OVERHEAD_BYTES = 64
"""An upper bound for header, lengths, flags, version and the open ACL of one operation."""
_REQUEST_OVERHEAD_BYTES = 32


def operation_bytes(op: ZkOp) -> int:
    """An upper bound for the bytes of one operation of a request."""
    data = op.data if isinstance(op, CreateOp | SetOp) else b""
    return len(op.path.encode()) + len(data) + _OPERATION_OVERHEAD_BYTES


def request_bytes(ops: Sequence[ZkOp], chroot: str = "") -> int:
    """An upper bound for the bytes of a request with these operations; ``chroot`` is put before each path."""
    return _REQUEST_OVERHEAD_BYTES + sum(operation_bytes(op) for op in ops) + len(chroot.encode()) * len(ops)


def check_fits(ops: Sequence[ZkOp], limit: int, chroot: str = "") -> None:
    """Raise ``ZkRequestTooLargeError``, with the path of the longest operation, for a request above ``limit``."""
    size = request_bytes(ops, chroot)
    if size > limit:
        raise ZkRequestTooLargeError(max(ops, key=operation_bytes).path, size, limit)


def check_path_fits(path: str, limit: int, chroot: str = "") -> None:
    """``check_fits`` for a request that has only a path."""
    check_fits([CheckOp(path, -1)], limit, chroot)
