"""How long a ZooKeeper request is, and whether a server accepts it: pure.

A server closes the connection on a request above its ``jute.maxbuffer``, so the client sees a lost connection each time
it repeats the request. Answers are not bounded by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.runtime.env import CheckOp, CreateOp, SetOp, ZkOp, ZkRequestTooLargeError

DEFAULT_MAX_REQUEST_BYTES = 0xFFFFF
"""ZooKeeper's default of ``jute.maxbuffer``."""
_OPERATION_OVERHEAD_BYTES = 64
"""Header, lengths, flags, version and the open ACL of one operation, at most."""
_REQUEST_OVERHEAD_BYTES = 32


def operation_bytes(op: ZkOp) -> int:
    """The bytes of one operation of a request, at most."""
    data = op.data if isinstance(op, CreateOp | SetOp) else b""
    return len(op.path.encode()) + len(data) + _OPERATION_OVERHEAD_BYTES


def request_bytes(ops: Sequence[ZkOp], chroot: str = "") -> int:
    """The bytes of a request with these operations, at most; ``chroot`` is put before each path."""
    return _REQUEST_OVERHEAD_BYTES + sum(operation_bytes(op) for op in ops) + len(chroot.encode()) * len(ops)


def check_fits(ops: Sequence[ZkOp], limit: int, chroot: str = "") -> None:
    """Raises ``ZkRequestTooLargeError`` with the path of the longest operation."""
    size = request_bytes(ops, chroot)
    if size > limit:
        raise ZkRequestTooLargeError(max(ops, key=operation_bytes).path, size, limit)


def check_path_fits(path: str, limit: int, chroot: str = "") -> None:
    """As ``check_fits``, for a request that carries a path alone."""
    check_fits([CheckOp(path, -1)], limit, chroot)
