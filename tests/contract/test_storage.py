"""The contract of ``Storage``: the local file system and the simulated disk."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
import trio.testing

from anabranch.runtime.env import Storage
from anabranch.runtime.real_trio import RealStorage
from anabranch.runtime.sim_storage import SimDisk

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
def world(request: pytest.FixtureRequest, tmp_path: Path) -> StorageFixture:
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


def test_appended_data_can_be_read_at_any_position(world: StorageFixture) -> None:
    file = world.storage.open(world.path("f"), create=True)
    assert (file.path, file.size()) == (world.path("f"), 0)
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
    assert world.storage.read_bytes(world.path("f")) == b"hello world!"
    assert world.storage.size(world.path("f")) == 12


def test_pwrite_overwrites_and_truncate_shortens_or_fills_with_zeros(world: StorageFixture) -> None:
    file = world.storage.open(world.path("f"), create=True)
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
async def test_a_file_may_be_closed_while_a_thread_truncates_it(world: StorageFixture) -> None:
    file = world.storage.open(world.path("f"), create=True)
    file.append(b"0123456789")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.cut, 5)
        await trio.testing.wait_all_tasks_blocked()
        file.close()  # the thread uses the descriptor
    assert world.storage.read_bytes(world.path("f")) == b"01234"
    with pytest.raises(OSError) as caught:
        await file.cut(1)
    assert caught.value.errno == errno.EBADF


def test_two_handles_see_one_file(world: StorageFixture) -> None:
    one = world.storage.open(world.path("f"), create=True)
    two = world.storage.open(world.path("f"))
    one.append(b"one")
    two.append(b"two")
    assert one.size() == two.size() == 6
    assert one.pread(0, 6) == b"onetwo"


def test_a_missing_path_is_an_error_in_every_call(world: StorageFixture) -> None:
    with pytest.raises(FileNotFoundError):
        world.storage.open(world.path("none"))
    with pytest.raises(FileNotFoundError):
        world.storage.open(world.path("none/f"), create=True)
    with pytest.raises(IsADirectoryError):
        world.storage.open(world.folder)
    for call in (world.storage.size, world.storage.read_bytes, world.storage.remove, world.storage.listdir):
        with pytest.raises(FileNotFoundError):
            call(world.path("none"))
    with pytest.raises(FileNotFoundError):
        world.storage.remove_tree(world.path("none"))
    with pytest.raises(FileNotFoundError):
        world.storage.rename(world.path("none"), world.path("g"))


def test_using_a_closed_file_is_an_error(world: StorageFixture) -> None:
    file = world.storage.open(world.path("f"), create=True)
    file.close()
    file.close()
    for call in (file.size, lambda: file.append(b"x"), lambda: file.pread(0, 1), lambda: file.range(0, 1)):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EBADF


def test_a_range_stays_readable_after_close_and_unlink(world: StorageFixture) -> None:
    file = world.storage.open(world.path("f"), create=True)
    file.append(b"0123456789")
    piece = file.range(3, 4)
    file.close()
    world.storage.remove(world.path("f"))
    assert not world.storage.exists(world.path("f"))
    assert (piece.offset, piece.length, len(piece)) == (3, 4, 4)
    assert piece.read() == b"3456"


def test_directories_are_created_listed_and_removed(world: StorageFixture) -> None:
    storage = world.storage
    storage.makedirs(world.path("a/b/c"))
    storage.makedirs(world.path("a/b"))
    for name in ("a/z", "a/m", "a/b/x"):
        storage.open(world.path(name), create=True).close()
    assert storage.listdir(world.path("a")) == ["b", "m", "z"]
    assert storage.listdir(world.path("a/b")) == ["c", "x"]
    with pytest.raises(NotADirectoryError):
        storage.listdir(world.path("a/z"))
    with pytest.raises(FileExistsError):
        storage.makedirs(world.path("a/z"))
    storage.remove_tree(world.path("a/b"))
    assert storage.listdir(world.path("a")) == ["m", "z"]
    storage.remove_tree(world.path("a"))
    assert storage.listdir(world.folder) == []


@pytest.mark.trio
async def test_unlink_tree_removes_a_directory_with_its_content(world: StorageFixture) -> None:
    storage = world.storage
    storage.makedirs(world.path("a/b"))
    for name in ("a/f", "a/b/g"):
        storage.open(world.path(name), create=True).append(b"1")
    reader = storage.open(world.path("a/b/g"))
    await storage.unlink_tree(world.path("a"))
    assert storage.listdir(world.folder) == []
    assert reader.pread(0, 1) == b"1"
    with pytest.raises(FileNotFoundError):
        await storage.unlink_tree(world.path("a"))


def test_rename_moves_files_and_whole_directories(world: StorageFixture) -> None:
    storage = world.storage
    storage.makedirs(world.path("t-0/sub"))
    file = storage.open(world.path("t-0/log"), create=True)
    file.append(b"old")
    storage.rename(world.path("t-0"), world.path("t-0.x-delete"))
    file.append(b"er")
    assert storage.listdir(world.folder) == ["t-0.x-delete"]
    assert storage.listdir(world.path("t-0.x-delete")) == ["log", "sub"]
    assert storage.read_bytes(world.path("t-0.x-delete/log")) == b"older"
    storage.open(world.path("new"), create=True).append(b"new")
    storage.rename(world.path("new"), world.path("t-0.x-delete/log"))
    assert storage.read_bytes(world.path("t-0.x-delete/log")) == b"new"
    storage.makedirs(world.path("full/x"))
    with pytest.raises(OSError):
        storage.rename(world.path("t-0.x-delete"), world.path("full"))


def test_write_atomic_replaces_the_file_and_leaves_no_other_file(world: StorageFixture) -> None:
    storage = world.storage
    storage.write_atomic(world.path("c"), b"one")
    reader = storage.open(world.path("c"))
    storage.write_atomic(world.path("c"), b"second")
    assert storage.read_bytes(world.path("c")) == b"second"
    assert reader.pread(0, 10) == b"one"
    assert storage.listdir(world.folder) == ["c"]
    with pytest.raises(FileNotFoundError):
        storage.write_atomic(world.path("none/c"), b"")
    with pytest.raises(IsADirectoryError):
        storage.write_atomic(world.folder, b"")


def test_a_lock_keeps_others_out_until_released(world: StorageFixture) -> None:
    release = world.storage.lock(world.path(".lock"))
    with pytest.raises(BlockingIOError):
        world.storage.lock(world.path(".lock"))
    other = world.other_process()
    with pytest.raises(BlockingIOError):
        other.lock(world.path(".lock"))
    release()
    other.lock(world.path(".lock"))()


def test_free_space_and_modification_times_are_reported(world: StorageFixture) -> None:
    storage = world.storage
    storage.open(world.path("f"), create=True).append(b"x")
    assert 0 < storage.free_bytes(world.folder) <= storage.total_bytes(world.folder)
    assert storage.modified_ms(world.path("f")) > START_MS


@pytest.mark.trio
async def test_sync_returns_for_every_task_that_waits(world: StorageFixture) -> None:
    files = [world.storage.open(world.path(f"f{n}"), create=True) for n in range(3)]
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
    await world.storage.sync_directory(world.folder)


@pytest.mark.trio
async def test_a_cancelled_sync_does_not_stop_the_others(world: StorageFixture) -> None:
    file = world.storage.open(world.path("f"), create=True)
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
async def test_a_file_may_be_closed_while_it_syncs(world: StorageFixture) -> None:
    file = world.storage.open(world.path("f"), create=True)
    file.append(b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.sync)
        await trio.testing.wait_all_tasks_blocked()
        file.close()
    assert world.storage.read_bytes(world.path("f")) == b"x"


@pytest.mark.trio
async def test_a_plain_read_after_a_read_in_a_thread_gives_the_same_bytes(world: StorageFixture) -> None:
    path = world.path("f")
    file = world.storage.open(path, create=True)
    file.append(bytes(range(256)) * 1000)
    await file.read_through(100, 200_000)
    assert not file.is_cold(100, 200_000)
    assert file.pread(100, 3) == bytes((100, 101, 102))
    assert await file.range(100, 200_000).load() == file.pread(100, 200_000)
    await world.storage.read_through([path], [path])
    assert len(world.storage.read_bytes(path)) == 256_000


@pytest.mark.trio
async def test_a_read_in_a_thread_reports_no_error_but_the_plain_read_does(world: StorageFixture) -> None:
    await world.storage.read_through([world.path("missing")], [world.path("missing, too")])
    with pytest.raises(FileNotFoundError):
        world.storage.read_bytes(world.path("missing"))
    file = world.storage.open(world.path("f"), create=True)
    await file.read_through(1000, 1000)
    assert file.pread(1000, 1000) == b"" and not file.is_cold(1000, 1000)
