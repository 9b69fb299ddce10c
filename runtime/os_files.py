"""Files through the kernel: plain calls into the page cache, fdatasync in a thread."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Sequence

import trio

from anabranch.runtime.cold_ranges import is_cold, read_through
from anabranch.runtime.env import Buffer, File, FileRange
from anabranch.runtime.reclaimer import SMALL_FILE_BYTES, Reclaimer
from anabranch.runtime.regular_files import open_regular, read_regular

_DIRECTORY_MODE = 0o755
_FILE_MODE = 0o644


class Descriptor:
    """A file descriptor. It closes with its last reference, held by a file or by a range that waits to be sent.

    With ``reclaimer``, a large removed file is closed in the reclaimer's thread, because the close frees the blocks.
    """

    __slots__ = ("fd", "is_never_cold", "reclaimer")

    def __init__(self, fd: int, reclaimer: Reclaimer | None = None) -> None:
        self.fd = fd
        self.reclaimer = reclaimer
        self.is_never_cold = False
        """Whether the file system cannot tell which bytes are cold. Each attempt to ask it costs an exception."""

    def is_cold(self, offset: int, length: int) -> bool:
        """Whether a read of these bytes would wait for the disk."""
        if self.is_never_cold:
            return False
        found = is_cold(self.fd, offset, length)
        self.is_never_cold = found is None
        return found is True

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            if self.reclaimer is not None:
                stat = os.fstat(self.fd)
                if stat.st_nlink == 0 and stat.st_size > SMALL_FILE_BYTES:
                    self.reclaimer.close(self.fd)
                    return
            os.close(self.fd)


class OsFileRange:
    """A piece of an open file; ``descriptor`` is for ``sendfile``."""

    __slots__ = ("descriptor", "length", "offset")

    def __init__(self, descriptor: Descriptor, offset: int, length: int) -> None:
        self.descriptor = descriptor
        self.offset = offset
        self.length = length

    def __len__(self) -> int:
        return self.length

    def read(self) -> bytes:
        return _pread(self.descriptor.fd, self.offset, self.length)

    async def load(self) -> bytes:
        if self.descriptor.is_cold(self.offset, self.length):
            await trio.to_thread.run_sync(read_through, self.descriptor.fd, self.offset, self.length)
        return self.read()

    def behind(self, count: int) -> OsFileRange:
        return OsFileRange(self.descriptor, self.offset + count, self.length - count)


class OsFile:
    """One open file. Its errors name its path."""

    __slots__ = ("_commits", "_descriptor", "_path", "_size")

    def __init__(self, path: str, descriptor: Descriptor, commits: GroupCommits) -> None:
        self._path = path
        self._descriptor: Descriptor | None = descriptor
        self._commits = commits
        self._size: int | None = None
        """The size after the last ``append``, while nothing else changes the file through this object."""

    @property
    def path(self) -> str:
        return self._path

    @property
    def _open(self) -> Descriptor:
        if self._descriptor is None:
            raise OSError(errno.EBADF, "the file was closed", self._path)
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self._open.fd).st_size

    def append(self, data: Buffer) -> None:
        fd = self._open.fd
        size, self._size = self._size, None
        if size is None:
            size = os.fstat(fd).st_size
        try:
            _pwrite_all(fd, size, data)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, size)
            error.filename = self._path
            raise
        self._size = size + len(data)

    def pread(self, offset: int, length: int) -> bytes:
        try:
            return _pread(self._open.fd, offset, length)
        except OSError as error:
            error.filename = self._path
            raise

    def is_cold(self, offset: int, length: int) -> bool:
        return self._open.is_cold(offset, length)

    async def read_through(self, offset: int, length: int) -> None:
        descriptor = self._open  # it stays open meanwhile
        await trio.to_thread.run_sync(read_through, descriptor.fd, offset, length)

    def pwrite(self, offset: int, data: Buffer) -> None:
        self._size = None
        try:
            _pwrite_all(self._open.fd, offset, data)
        except OSError as error:
            error.filename = self._path
            raise

    def truncate(self, size: int) -> None:
        self._size = None
        try:
            os.ftruncate(self._open.fd, size)
        except OSError as error:
            error.filename = self._path
            raise

    async def cut(self, size: int) -> None:
        descriptor = self._open  # it stays open meanwhile
        try:
            await trio.to_thread.run_sync(os.ftruncate, descriptor.fd, size)
        except OSError as error:
            error.filename = self._path
            raise
        finally:
            self._size = None  # an append meanwhile remembered a size of before

    def range(self, offset: int, length: int) -> FileRange:
        return OsFileRange(self._open, offset, length)

    async def sync(self) -> None:
        await self._commits.sync(self._open)

    def close(self) -> None:
        self._descriptor = None


def _read_files_through(paths: Sequence[str], opened: Sequence[str]) -> None:
    for path in (*paths, *opened):
        with contextlib.suppress(OSError), open(path, "rb", buffering=0, opener=open_regular) as file:
            if path not in opened:
                read_through(file.fileno(), 0, os.fstat(file.fileno()).st_size)


def _pread(fd: int, offset: int, length: int) -> bytes:
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    pieces = [data]
    missing = length - len(data)
    while missing and (data := os.pread(fd, missing, offset + length - missing)):
        pieces.append(data)
        missing -= len(data)
    return b"".join(pieces)


def _pwrite_all(fd: int, offset: int, data: Buffer) -> None:
    written = os.pwrite(fd, data, offset)
    total = len(data)
    if written == total:
        return
    with memoryview(data) as view:
        while written < total:
            written += os.pwrite(fd, view[written:], offset + written)


class _Commit:
    """Files that one call in a thread syncs; ``errors`` are by descriptor, once ``finished``."""

    __slots__ = ("descriptors", "done", "errors", "finished")

    def __init__(self) -> None:
        self.descriptors: dict[Descriptor, None] = {}
        self.errors: dict[Descriptor, OSError] = {}
        self.finished = False
        self.done = trio.Event()

    def run(self) -> None:
        for descriptor in self.descriptors:
            try:
                os.fdatasync(descriptor.fd)
            except OSError as error:
                self.errors[descriptor] = error
        self.finished = True


class _Device:
    """One file system: its running commit, and the commit that collects files for the next run."""

    __slots__ = ("collecting", "running")

    def __init__(self) -> None:
        self.running: _Commit | None = None
        self.collecting: _Commit | None = None


class GroupCommits:
    """fdatasync in a thread. Each file system runs one commit at a time; the next collects files meanwhile."""

    def __init__(self) -> None:
        self._devices: dict[int, _Device] = {}

    async def sync(self, descriptor: Descriptor) -> None:
        """Return when everything written before the call is on disk. Raises the file's own ``OSError``."""
        device = self._devices.setdefault(os.fstat(descriptor.fd).st_dev, _Device())
        commit = device.collecting
        if commit is None:
            commit = device.collecting = _Commit()
        commit.descriptors[descriptor] = None
        while not commit.finished:
            if device.running is not None:
                await device.running.done.wait()
            else:
                await self._lead(device, commit)
        if error := commit.errors.get(descriptor):
            raise error

    async def _lead(self, device: _Device, commit: _Commit) -> None:
        device.running = commit
        if device.collecting is commit:
            device.collecting = None
        commit.done = trio.Event()  # a leader that was cancelled before its thread started has set the previous event
        try:
            await trio.to_thread.run_sync(commit.run)
        finally:
            device.running = None
            commit.done.set()


class OsStorage:
    """The local file system."""

    def __init__(self) -> None:
        self._commits = GroupCommits()
        self._reclaimer = Reclaimer()

    def open(self, path: str, *, create: bool = False) -> File:
        descriptor = Descriptor(open_regular(path, os.O_RDWR | (os.O_CREAT if create else 0)), self._reclaimer)
        return OsFile(path, descriptor, self._commits)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def makedirs(self, path: str) -> None:
        os.makedirs(path, _DIRECTORY_MODE, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        held: Descriptor | None = None
        if os.lstat(path).st_size > SMALL_FILE_BYTES and self._reclaimer.has_room:
            with contextlib.suppress(OSError):  # out of descriptors: the removal itself frees the blocks
                held = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC), self._reclaimer)
        os.remove(path)
        del held

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    async def unlink_tree(self, path: str) -> None:
        await trio.to_thread.run_sync(self.remove_tree, path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def stamp(self, path: str) -> tuple[int, int]:
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns // 1_000_000

    def read_bytes(self, path: str) -> bytes:
        return read_regular(path)

    def is_cold(self, path: str) -> bool:
        return True  # the kernel has RWF_NOWAIT for reads only, and no such flag for look-ups of names

    async def read_through(self, paths: Sequence[str], opened: Sequence[str] = ()) -> None:
        await trio.to_thread.run_sync(_read_files_through, paths, opened)

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = f"{path}.tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fdatasync(file.fileno())
            os.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.remove(temporary)
            raise

    def lock(self, path: str) -> Callable[[], None]:
        descriptor = Descriptor(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE))
        fcntl.flock(descriptor.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

        def release() -> None:
            fcntl.flock(descriptor.fd, fcntl.LOCK_UN)

        return release

    def free_bytes(self, path: str) -> int:
        return shutil.disk_usage(path).free

    def total_bytes(self, path: str) -> int:
        return shutil.disk_usage(path).total

    async def sync_directory(self, path: str) -> None:
        descriptor = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        await trio.to_thread.run_sync(os.fsync, descriptor.fd)
