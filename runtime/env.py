"""The environment of a process: protocols for clock, network, storage, ZooKeeper and randomness.

Every process is ``async def run(config, env)``. The real implementations are in ``real_trio`` (broker, controller),
``real_anyio`` (client) and ``zk_kazoo``; the simulated implementations are in ``sim/``. One contract suite tests real
and simulated implementations. This module imports no implementation.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias

from anabranch.protocol.types import Buffer as Buffer
from anabranch.protocol.types import Part as Part


class Clock(Protocol):
    """Time. To sleep, use the event loop (trio or anyio); a simulation replaces its clock, too."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds on the event loop's clock, which never goes back. Deadlines are times of this clock."""
        ...


# ---------------------------------------------------------------- storage


class File(Protocol):
    """One open file, appended to at its end and read at any position.

    ``append`` and ``pread`` are plain calls on the page cache; for bytes that are not cached, ``pread`` waits for the
    disk. Errors are ``OSError``.
    """

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Bytes in the file."""
        ...

    def append(self, data: Buffer) -> None:
        """Write all of ``data`` at the end; on an error the file is cut back to its size before the call."""
        ...

    def pread(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer only at the end of the file."""
        ...

    def is_cold(self, offset: int, length: int) -> bool:
        """Whether ``pread`` of these bytes would wait for the disk, as far as that is known without waiting."""
        ...

    async def read_through(self, offset: int, length: int) -> None:
        """Read these bytes from the disk into the page cache, in a thread. Never fails: ``pread`` reports errors."""
        ...

    def pwrite(self, offset: int, data: Buffer) -> None:
        """Overwrite in place: for index entries, and for tests that corrupt a file."""
        ...

    def truncate(self, size: int) -> None: ...

    async def cut(self, size: int) -> None:
        """``truncate`` in a thread, for very many bytes. No other call may change the file before it returns."""
        ...

    def range(self, offset: int, length: int) -> FileRange:
        """A piece of this file to send. It stays readable after ``close`` and after the file is unlinked."""
        ...

    async def sync(self) -> None:
        """fdatasync in a thread."""
        ...

    def close(self) -> None:
        """Close the file. The descriptor closes once no ``FileRange`` refers to it."""
        ...


class FileRange(Protocol):
    """``length`` bytes of a file from ``offset``, sent without copying them through the process."""

    offset: int
    length: int

    def __len__(self) -> int: ...

    def read(self) -> bytes:
        """The bytes themselves, for callers that cannot send a range."""
        ...

    async def load(self) -> bytes:
        """``read``, after a thread has read the bytes that are not in the page cache."""
        ...

    def behind(self, count: int) -> FileRange:
        """This range without its first ``count`` bytes."""
        ...


class Storage(Protocol):
    """A file system. Plain calls run at once, asynchronous calls use a thread; errors are ``OSError``.

    Only regular files are opened or read: anything else, such as a FIFO, is an error.
    """

    def open(self, path: str, *, create: bool = False) -> File: ...
    def exists(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool:
        """Whether a path is a directory, or a link to one. False if that cannot be found out."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def makedirs(self, path: str) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None:
        """Unlink a file. A thread frees the blocks of a large file later."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a small directory and its contents at once."""
        ...

    async def unlink_tree(self, path: str) -> None:
        """``remove_tree`` in a thread, for a directory of any size that is not in use."""
        ...

    def size(self, path: str) -> int: ...
    def modified_ms(self, path: str) -> int: ...
    def stamp(self, path: str) -> tuple[int, int]:
        """The size in bytes, and the time of the last modification in ms: another stamp means another content."""
        ...

    def read_bytes(self, path: str) -> bytes: ...
    def is_cold(self, path: str) -> bool:
        """Whether ``open`` and ``read_bytes`` may wait for the disk, as far as that is known without waiting."""
        ...

    async def read_through(self, paths: Sequence[str], opened: Sequence[str] = ()) -> None:
        """Read the files ``paths`` from the disk in a thread, and open the files ``opened`` without reading them.

        Errors are left to ``read_bytes`` and ``open``, which report them.
        """
        ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Write to a temporary name, sync, rename to ``path``. A reader sees either the old or the new content."""
        ...

    def lock(self, path: str) -> Callable[[], None]:
        """Take an exclusive lock, which is held until the returned function is called.

        Raises ``BlockingIOError`` when another process, or another caller in this one, holds it.
        """
        ...

    def free_bytes(self, path: str) -> int: ...
    def total_bytes(self, path: str) -> int: ...
    async def sync_directory(self, path: str) -> None: ...


# ---------------------------------------------------------------- network

DEFAULT_BACKLOG = 1024


class Stream(Protocol):
    """A connected byte stream. A broken one raises ``OSError`` (``ConnectionError``)."""

    @property
    def peer(self) -> str:
        """``host:port`` of the other side."""
        ...

    async def wait_readable(self) -> None:
        """Return when ``receive_into`` would not wait. Thus an idle connection needs no buffer."""
        ...

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at least one byte into ``buffer``; 0 at the end of the stream."""
        ...

    def has_ended(self) -> bool:
        """Whether the other side has closed the stream, or it is broken, and no byte is left to receive."""
        ...

    async def send(self, parts: Sequence[Part]) -> None:
        """Send all parts in order. A part is a buffer or a ``FileRange``, which is sent without a copy if possible."""
        ...

    def send_now(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Send as much as possible without waiting, and return the rest, for ``send``. No ``send`` may be running.

        This method never raises: on a broken stream it returns all parts, and ``send`` raises.
        """
        ...

    def close(self) -> None:
        """Close at once; a task waiting on the stream gets ``OSError``."""
        ...


class Listener(Protocol):
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    async def accept(self) -> Stream: ...
    def close(self) -> None: ...


class Network(Protocol):
    async def listen(
        self,
        host: str,
        port: int,
        *,
        backlog: int = DEFAULT_BACKLOG,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
    ) -> Listener:
        """Bind (port 0: any free port) and listen; ``backlog`` connections may wait to be accepted.

        The buffer sizes (SO_SNDBUF, SO_RCVBUF) are for accepted connections; -1 keeps the system's.
        """
        ...

    async def connect(self, host: str, port: int, *, attempt: int = 0) -> Stream:
        """Connect; ``OSError`` when refused or unreachable. The caller sets the deadline.

        A host may have several addresses. If one does not answer, the next one is tried soon. ``attempt`` is the number
        of earlier tries that failed: each attempt begins with another address, because an address may accept
        connections and answer no request.
        """
        ...


# ---------------------------------------------------------------- ZooKeeper


class ZkError(Exception):
    """A ZooKeeper call that failed; ``path`` names the znode. ``DETAIL`` is the text of an error without a detail."""

    DETAIL: ClassVar[str] = "the call to ZooKeeper failed"

    def __init__(self, path: str, detail: str = "") -> None:
        super().__init__(f"{path}: {detail or self.DETAIL}")
        self.path = path


class NoNodeError(ZkError):
    """The znode does not exist."""

    DETAIL = "the znode does not exist"


class NodeExistsError(ZkError):
    """The znode exists already."""

    DETAIL = "the znode exists already"


class BadVersionError(ZkError):
    """The znode's version is not the expected one."""

    DETAIL = "the znode's version is not the expected one"


class NotEmptyError(ZkError):
    """The znode has children."""

    DETAIL = "the znode has children"


class ZkConnectionError(ZkError):
    """The connection was lost: a write may or may not have been applied. Read the znode before writing again."""

    DETAIL = "the connection to ZooKeeper was lost during the call; the outcome is unknown"


class ZkSessionExpiredError(ZkError):
    """The session has expired: its ephemerals are deleted now or soon, and every watch is dropped."""

    DETAIL = "the ZooKeeper session has expired"


class ZkRequestTooLargeError(ZkError):
    """The request is longer than the server accepts: it was not sent, and no repetition can succeed.

    A server closes the connection on such a request without a response, so the length is checked before sending.
    """

    def __init__(self, path: str, size: int, limit: int) -> None:
        super().__init__(path, f"takes {size} bytes in one request; ZooKeeper accepts {limit} (jute.maxbuffer)")
        self.size = size
        self.limit = limit


class SessionState(enum.Enum):
    """The state of a ZooKeeper session. Every state may follow every other, so there is no table of transitions."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """Not connected; the session may still be valid. Stop sending, keep serving."""
    LOST = "lost"
    """The session expired. A new session starts; ephemerals and watches must be created again."""


@dataclass(frozen=True, slots=True)
class Znode:
    """A znode that was read: its data, and the fields of its stat that are used."""

    data: bytes
    version: int
    czxid: int
    mzxid: int
    ephemeral_owner: int


@dataclass(frozen=True, slots=True)
class CreateOp:
    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetOp:
    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class DeleteOp:
    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class CheckOp:
    path: str
    version: int


ZkOp: TypeAlias = CreateOp | SetOp | DeleteOp | CheckOp
Watch: TypeAlias = Callable[[], None]
"""Called once, in the event loop, when the watched znode has changed, or when the connection was lost.

The callback only marks state as outdated; a task reads the znode again. Equal callbacks on one path are one watch.
"""


class ZkStore(Protocol):
    """A ZooKeeper session and, after its expiry, its successors.

    Calls of one session are applied in the order in which they were made, and a watch fires before a read shows the
    change. Calls raise ``ZkError``. Without a connection, calls raise ``ZkConnectionError`` at once. Between the expiry
    and the next session, calls raise ``ZkSessionExpiredError``. In both cases nothing was sent. A closed session calls
    no callbacks. A request above ``max_request_bytes`` raises ``ZkRequestTooLargeError`` and is not sent; responses may
    be longer.
    """

    @property
    def max_request_bytes(self) -> int:
        """The servers' ``jute.maxbuffer``."""
        ...

    @property
    def state(self) -> SessionState: ...
    @property
    def session_id(self) -> int:
        """Id of the current session, 0 before the first connection."""
        ...

    def on_state(self, callback: Callable[[SessionState], None]) -> Callable[[], None]:
        """Call ``callback`` in the event loop at every change of state; returns a function that unregisters it."""
        ...

    async def get(self, path: str, watch: Watch | None = None) -> Znode:
        """The data and stat of a znode; the watch fires when the znode is written or deleted.

        After ``NoNodeError`` the watch is not reliable: use ``exists`` to wait for a znode.
        """
        ...

    async def exists(self, path: str, watch: Watch | None = None) -> Znode | None:
        """The znode with its stat and empty data, or None; the watch fires on creation too."""
        ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names of the children, sorted; the watch fires when a child is created or deleted."""
        ...

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False, make_parents: bool = False
    ) -> str:
        """Create a znode and return its path. ``sequence`` appends a number of ten digits, larger for each new child.

        Raises ``NodeExistsError``, and ``NoNodeError`` when the parent is missing, unless ``make_parents`` is set. An
        ephemeral znode is deleted with the session and has no children.
        """
        ...

    async def set(self, path: str, data: bytes, version: int = -1) -> int:
        """Write the data, return the new version. ``BadVersionError`` unless ``version`` is -1 or the current one."""
        ...

    async def delete(self, path: str, version: int = -1) -> None:
        """Delete a znode. Raises ``NotEmptyError`` when it has children; ``version`` is as in ``set``."""
        ...

    async def multi(self, ops: Sequence[ZkOp]) -> list[int]:
        """Apply all ops or none. Returns the new version for each op (0 for create, -1 for delete and check).

        Raises the error of the first op that failed, with its path.
        """
        ...

    async def sync(self, path: str) -> None:
        """Let the session's server catch up with the leader."""
        ...


# ---------------------------------------------------------------- environment


@dataclass(slots=True)
class Env:
    """All access of a process to its environment. A client has no ``storage`` and no ``zk``."""

    clock: Clock
    network: Network
    rng: random.Random = field(default_factory=random.Random)
    storage: Storage | None = None
    zk: ZkStore | None = None
    propagate_bugs: bool = False
    """Whether an unexpected error in background work ends the process, as simulations require."""
