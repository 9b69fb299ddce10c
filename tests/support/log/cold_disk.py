"""A disk with cold bytes, which have left the page cache: the event loop must not wait for cold bytes."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import pytest

from anabranch.runtime import os_files
from anabranch.runtime.os_files import OsStorage

PAGE_BYTES = 4096


class ColdDisk:
    """Watches the files of ``OsStorage``. ``waited`` names the cold reads of the thread that created this object."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited: list[str] = []
        self.reads_in_threads = 0
        self._loop_thread = threading.get_ident()
        self._dropped = False
        self._warm: set[tuple[int, int]] = set()
        self._known: set[str] = set()
        self._real = {name: getattr(os_files, name) for name in ("read_through", "_pread", "_pwrite_all")}
        self._open, self._read_bytes = OsStorage.open, OsStorage.read_bytes
        for name in ("is_cold", "read_through", "_pread", "_pwrite_all", "_read_files_through"):
            monkeypatch.setattr(os_files, name, getattr(self, f"_{name.strip('_')}_watched"))
        monkeypatch.setattr(OsStorage, "open", lambda storage, path, **how: self._open_watched(storage, path, **how))
        monkeypatch.setattr(OsStorage, "read_bytes", lambda storage, path: self._read_bytes_watched(storage, path))

    def drop(self) -> None:
        """Make all bytes cold until they are read or written."""
        self._dropped = True
        self._warm.clear()
        self._known.clear()

    def _pages(self, fd: int, offset: int, length: int) -> set[tuple[int, int]]:
        inode = os.fstat(fd).st_ino
        end = min(offset + length, os.fstat(fd).st_size)
        return {(inode, page) for page in range(offset // PAGE_BYTES, -(-end // PAGE_BYTES))}

    def _touch(self, what: str, is_cold: bool) -> None:
        if threading.get_ident() != self._loop_thread:
            self.reads_in_threads += is_cold
        elif self._dropped and is_cold:
            self.waited.append(what)

    def _is_cold_watched(self, fd: int, offset: int, length: int) -> bool:
        return self._dropped and not self._pages(fd, offset, length) <= self._warm

    def _read_through_watched(self, fd: int, offset: int, length: int) -> None:
        self._touch("read_through", self._is_cold_watched(fd, offset, length))
        self._real["read_through"](fd, offset, length)
        self._warm |= self._pages(fd, offset, length)

    def _pread_watched(self, fd: int, offset: int, length: int) -> bytes:
        path = os.readlink(f"/proc/self/fd/{fd}")
        self._touch(f"{length} bytes at {offset} of {path}", self._is_cold_watched(fd, offset, length))
        self._warm |= self._pages(fd, offset, length)
        data: bytes = self._real["_pread"](fd, offset, length)
        return data

    def _pwrite_all_watched(self, fd: int, offset: int, data: bytes) -> None:
        self._real["_pwrite_all"](fd, offset, data)
        self._warm |= self._pages(fd, offset, len(data))

    def _read_files_through_watched(self, paths: Sequence[str], opened: Sequence[str]) -> None:
        for path in (*paths, *opened):
            self._touch(path, path not in self._known)
            self._known.add(path)

    def _open_watched(self, storage: OsStorage, path: str, *, create: bool = False) -> object:
        self._touch(f"open {path}", path not in self._known and os.path.exists(path))
        self._known.add(path)
        return self._open(storage, path, create=create)

    def _read_bytes_watched(self, storage: OsStorage, path: str) -> bytes:
        self._touch(f"read {path}", path not in self._known)
        self._known.add(path)
        return self._read_bytes(storage, path)
