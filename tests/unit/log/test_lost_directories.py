"""Log dirs and logs that the disk refuses at the start: a broker serves the readable ones (KIP-112)."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.log.log_manager import LogDirError, LogManager
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from tests.support.log.log_fixture import TOPIC_ID, LogFixture, batch, values

pytestmark = pytest.mark.trio
A, B, C = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 0)


async def filled(log_fixture: LogFixture) -> None:
    """Create a log in each of a broker's two dirs, and stop the broker."""
    manager = await log_fixture.started("d", "e")
    for partition in (A, B):
        log = manager.create(partition, TOPIC_ID, 7)
        log.append_as_leader(batch(b"1"), 0)
    await manager.shutdown()


def lose(path: Path) -> None:
    """Replace a log dir or a file, so that opening it fails as on a dead disk."""
    path.rename(path.with_name(path.name + "-lost"))
    if path.suffix == ".log":
        path.mkdir()
    else:
        path.write_bytes(b"")


def find(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.with_name(path.name + "-lost").rename(path)


def code_of_create(manager: LogManager, partition: TopicPartition, incarnation: int = 7, **more: Any) -> ErrorCode:
    try:
        manager.create(partition, TOPIC_ID, incarnation, **more)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def test_a_broker_starts_without_a_log_dir_that_is_lost(log_fixture: LogFixture) -> None:
    await filled(log_fixture)
    lose(log_fixture.root / "d")
    background = Background(log_fixture.clock)
    manager = await log_fixture.started("d", "e", background=background)
    assert manager.get(A) is None and manager.get(B) is not None
    assert [(Path(shown.path).name, shown.is_lost) for shown in manager.log_dirs()] == [("e", False), ("d", True)]
    assert code_of_create(manager, A, is_new=False) is ErrorCode.KAFKA_STORAGE_ERROR, "the records may be in d"
    assert code_of_create(manager, C) is ErrorCode.NONE
    assert "log-dir" in background.describe()[0] and "/d" in background.describe()[0]
    await manager.shutdown()
    find(log_fixture.root / "d")
    again = await log_fixture.started("d", "e")
    found = again.get(A)
    assert found is not None and len(values(found)) == 1


async def test_a_broker_whose_log_dirs_are_all_lost_does_not_start(log_fixture: LogFixture) -> None:
    await filled(log_fixture)
    for name in "de":
        lose(log_fixture.root / name)
    with pytest.raises(LogDirError, match=r"no log dir can be used: .*/d cannot be used.*/e cannot be used"):
        await log_fixture.manager("d", "e").start()


async def test_a_log_dir_whose_contents_cannot_be_listed_is_lost(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(log_fixture)
    really_listdir = log_fixture.storage.listdir

    def listdir(path: str) -> list[str]:
        if path.endswith("/d"):
            raise OSError(errno.EIO, "Input/output error", path)
        return really_listdir(path)

    monkeypatch.setattr(log_fixture.storage, "listdir", listdir)
    manager = await log_fixture.started("d", "e")
    assert manager.get(A) is None and manager.get(B) is not None


async def test_other_logs_are_served_while_one_is_unreadable(log_fixture: LogFixture) -> None:
    await filled(log_fixture)
    damaged = log_fixture.root / "d" / "a-0" / "00000000000000000000.log"
    lose(damaged)
    background = Background(log_fixture.clock)
    manager = await log_fixture.started("d", "e", background=background)
    assert manager.get(A) is None and manager.get(B) is not None
    assert not any(shown.is_lost for shown in manager.log_dirs())
    assert code_of_create(manager, A) is ErrorCode.KAFKA_STORAGE_ERROR
    assert "log a-0: unreadable" in background.describe()[0]
    await manager.shutdown()
    find(damaged)
    again = await log_fixture.started("d", "e")
    assert again.get(A) is not None


@pytest.mark.parametrize("deleted", [True, False])
async def test_an_unreadable_log_is_replaced_by_a_later_incarnation(log_fixture: LogFixture, deleted: bool) -> None:
    """The unreadable log was deleted, or belongs to an earlier incarnation than the new log."""
    await filled(log_fixture)
    lose(log_fixture.root / "d" / "a-0" / "00000000000000000000.log")
    manager = await log_fixture.started("d", "e")
    if deleted:
        manager.delete(A)
    assert code_of_create(manager, A, 8) is ErrorCode.NONE
    log = manager.get(A)
    assert log is not None and values(log) == []
    assert len([name for log_dir in "de" for name in (log_fixture.root / log_dir).glob("a-0.*-delete")]) == 1


async def test_a_log_that_lacked_a_descriptor_at_the_start_is_opened_later(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(log_fixture)
    really_open = log_fixture.storage.open
    out_of_descriptors = True

    def open_file(path: str, *, create: bool = False) -> Any:
        if out_of_descriptors and "/a-0/" in path:
            raise OSError(errno.EMFILE, "Too many open files", path)
        return really_open(path, create=create)

    monkeypatch.setattr(log_fixture.storage, "open", open_file)
    (log_fixture.root / "d" / ".kafka_cleanshutdown").unlink()
    manager = log_fixture.manager("d", "e")
    notified: list[bool] = []
    manager.on_room_changed = notified.append
    await manager.start()
    assert manager.get(A) is None
    await manager.open_again()
    assert manager.get(A) is None and notified == []
    out_of_descriptors = False
    await manager.open_again()
    assert manager.get(A) is not None and notified == [False], "the controller sends its requests again"


async def two_incarnations(log_fixture: LogFixture, later_in: str) -> None:
    """Create incarnations 7 and 9 of a partition, one in each dir, as after a removal while one dir was lost."""
    for name in ("d", "e"):
        manager = await log_fixture.started(name)
        manager.create(A, TOPIC_ID, 9 if later_in == name else 7).append_as_leader(batch(b"1"), 0)
        await manager.shutdown()


@pytest.mark.parametrize("unreadable", [None, "d", "e"])
@pytest.mark.parametrize("later_in", ["d", "e"])
async def test_the_later_of_two_incarnations_in_two_dirs_stays(
    log_fixture: LogFixture, later_in: str, unreadable: str | None
) -> None:
    await two_incarnations(log_fixture, later_in)
    if unreadable is not None:
        lose(log_fixture.root / unreadable / "a-0" / "00000000000000000000.log")
    manager = await log_fixture.started("d", "e")
    log = manager.get(A)
    if unreadable == later_in:
        assert log is None, "the later incarnation is unreadable, and is not replaced"
        assert code_of_create(manager, A, 9, is_new=False) is ErrorCode.KAFKA_STORAGE_ERROR
    else:
        assert log is not None and log.identity.incarnation == 9
        assert Path(log.directory).parent.name == later_in
    assert len([name for log_dir in "de" for name in (log_fixture.root / log_dir).glob("a-0.*-delete")]) == 1


async def test_a_second_copy_of_an_unreadable_log_whose_incarnation_is_not_known_is_refused(
    log_fixture: LogFixture,
) -> None:
    await two_incarnations(log_fixture, "e")
    lose(log_fixture.root / "d" / "a-0" / "00000000000000000000.log")
    (log_fixture.root / "d" / "a-0" / "partition.metadata").unlink()
    manager = log_fixture.manager("d", "e")
    with pytest.raises(LogDirError, match=r"a-0 is in .*/e/a-0 and in .*/d/a-0: move one of them out of the log dirs"):
        await manager.start()


@pytest.mark.parametrize("lost", ["d", "d/a-0/00000000000000000000.log"])
async def test_a_copy_does_not_replace_its_log_while_the_log_is_unreadable(log_fixture: LogFixture, lost: str) -> None:
    """A move that a crash cut short leaves an incomplete copy of the log."""
    await filled(log_fixture)
    copy = log_fixture.root / "e" / f"a-0.{'0' * 32}-future"
    shutil.copytree(log_fixture.root / "d" / "a-0", copy)
    (copy / "00000000000000000000.log").write_bytes(b"")
    lose(log_fixture.root / lost)
    manager = await log_fixture.started("d", "e")
    assert manager.get(A) is None
    assert code_of_create(manager, A, is_new=False) == ErrorCode.KAFKA_STORAGE_ERROR
    manager.close_at_once()
    find(log_fixture.root / lost)
    manager = await log_fixture.started("d", "e")
    log = manager.get(A)
    assert log is not None and len(values(log)) == 1


async def test_a_log_that_lacked_a_descriptor_keeps_its_checkpoints_and_is_not_clean(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an orderly stop an unrecovered log does not count as clean, and deleted records stay deleted."""
    manager = await log_fixture.started("d", "e")
    log = manager.create(A, TOPIC_ID, 7)
    for value in (b"1", b"2"):
        log.append_as_leader(batch(value), 0)
    log.advance_high_watermark(2)
    log.delete_records_before(1)
    manager.checkpoints.write_log_starts()
    manager.close_at_once()
    read_bytes = log_fixture.storage.read_bytes

    def refuse(path: str) -> bytes:
        if path.endswith("leader-epoch-checkpoint"):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return read_bytes(path)

    with monkeypatch.context() as patch:
        patch.setattr(log_fixture.storage, "read_bytes", refuse)
        manager = await log_fixture.started("d", "e")
        assert manager.get(A) is None
    await manager.shutdown()
    assert not (log_fixture.root / "d" / ".kafka_cleanshutdown").exists()
    manager = await log_fixture.started("d", "e")
    again = manager.get(A)
    assert again is not None and (again.log_start_offset, again.recovery_point) == (1, 0)
