"""The data that a simulated disk loses in a crash, and the operations that it refuses."""

from __future__ import annotations

import errno
import random

import pytest
import trio
import trio.testing

from sim.storage import SimDisk, SimStorage

SEEDS = range(40)


def synced_and_not(disk: SimDisk) -> SimStorage:
    storage = disk.mount()

    async def write() -> None:
        file = storage.open("/f", create=True)
        file.append(b"S" * 1000)
        await file.sync()
        file.append(b"U" * 1000)

    trio.run(write)
    return storage


class StoppedClock:
    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


def make_disk(seed: int = 0, **options: int) -> SimDisk:
    return SimDisk(random.Random(seed), clock=StoppedClock(), **options)


def test_a_crash_keeps_all_synced_bytes_and_some_of_the_others() -> None:
    kept, torn = set(), 0
    for seed in SEEDS:
        disk = make_disk(seed)
        disk.crash(synced_and_not(disk))
        content = disk.mount().read_bytes("/f")
        assert content[:1000] == b"S" * 1000
        tail = content[1000:]
        assert tail.rstrip(b"\0") == b"U" * len(tail.rstrip(b"\0"))
        kept.add(len(tail))
        torn += tail.endswith(b"\0")
    assert min(kept) < 200 and max(kept) > 800 and len(kept) > 20
    assert 0 < torn < len(SEEDS)


def test_an_overwrite_of_synced_bytes_survives_a_crash_whole_or_not_at_all() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make_disk(seed)
        storage = synced_and_not(disk)
        storage.open("/f").pwrite(0, b"new")
        disk.crash(storage)
        content = disk.mount().read_bytes("/f")
        seen.add(content[:3])
    assert seen == {b"new", b"SSS"}


def test_a_killed_process_loses_no_data() -> None:
    disk = make_disk()
    storage = synced_and_not(disk)
    storage.lock("/.lock")
    file = storage.open("/f")
    disk.kill(storage)
    again = disk.mount()
    assert again.size("/f") == 2000
    again.lock("/.lock")
    for call in (lambda: file.append(b"x"), file.size, lambda: storage.listdir("/")):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EIO


def test_a_full_disk_refuses_writes_that_do_not_fit() -> None:
    disk = make_disk(capacity_bytes=100)
    storage = disk.mount()
    file = storage.open("/f", create=True)
    file.append(b"x" * 90)
    for call in (lambda: file.append(b"y" * 11), lambda: storage.write_atomic("/g", b"y" * 11)):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.ENOSPC
    assert file.size() == 90 and not storage.exists("/g")
    assert storage.free_bytes("/") == 10
    file.append(b"z" * 10)
    storage.remove("/f")
    assert storage.free_bytes("/") == 100


def test_a_failing_disk_refuses_writes() -> None:
    disk = make_disk()
    storage = disk.mount()
    file = storage.open("/f", create=True)
    file.append(b"x")
    disk.write_errno = errno.EIO
    with pytest.raises(OSError, match="/f"):
        file.append(b"y")
    with pytest.raises(OSError):
        storage.makedirs("/d")
    disk.write_errno = None
    file.append(b"z")
    assert file.pread(0, 9) == b"xz"


def test_data_appended_during_a_sync_is_not_synced_by_it() -> None:
    lost = 0
    for seed in SEEDS:
        disk = SimDisk(random.Random(seed), clock=StoppedClock(), sync_delay_s=lambda: 0.001)
        storage = disk.mount()

        async def scenario(storage: SimStorage = storage) -> None:
            file = storage.open("/f", create=True)
            file.append(b"a" * 10)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(file.sync)
                await trio.testing.wait_all_tasks_blocked()
                file.append(b"b" * 10)

        trio.run(scenario)
        disk.crash(storage)
        content = disk.mount().read_bytes("/f")
        assert content.startswith(b"a" * 10)
        lost += len(content) < 20
    assert lost > 0


def test_data_that_failed_to_sync_can_be_lost_in_a_crash() -> None:
    for seed in SEEDS:
        disk = SimDisk(random.Random(seed), clock=StoppedClock())
        storage = disk.mount()

        async def scenario(disk: SimDisk = disk, storage: SimStorage = storage) -> None:
            file = storage.open("/f", create=True)
            file.append(b"a" * 10)
            await file.sync()
            file.append(b"b" * 1000)
            disk.sync_errno = errno.EIO
            with pytest.raises(OSError, match="/f"):
                await file.sync()

        trio.run(scenario)
        disk.crash(storage)
        if len(disk.mount().read_bytes("/f")) < 1010:
            return
    raise AssertionError("no crash lost anything")
