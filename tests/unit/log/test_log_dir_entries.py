"""Entries of a log dir that are no logs: they are named in the log once, stay as they are, and stop nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_manager import LogManager
from anabranch.broker.log.unreadable_logs import UnreadableLog
from anabranch.protocol.types import TopicPartition
from tests.support.log.log_fixture import TOPIC_ID, LogFixture, batch

pytestmark = pytest.mark.trio

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
UNIQUE = "0123456789abcdef0123456789abcdef"


async def started(log_fixture: LogFixture) -> tuple[LogManager, list[Any]]:
    manager = log_fixture.manager()
    with capture_logs() as events:
        await manager.start(lambda _topic: LogConfig())
    return manager, [event for event in events if event["event"] == "log_dir.entries_ignored"]


async def stopped_with_logs(log_fixture: LogFixture) -> Path:
    """Write a record into two logs, stop, and return the log dir."""
    manager, events = await started(log_fixture)
    assert not events
    for partition in (T0, T1):
        log = manager.create(partition, TOPIC_ID, 5)
        log.append_as_leader(batch(b"v"), 0)
    await manager.shutdown()
    return log_fixture.root / "d"


def content_of(root: Path) -> dict[str, object]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else os.lstat(path).st_mode
        for path in sorted(root.rglob("*"))
    }


def put_others(root: Path) -> list[str]:
    """Create entries that are no logs; returns their names."""
    root.joinpath("backup-20261129").write_text("hello")
    root.joinpath("t-2").write_text("hello")
    root.joinpath("notes").write_text("hello")
    root.joinpath("x-checkpoint").write_text("hello")
    root.joinpath("gone-4").symlink_to(root / "nowhere")
    root.joinpath("link-5").symlink_to(root / "notes")
    os.mkfifo(root / "pipe-6")
    os.mkfifo(root / f"t-7.{UNIQUE}-delete")
    root.joinpath(f"t-8.{UNIQUE}-future").write_text("hello")
    for name in ("photos-20261129", "photos-delete", "my photos-3", "t-007", "t-4294967296", "t-\u0663", "plain"):
        root.joinpath(name).mkdir()
        root.joinpath(name, "photo.index").write_text("hello")
    return sorted(path.name for path in root.iterdir())


async def test_only_directories_of_logs_are_opened(log_fixture: LogFixture) -> None:
    root = await stopped_with_logs(log_fixture)
    before = {path.name for path in root.iterdir()}
    others = sorted(set(put_others(root)) - before)
    contents = content_of(root)
    manager, events = await started(log_fixture)
    assert [(event["path"], event["count"], event["names"]) for event in events] == [(str(root), len(others), others)]
    assert {log.partition for log in manager.logs()} == {T0, T1}
    await manager.shutdown()
    after = content_of(root)
    assert {name: after[name] for name in contents if name.split("/")[0] in others} == {
        name: content for name, content in contents.items() if name.split("/")[0] in others
    }


async def test_a_log_behind_a_link_is_opened(log_fixture: LogFixture) -> None:
    root = await stopped_with_logs(log_fixture)
    root.joinpath("t-1").rename(log_fixture.root / "elsewhere")
    root.joinpath("t-1").symlink_to(log_fixture.root / "elsewhere")
    manager, events = await started(log_fixture)
    log = manager.get(T1)
    assert log is not None and log.log_end_offset == 1 and not events
    await manager.shutdown()


async def test_many_other_entries_are_counted_and_not_all_named(log_fixture: LogFixture) -> None:
    root = await stopped_with_logs(log_fixture)
    for number in range(30):
        os.close(os.open(os.fsencode(str(root)) + b"/file-%d-\xff" % number, os.O_CREAT))
    manager, [event] = await started(log_fixture)
    assert event["count"] == 30 and len(event["names"]) == 20 and event["names"][0] == "file-0-\\udcff"
    await manager.shutdown()


@pytest.mark.parametrize("name", ["partition.metadata", f"{0:020d}.log", f"{0:020d}.index", "leader-epoch-checkpoint"])
async def test_a_fifo_in_the_place_of_a_file_makes_one_log_unreadable(log_fixture: LogFixture, name: str) -> None:
    root = await stopped_with_logs(log_fixture)
    root.joinpath("t-0", name).unlink()
    os.mkfifo(root / "t-0" / name)
    manager, events = await started(log_fixture)
    assert manager.get(T0) is None and manager.get(T1) is not None and not events
    [(partition, unreadable)] = manager.unreadable.items()
    assert partition == T0 and isinstance(unreadable, UnreadableLog)
    assert "not a regular file" in unreadable.error and name in unreadable.error


async def test_a_directory_that_may_not_be_read_makes_one_log_unreadable(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = await stopped_with_logs(log_fixture)
    read_bytes, listdir = log_fixture.storage.read_bytes, log_fixture.storage.listdir

    def refused(path: str, real: Any) -> Any:
        if path.startswith(str(root / "t-0")):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(log_fixture.storage, "read_bytes", lambda path: refused(path, read_bytes))
    monkeypatch.setattr(log_fixture.storage, "listdir", lambda path: refused(path, listdir))
    manager, _ = await started(log_fixture)
    assert manager.get(T0) is None and manager.get(T1) is not None
    assert [partition for partition, _ in manager.unreadable.items()] == [T0]


async def test_an_index_with_more_entries_than_batches_is_not_read(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    for _ in range(3):
        log.append_as_leader(batch(b"v"), 0)
    await log.close()
    for suffix in (".index", ".timeindex", ".txnindex"):
        log_fixture.file(f"{0:020d}{suffix}").write_bytes(bytes(1 << 20))
    reopened = await log_fixture.reopen(clean=True)
    assert reopened.log_end_offset == 3
    assert all(index.size_on_disk() < 100 for index in reopened.segments[0].indexes)
    reopened.close_files()


async def test_a_segment_whose_offsets_leave_64_bits_is_not_read(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    log.append_as_leader(batch(b"v"), 0)
    await log.close()
    log_fixture.file("99999999999999999999.log").write_bytes(bytes(batch(b"v")))
    reopened = await log_fixture.reopen(clean=True)
    assert reopened.log_end_offset == 1
    reopened.close_files()
