"""A full disk, or a lack of descriptors: no temporary error marks a replica as broken."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest
import trio

from anabranch.broker.log import full_directories
from anabranch.broker.log.disk_errors import SyncFailedError, is_out_of_space, passes
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_manager import LogManager, LogManagerConfig
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.env import Env
from anabranch.runtime.real_trio import TrioNetwork
from sim.storage import SimDisk
from tests.support.log.log_fixture import TOPIC_ID, LogFixture, ManualClock, batch, values

pytestmark = pytest.mark.trio
A = TopicPartition("a", 0)
PASSING = [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM]


@pytest.mark.parametrize("number", PASSING, ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("what", [".index", ".log", "partition.metadata", "leader-epoch-checkpoint.tmp"])
async def test_a_flush_that_cannot_open_a_file_is_tried_again(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch, number: int, what: str
) -> None:
    log = log_fixture.create(index_interval_bytes=0)
    really_open, refused = log_fixture.storage.open, True

    def open_file(path: str, *, create: bool = False) -> Any:
        if refused and path.endswith(what):
            raise OSError(number, "refused", path)
        return really_open(path, create=create)

    for _ in range(3):
        log.append_as_leader(batch(b"1"), 0)
    log.roll()
    if what != "partition.metadata":  # closing leaves that file without a sync
        log.close_files()
    monkeypatch.setattr(log_fixture.storage, "open", open_file)
    log.append_as_leader(batch(b"1"), 1) if what != ".log" else None
    with pytest.raises(KafkaError) as failed:
        await log.flush()
    assert failed.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.is_broken and log.recovery_point == 0
    refused = False
    await log.flush()
    assert log.recovery_point == log.log_end_offset
    log.append_as_leader(batch(b"1"), 1)


async def test_a_failed_fdatasync_breaks_a_replica_even_on_a_full_disk(log_fixture: LogFixture) -> None:
    """With delayed allocation fdatasync may be the first call to fail on a full disk. Acknowledged pages are lost."""
    log = log_fixture.create()
    log.append_as_leader(batch(b"1"), 0)

    async def no_space() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log_fixture.storage.before_sync = no_space  # type: ignore[method-assign]
    with pytest.raises(KafkaError):
        await log.flush()
    assert log.is_broken


async def test_only_errors_for_lack_of_space_descriptors_or_memory_are_temporary() -> None:
    for number in PASSING:
        assert passes(OSError(number, "")) and not passes(SyncFailedError(number, ""))
    for number in (errno.EIO, errno.EROFS, errno.ENODEV, errno.EACCES, errno.EISDIR):
        assert not passes(OSError(number, ""))
    assert is_out_of_space(OSError(errno.ENOSPC, "")) and not is_out_of_space(OSError(errno.EMFILE, ""))


async def test_a_full_log_dir_is_noticed_and_used_again_when_there_is_room(autojump_clock: object) -> None:
    clock = ManualClock()
    disk = SimDisk(random.Random(0), clock=clock, capacity_bytes=200_000)
    env = Env(clock, TrioNetwork(), random.Random(0), disk.mount())
    background = Background(clock)
    manager = LogManager(LogManagerConfig(1, "c", ("/d",)), env, background)
    notified: list[bool] = []
    manager.on_room_changed = notified.append
    await manager.start()
    log = manager.create(A, TOPIC_ID, 7, LogConfig())

    def append_until_full() -> None:
        refused = None
        while refused is None:
            try:
                log.append_as_leader(batch(bytes(10_000)), 0)
            except KafkaError as error:
                refused = error.code
        assert refused is ErrorCode.KAFKA_STORAGE_ERROR

    append_until_full()
    assert log.is_full and not log.is_broken and notified == [True]
    assert background.describe() == ["log-dir /d: full"]
    count = len(values(log))
    assert count == log.log_end_offset > 10, "reads continue"
    looks = 0

    async def look() -> None:
        nonlocal looks
        clock.seconds += full_directories.CHECK_S
        with trio.move_on_after(1.5 * full_directories.CHECK_S):
            await manager.run()
        looks += 1

    await look()
    assert log.is_full
    disk.capacity_bytes = 400_000
    await look()
    assert not log.is_full and notified == [True, False] and background.describe() == []
    append_until_full()
    disk.capacity_bytes = 1_000_000
    looks = 0
    while log.is_full:
        await look()
    assert looks == 2, "a disk that is full again at once is checked less often"
    assert not [name for name in disk.files if "probe" in name]
    log.append_as_leader(batch(b"1"), 0)
    manager.close_at_once()


async def test_a_new_log_is_created_in_a_log_dir_with_room() -> None:
    clock = ManualClock()
    disk = SimDisk(random.Random(0), clock=clock)
    manager = LogManager(
        LogManagerConfig(1, "c", ("/d", "/e")), Env(clock, TrioNetwork(), random.Random(0), disk.mount())
    )
    await manager.start()
    first = manager.create(A, TOPIC_ID, 7)
    second = manager.create(TopicPartition("b", 0), TOPIC_ID, 7)
    assert (first.directory, second.directory) == ("/d/a-0", "/e/b-0")
    capacity_bytes, disk.capacity_bytes = disk.capacity_bytes, 1
    with pytest.raises(KafkaError):
        second.append_as_leader(batch(b"1"), 0)
    disk.capacity_bytes = capacity_bytes
    assert [manager.create(TopicPartition("c", index), TOPIC_ID, 7).directory for index in range(2)] == [
        "/d/c-0",
        "/d/c-1",
    ]
    manager.close_at_once()
