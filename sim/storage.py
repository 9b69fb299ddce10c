"""Files in memory, on a disk that outlives the process: a crash loses bytes that were not synced.

``SimDisk`` is the disk, ``mount()`` a process's ``Storage``. Names (create, rename, remove) are journalled at once, as
in an ordered file system; contents reach the disk by ``sync``. After a crash, a prefix of random length is left of an
unsynced tail, perhaps with its end zeroed. After an overwrite in place, a file has either the old or the new content.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Callable, Sequence

import trio

from anabranch.runtime.env import Buffer, Clock
from sim.clock import SimClock

SECTOR_BYTES = 512
OPENING = frozenset({"open", "listdir", "read_bytes", "write_atomic", "lock", "sync_directory"})
"""The operations that need a descriptor and may fail with EMFILE."""
WRITING = frozenset({"open", "makedirs", "rename", "write_atomic", "append", "pwrite", "sync"})
"""The operations that may need space and may fail with ENOSPC."""
ALL_OPERATIONS = OPENING | WRITING | {"remove", "remove_tree", "size", "modified_ms", "pread", "truncate"}
_UNLIMITED_BYTES = 1 << 40


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class _Inode:
    """One file's bytes. ``overwritten`` is the synced content, if bytes below ``synced_size`` were changed since."""

    __slots__ = ("content", "modified_ms", "overwritten", "synced_size")

    def __init__(self, now_ms: int) -> None:
        self.content = bytearray()
        self.synced_size = 0
        self.overwritten: bytes | None = None
        self.modified_ms = now_ms

    def before_change(self, offset: int) -> None:
        if offset < self.synced_size and self.overwritten is None:
            self.overwritten = bytes(self.content[: self.synced_size])

    def synced(self, size: int) -> None:
        """Everything up to ``size`` is on disk. Bytes that were appended since the sync began are not on disk."""
        self.synced_size = min(size, len(self.content))
        self.overwritten = None

    def crash(self, rng: random.Random) -> None:
        if self.overwritten is not None and rng.random() < 0.5:
            self.content = bytearray(self.overwritten)
        elif len(self.content) > self.synced_size:
            kept = rng.randint(self.synced_size, len(self.content))
            del self.content[kept:]
            torn = min(kept - self.synced_size, SECTOR_BYTES)
            if torn and rng.random() < 0.5:
                zeroed = rng.randint(1, torn)
                self.content[kept - zeroed :] = bytes(zeroed)
        self.synced(len(self.content))


class FailingCalls:
    """Fails the ``first``-th of ``operations`` with the errno ``number``, and all later ones if ``lasting``.

    Counting begins with 0. A failed operation changes nothing, with one exception: if ``lasting``, the bytes that a
    failed append has written stay in the file.
    """

    def __init__(
        self, first: int, number: int, *, lasting: bool = False, operations: frozenset[str] = ALL_OPERATIONS
    ) -> None:
        self.first = first
        self.number = number
        self.lasting = lasting
        self.operations = operations
        self.calls = 0
        self.failed: list[str] = []
        """The operations that failed, with their paths."""

    def check(self, operation: str, path: str) -> None:
        """Raise ``OSError`` when this call is to fail."""
        if operation not in self.operations:
            return
        call = self.calls
        self.calls += 1
        if call == self.first or (self.lasting and call > self.first):
            self.failed.append(f"{operation} {path}")
            raise _os_error(self.number, path)


class SimDisk:
    """One machine's disk. ``capacity_bytes`` bounds the sum of all files.

    ``write_errno`` makes every write fail, and ``sync_errno`` every sync; after a failed sync the bytes stay unsynced.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        clock: Clock | None = None,
        capacity_bytes: int = _UNLIMITED_BYTES,
        sync_delay_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.write_errno: int | None = None
        self.sync_errno: int | None = None
        self.failing: FailingCalls | None = None
        self.sync_delay_s = sync_delay_s
        self.clock = clock or SimClock()
        self.files: dict[str, _Inode] = {}
        self.directories: dict[str, None] = {"/": None}
        self.locks: dict[str, SimStorage] = {}
        self._rng = rng

    def mount(self) -> SimStorage:
        """The disk as a new process sees it."""
        return SimStorage(self)

    def kill(self, storage: SimStorage) -> None:
        """The process of ``storage`` ends as by SIGKILL: its locks are released, and every byte it wrote is kept."""
        storage.fenced = True
        self.locks = {path: owner for path, owner in self.locks.items() if owner is not storage}

    def crash(self, storage: SimStorage) -> None:
        """The machine crashes: the process of ``storage`` ends, and unsynced bytes are lost."""
        self.kill(storage)
        for inode in self.files.values():
            inode.crash(self._rng)

    @property
    def used_bytes(self) -> int:
        return sum(len(inode.content) for inode in self.files.values())

    def call(self, operation: str, path: str) -> None:
        """Begin a file operation. Raises ``OSError`` when it is to fail."""
        if self.failing is not None:
            self.failing.check(operation, path)

    def check_write(self, path: str, growth_bytes: int) -> None:
        if self.write_errno is not None:
            raise _os_error(self.write_errno, path)
        limited = self.capacity_bytes < _UNLIMITED_BYTES
        if limited and growth_bytes > 0 and self.used_bytes + growth_bytes > self.capacity_bytes:
            raise _os_error(errno.ENOSPC, path)


class SimFileRange:
    """A piece of a file, readable as long as it is held."""

    __slots__ = ("_inode", "length", "offset")

    def __init__(self, inode: _Inode, offset: int, length: int) -> None:
        self._inode = inode
        self.offset = offset
        self.length = length

    def __len__(self) -> int:
        return self.length

    def read(self) -> bytes:
        return bytes(self._inode.content[self.offset : self.offset + self.length])

    async def load(self) -> bytes:
        return self.read()

    def behind(self, count: int) -> SimFileRange:
        return SimFileRange(self._inode, self.offset + count, self.length - count)


class SimFile:
    """One open file."""

    __slots__ = ("_closed", "_inode", "_path", "_storage")

    def __init__(self, storage: SimStorage, path: str, inode: _Inode) -> None:
        self._storage = storage
        self._path = path
        self._inode = inode
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def _use(self) -> _Inode:
        self._storage.check_fence(self._path)
        if self._closed:
            raise _os_error(errno.EBADF, self._path)
        return self._inode

    def _write(self, offset: int, data: Buffer) -> None:
        inode = self._use()
        end = offset + len(data)
        self._storage.disk.check_write(self._path, end - len(inode.content))
        inode.before_change(offset)
        if offset > len(inode.content):
            inode.content.extend(bytes(offset - len(inode.content)))
        inode.content[offset:end] = data
        inode.modified_ms = self._storage.disk.clock.now_ms()

    def size(self) -> int:
        return len(self._use().content)

    def append(self, data: Buffer) -> None:
        try:
            self._storage.disk.call("append", self._path)
        except OSError:
            failing = self._storage.disk.failing
            if failing is not None and failing.lasting:
                self._write(self.size(), bytes(data)[: len(data) // 2])
            raise
        self._write(self.size(), data)

    def pread(self, offset: int, length: int) -> bytes:
        self._storage.disk.call("pread", self._path)
        return bytes(self._use().content[offset : offset + length])

    def is_cold(self, offset: int, length: int) -> bool:
        return False

    async def read_through(self, offset: int, length: int) -> None:
        await trio.lowlevel.checkpoint()

    def pwrite(self, offset: int, data: Buffer) -> None:
        self._storage.disk.call("pwrite", self._path)
        self._write(offset, data)

    def truncate(self, size: int) -> None:
        self._storage.disk.call("truncate", self._path)
        inode = self._use()
        missing = size - len(inode.content)
        if missing > 0:
            self._write(len(inode.content), bytes(missing))
            return
        inode.before_change(size)
        del inode.content[size:]
        inode.synced_size = min(inode.synced_size, size)

    async def cut(self, size: int) -> None:
        self._use()
        await trio.sleep(self._storage.disk.sync_delay_s())
        self.truncate(size)

    def range(self, offset: int, length: int) -> SimFileRange:
        return SimFileRange(self._use(), offset, length)

    async def sync(self) -> None:
        inode = self._use()
        size = len(inode.content)
        disk = self._storage.disk
        await trio.sleep(disk.sync_delay_s())
        self._storage.check_fence(self._path)
        disk.call("sync", self._path)
        if disk.sync_errno is not None:
            raise _os_error(disk.sync_errno, self._path)
        inode.synced(size)

    def close(self) -> None:
        self._closed = True


class SimStorage:
    """``Storage`` of one process. Once ``fenced`` by a crash, every call fails: a dead process writes nothing."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.fenced = False

    def check_fence(self, path: str) -> None:
        if self.fenced:
            raise _os_error(errno.EIO, path)

    def _path(self, path: str) -> str:
        self.check_fence(path)
        return posixpath.normpath(posixpath.join("/", path))

    def _existing(self, path: str) -> _Inode:
        normal = self._path(path)
        if normal in self.disk.directories:
            raise _os_error(errno.EISDIR, path)
        if normal not in self.disk.files:
            raise _os_error(errno.ENOENT, path)
        return self.disk.files[normal]

    def _check_parent(self, path: str) -> None:
        parent = posixpath.dirname(path)
        if parent in self.disk.files:
            raise _os_error(errno.ENOTDIR, path)
        if parent not in self.disk.directories:
            raise _os_error(errno.ENOENT, path)

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.disk.call("open", path)
        normal = self._path(path)
        if create and normal not in self.disk.files and normal not in self.disk.directories:
            self._check_parent(normal)
            self.disk.check_write(path, 0)
            self.disk.files[normal] = _Inode(self.disk.clock.now_ms())
        return SimFile(self, path, self._existing(path))

    def exists(self, path: str) -> bool:
        normal = self._path(path)
        return normal in self.disk.files or normal in self.disk.directories

    def _names_under(self, directory: str) -> list[str]:
        prefix = directory.rstrip("/") + "/"
        return [
            name for name in [*self.disk.directories, *self.disk.files] if name.startswith(prefix) and name != prefix
        ]

    def is_dir(self, path: str) -> bool:
        return self._path(path) in self.disk.directories

    def listdir(self, path: str) -> list[str]:
        self.disk.call("listdir", path)
        normal = self._path(path)
        if normal in self.disk.files:
            raise _os_error(errno.ENOTDIR, path)
        if normal not in self.disk.directories:
            raise _os_error(errno.ENOENT, path)
        return sorted(
            name.rpartition("/")[2] for name in self._names_under(normal) if posixpath.dirname(name) == normal
        )

    def makedirs(self, path: str) -> None:
        normal = self._path(path)
        if normal in self.disk.files:
            raise _os_error(errno.EEXIST, path)
        if normal in self.disk.directories:
            return
        self.disk.call("makedirs", path)
        self.disk.check_write(path, 0)
        self.makedirs(posixpath.dirname(normal))
        self.disk.directories[normal] = None

    def rename(self, old: str, new: str) -> None:
        source, target = self._path(old), self._path(new)
        self.disk.call("rename", old)
        self._check_parent(target)
        self.disk.check_write(old, 0)
        if source in self.disk.files:
            if target in self.disk.directories:
                raise _os_error(errno.EISDIR, new)
            self.disk.files[target] = self.disk.files.pop(source)
        elif source in self.disk.directories:
            self._rename_directory(source, target)
        else:
            raise _os_error(errno.ENOENT, old)

    def _rename_directory(self, source: str, target: str) -> None:
        if target in self.disk.files:
            raise _os_error(errno.ENOTDIR, target)
        if target in self.disk.directories and self._names_under(target):
            raise _os_error(errno.ENOTEMPTY, target)
        for name in self._names_under(source):
            moved = target + name.removeprefix(source)
            if name in self.disk.files:
                self.disk.files[moved] = self.disk.files.pop(name)
            else:
                del self.disk.directories[name]
                self.disk.directories[moved] = None
        del self.disk.directories[source]
        self.disk.directories[target] = None

    def remove(self, path: str) -> None:
        self._existing(path)
        self.disk.call("remove", path)
        self.disk.check_write(path, 0)
        del self.disk.files[self._path(path)]

    def remove_tree(self, path: str) -> None:
        normal = self._path(path)
        self.disk.call("remove_tree", path)
        if normal in self.disk.files:
            raise _os_error(errno.ENOTDIR, path)
        if normal not in self.disk.directories:
            raise _os_error(errno.ENOENT, path)
        for name in [*self._names_under(normal), normal]:
            self.disk.files.pop(name, None)
            self.disk.directories.pop(name, None)

    async def unlink_tree(self, path: str) -> None:
        self._path(path)
        await trio.lowlevel.checkpoint()
        self.remove_tree(path)

    def size(self, path: str) -> int:
        self.disk.call("size", path)
        return len(self._existing(path).content)

    def modified_ms(self, path: str) -> int:
        self.disk.call("modified_ms", path)
        return self._existing(path).modified_ms

    def stamp(self, path: str) -> tuple[int, int]:
        self.disk.call("stamp", path)
        found = self._existing(path)
        return len(found.content), found.modified_ms

    def read_bytes(self, path: str) -> bytes:
        self.disk.call("read_bytes", path)
        return bytes(self._existing(path).content)

    def is_cold(self, path: str) -> bool:
        return False

    async def read_through(self, paths: Sequence[str], opened: Sequence[str] = ()) -> None:
        await trio.lowlevel.checkpoint()

    def write_atomic(self, path: str, data: bytes) -> None:
        normal = self._path(path)
        if normal in self.disk.directories:
            raise _os_error(errno.EISDIR, path)
        self._check_parent(normal)
        self.disk.call("write_atomic", path)
        self.disk.check_write(path, len(data))
        inode = _Inode(self.disk.clock.now_ms())
        inode.content += data
        inode.synced(len(data))
        self.disk.files[normal] = inode

    def lock(self, path: str) -> Callable[[], None]:
        self.disk.call("lock", path)
        self.open(path, create=True).close()
        normal = self._path(path)
        if normal in self.disk.locks:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        self.disk.locks[normal] = self

        def release() -> None:
            if self.disk.locks.get(normal) is self:
                del self.disk.locks[normal]

        return release

    def free_bytes(self, path: str) -> int:
        self._path(path)
        return self.disk.capacity_bytes - self.disk.used_bytes

    def total_bytes(self, path: str) -> int:
        self._path(path)
        return self.disk.capacity_bytes

    async def sync_directory(self, path: str) -> None:
        self._path(path)
        await trio.sleep(self.disk.sync_delay_s())
        self.disk.call("sync_directory", path)
