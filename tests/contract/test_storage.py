"""The contract of ``Storage``: the local file system and the simulated disk."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
import trio.testing

from anabranch.runtime.env import Storage
from anabranch.runtime.real_trio import RealStorage
from sim.storage import SimDisk

START_MS = 1_500_000_000_000


@dataclass
class StorageFixture:
    """A storage, an empty folder in it, and another process's view of the same disk."""

    storage: Storage
    folder: str
    other_process: Callable[[], Storage]

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"


@pytest.fixture(params=["files", "memory"])
def storage_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> StorageFixture:
    if request.param == "files":
        return StorageFixture(RealStorage(), str(tmp_path), RealStorage)

    class StoppedClock:
        def now_ms(self) -> int:
            return START_MS + 1

        def monotonic(self) -> float:
            return 0.0

    disk = SimDisk(random.Random(0), clock=StoppedClock())
    storage = disk.mount()
    storage.makedirs("/data")
    return StorageFixture(storage, "/data", disk.mount)


def test_appended_data_can_be_read_at_any_position(storage_fixture: StorageFixture) -> None:
    file = storage_fixture.storage.open(storage_fixture.path("f"), create=True)
    assert (file.path, file.size()) == (storage_fixture.path("f"), 0)
    file.append(b"hello ")
    file.append(memoryview(b"world"))
    file.append(bytearray(b"!"))
    file.append(b"")
    assert file.size() == 12
    assert file.pread(0, 12) == b"hello world!"
    assert file.pread(6, 5) == b"world"
    assert file.pread(10, 100) == b"d!"
    assert file.pread(12, 1) == b""
    assert file.pread(100, 1) == b""
    file.close()
    assert storage_fixture.storage.read_bytes(storage_fixture.path("f")) == b"hello world!"
    assert storage_fixture.storage.size(storage_fixture.path("f")) == 12


def test_pwrite_overwrites_and_truncate_shortens_or_fills_with_zeros(storage_fixture: StorageFixture) -> None:
    file = storage_fixture.storage.open(storage_fixture.path("f"), create=True)
    file.append(b"0123456789")
    file.pwrite(2, b"ab")
    assert file.pread(0, 10) == b"01ab456789"
    file.truncate(5)
    assert file.size() == 5
    file.append(b"Z")
    assert file.pread(0, 10) == b"01ab4Z"
    file.truncate(8)
    assert file.pread(0, 10) == b"01ab4Z\0\0"
    file.close()


@pytest.mark.trio
async def test_a_file_may_be_closed_while_a_thread_truncates_it(storage_fixture: StorageFixture) -> None:
    file = storage_fixture.storage.open(storage_fixture.path("f"), create=True)
    file.append(b"0123456789")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.cut, 5)
        await trio.testing.wait_all_tasks_blocked()
        file.close()  # the thread uses the descriptor
    assert storage_fixture.storage.read_bytes(storage_fixture.path("f")) == b"01234"
    with pytest.raises(OSError) as caught:
        await file.cut(1)
    assert caught.value.errno == errno.EBADF


def test_two_handles_see_one_file(storage_fixture: StorageFixture) -> None:
    one = storage_fixture.storage.open(storage_fixture.path("f"), create=True)
    two = storage_fixture.storage.open(storage_fixture.path("f"))
    one.append(b"one")
    two.append(b"two")
    assert one.size() == two.size() == 6
    assert one.pread(0, 6) == b"onetwo"


def test_a_missing_path_is_an_error_in_every_call(storage_fixture: StorageFixture) -> None:
    with pytest.raises(FileNotFoundError):
        storage_fixture.storage.open(storage_fixture.path("none"))
    with pytest.raises(FileNotFoundError):
        storage_fixture.storage.open(storage_fixture.path("none/f"), create=True)
    with pytest.raises(IsADirectoryError):
        storage_fixture.storage.open(storage_fixture.folder)
    for call in (
        storage_fixture.storage.size,
        storage_fixture.storage.read_bytes,
        storage_fixture.storage.remove,
        storage_fixture.storage.listdir,
    ):
        with pytest.raises(FileNotFoundError):
            call(storage_fixture.path("none"))
    with pytest.raises(FileNotFoundError):
        storage_fixture.storage.remove_tree(storage_fixture.path("none"))
    with pytest.raises(FileNotFoundError):
        storage_fixture.storage.rename(storage_fixture.path("none"), storage_fixture.path("g"))


def test_using_a_closed_file_is_an_error(storage_fixture: StorageFixture) -> None:
    file = storage_fixture.storage.open(storage_fixture.path("f"), create=True)
    file.close()
    file.close()
    for call in (file.size, lambda: file.append(b"x"), lambda: file.pread(0, 1), lambda: file.range(0, 1)):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EBADF


def test_a_range_stays_readable_after_close_and_unlink(storage_fixture: StorageFixture) -> None:
    file = storage_fixture.storage.open(storage_fixture.path("f"), create=True)
    file.append(b"0123456789")
    piece = file.range(3, 4)
    file.close()
    storage_fixture.storage.remove(storage_fixture.path("f"))
    assert not storage_fixture.storage.exists(storage_fixture.path("f"))
    assert (piece.offset, piece.length, len(piece)) == (3, 4, 4)
    assert piece.read() == b"3456"


def test_directories_are_created_listed_and_removed(storage_fixture: StorageFixture) -> None:
    storage = storage_fixture.storage
    storage.makedirs(storage_fixture.path("a/b/c"))
    storage.makedirs(storage_fixture.path("a/b"))
    for name in ("a/z", "a/m", "a/b/x"):
        storage.open(storage_fixture.path(name), create=True).close()
    assert storage.listdir(storage_fixture.path("a")) == ["b", "m", "z"]
    assert storage.listdir(storage_fixture.path("a/b")) == ["c", "x"]
    with pytest.raises(NotADirectoryError):
        storage.listdir(storage_fixture.path("a/z"))
    with pytest.raises(FileExistsError):
        storage.makedirs(storage_fixture.path("a/z"))
    storage.remove_tree(storage_fixture.path("a/b"))
    assert storage.listdir(storage_fixture.path("a")) == ["m", "z"]
    storage.remove_tree(storage_fixture.path("a"))
    assert storage.listdir(storage_fixture.folder) == []


@pytest.mark.trio
async def test_unlink_tree_removes_a_directory_with_its_content(storage_fixture: StorageFixture) -> None:
    storage = storage_fixture.storage
    storage.makedirs(storage_fixture.path("a/b"))
    for name in ("a/f", "a/b/g"):
        storage.open(storage_fixture.path(name), create=True).append(b"1")
    reader = storage.open(storage_fixture.path("a/b/g"))
    await storage.unlink_tree(storage_fixture.path("a"))
    assert storage.listdir(storage_fixture.folder) == []
    assert reader.pread(0, 1) == b"1"
    with pytest.raises(FileNotFoundError):
        await storage.unlink_tree(storage_fixture.path("a"))


def test_a_directory_is_told_from_a_file(storage_fixture: StorageFixture) -> None:
    storage = storage_fixture.storage
    storage.makedirs(storage_fixture.path("d"))
    storage.write_atomic(storage_fixture.path("f"), b"x")
    assert [storage.is_dir(storage_fixture.path(name)) for name in ("d", "f", "missing", "f/x")] == [True, *[False] * 3]


@pytest.mark.parametrize("create", [False, True])
def test_a_directory_is_neither_opened_nor_read(storage_fixture: StorageFixture, create: bool) -> None:
    storage = storage_fixture.storage
    storage.makedirs(storage_fixture.path("d"))
    with pytest.raises(OSError, match="d"):
        storage.open(storage_fixture.path("d"), create=create)
    with pytest.raises(OSError, match="d"):
        storage.read_bytes(storage_fixture.path("d"))


def test_a_fifo_is_neither_opened_nor_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    storage = RealStorage()
    with pytest.raises(OSError, match="not a regular file"):
        storage.open(str(tmp_path / "pipe"))
    with pytest.raises(OSError, match="not a regular file"):
        storage.read_bytes(str(tmp_path / "pipe"))


def test_rename_moves_files_and_whole_directories(storage_fixture: StorageFixture) -> None:
    storage = storage_fixture.storage
    storage.makedirs(storage_fixture.path("t-0/sub"))
    file = storage.open(storage_fixture.path("t-0/log"), create=True)
    file.append(b"old")
    storage.rename(storage_fixture.path("t-0"), storage_fixture.path("t-0.x-delete"))
    file.append(b"er")
    assert storage.listdir(storage_fixture.folder) == ["t-0.x-delete"]
    assert storage.listdir(storage_fixture.path("t-0.x-delete")) == ["log", "sub"]
    assert storage.read_bytes(storage_fixture.path("t-0.x-delete/log")) == b"older"
    storage.open(storage_fixture.path("new"), create=True).append(b"new")
    storage.rename(storage_fixture.path("new"), storage_fixture.path("t-0.x-delete/log"))
    assert storage.read_bytes(storage_fixture.path("t-0.x-delete/log")) == b"new"
    storage.makedirs(storage_fixture.path("full/x"))
    with pytest.raises(OSError):
        storage.rename(storage_fixture.path("t-0.x-delete"), storage_fixture.path("full"))


def test_write_atomic_replaces_the_file_and_leaves_no_other_file(storage_fixture: StorageFixture) -> None:
    storage = storage_fixture.storage
    storage.write_atomic(storage_fixture.path("c"), b"one")
    reader = storage.open(storage_fixture.path("c"))
    storage.write_atomic(storage_fixture.path("c"), b"second")
    assert storage.read_bytes(storage_fixture.path("c")) == b"second"
    assert reader.pread(0, 10) == b"one"
    assert storage.listdir(storage_fixture.folder) == ["c"]
    with pytest.raises(FileNotFoundError):
        storage.write_atomic(storage_fixture.path("none/c"), b"")
    with pytest.raises(IsADirectoryError):
        storage.write_atomic(storage_fixture.folder, b"")


def test_a_lock_keeps_others_out_until_released(storage_fixture: StorageFixture) -> None:
    release = storage_fixture.storage.lock(storage_fixture.path(".lock"))
    with pytest.raises(BlockingIOError):
        storage_fixture.storage.lock(storage_fixture.path(".lock"))
    other = storage_fixture.other_process()
    with pytest.raises(BlockingIOError):
        other.lock(storage_fixture.path(".lock"))
    release()
    other.lock(storage_fixture.path(".lock"))()


def test_free_space_and_modification_times_are_reported(storage_fixture: StorageFixture) -> None:
    storage = storage_fixture.storage
    storage.open(storage_fixture.path("f"), create=True).append(b"x")
    assert 0 < storage.free_bytes(storage_fixture.folder) <= storage.total_bytes(storage_fixture.folder)
    assert storage.modified_ms(storage_fixture.path("f")) > START_MS
    assert storage.stamp(storage_fixture.path("f")) == (1, storage.modified_ms(storage_fixture.path("f")))


@pytest.mark.trio
async def test_sync_returns_for_every_task_that_waits(storage_fixture: StorageFixture) -> None:
    files = [storage_fixture.storage.open(storage_fixture.path(f"f{n}"), create=True) for n in range(3)]
    synced: list[str] = []

    async def write_and_sync(number: int) -> None:
        file = files[number % 3]
        file.append(b"%d" % number)
        await file.sync()
        synced.append(file.path)

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(write_and_sync, number)
    assert len(synced) == 30
    await storage_fixture.storage.sync_directory(storage_fixture.folder)


@pytest.mark.trio
async def test_a_cancelled_sync_does_not_stop_the_others(storage_fixture: StorageFixture) -> None:
    file = storage_fixture.storage.open(storage_fixture.path("f"), create=True)
    finished: list[int] = []

    async def sync(number: int) -> None:
        await file.sync()
        finished.append(number)

    async with trio.open_nursery() as nursery:
        scopes = []
        for number in range(6):
            scope = trio.CancelScope()
            scopes.append(scope)

            async def guarded(number: int = number, scope: trio.CancelScope = scope) -> None:
                with scope:
                    await sync(number)

            nursery.start_soon(guarded)
        for scope in scopes[::2]:
            scope.cancel()
    assert {1, 3, 5} <= set(finished)


@pytest.mark.trio
async def test_a_file_may_be_closed_while_it_syncs(storage_fixture: StorageFixture) -> None:
    file = storage_fixture.storage.open(storage_fixture.path("f"), create=True)
    file.append(b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.sync)
        await trio.testing.wait_all_tasks_blocked()
        file.close()
    assert storage_fixture.storage.read_bytes(storage_fixture.path("f")) == b"x"


@pytest.mark.trio
async def test_a_plain_read_after_a_read_in_a_thread_gives_the_same_bytes(storage_fixture: StorageFixture) -> None:
    path = storage_fixture.path("f")
    file = storage_fixture.storage.open(path, create=True)
    file.append(bytes(range(256)) * 1000)
    await file.read_through(100, 200_000)
    assert not file.is_cold(100, 200_000)
    assert file.pread(100, 3) == bytes((100, 101, 102))
    assert await file.range(100, 200_000).load() == file.pread(100, 200_000)
    await storage_fixture.storage.read_through([path], [path])
    assert len(storage_fixture.storage.read_bytes(path)) == 256_000


@pytest.mark.trio
async def test_a_read_in_a_thread_reports_no_error_but_the_plain_read_does(storage_fixture: StorageFixture) -> None:
    await storage_fixture.storage.read_through(
        [storage_fixture.path("missing")], [storage_fixture.path("missing, too")]
    )
    with pytest.raises(FileNotFoundError):
        storage_fixture.storage.read_bytes(storage_fixture.path("missing"))
    file = storage_fixture.storage.open(storage_fixture.path("f"), create=True)
    await file.read_through(1000, 1000)
    assert file.pread(1000, 1000) == b"" and not file.is_cold(1000, 1000)
