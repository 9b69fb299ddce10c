"""A log that could not be created leaves no directory that blocks the partition's log in another log dir."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import structlog.testing
import trio
import trio.testing

from anabranch.broker.log.log_manager import LogDirError, LogManager
from anabranch.broker.log.paths import PARTITION_METADATA
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.types import TopicPartition
from tests.support.log.log_fixture import TOPIC_ID, LogFixture, batch, values

pytestmark = pytest.mark.trio

T = TopicPartition("t", 0)
FIRST_FILES = [PARTITION_METADATA, ".log", ".index", ".timeindex"]
FUTURE = f"t-0.{'0' * 32}-future"
ONE_RECORD = [(0, b"k", b"1")]


async def found_after_restart(log_fixture: LogFixture, manager: LogManager) -> tuple[str, list[object]]:
    """Return the log dir in which the next process finds the log, and the records that are read there."""
    manager.close_at_once()
    again = await log_fixture.started("d", "e")
    log = again.get(T)
    assert log is not None
    found = Path(log.directory).parent.name, [*values(log)]
    again.close_at_once()
    return found


def wish_for(manager: LogManager, path: Path) -> None:
    with pytest.raises(KafkaError):
        manager.moves.request(T, str(path))


def create_with_a_record(manager: LogManager) -> Path:
    log = manager.create(T, TOPIC_ID, 7)
    log.append_as_leader(batch(b"1"), 0)
    return Path(log.directory)


async def stopped_with_a_record(log_fixture: LogFixture, name: str) -> Path:
    """Return the directory of a log in one of the log dirs, after a process was killed."""
    manager = await log_fixture.started("d", "e")
    wish_for(manager, log_fixture.root / name)
    path = create_with_a_record(manager)
    manager.close_at_once()
    return path


# ------------------------------------------------------------ a creation that fails


@pytest.mark.parametrize("name", FIRST_FILES)
async def test_a_failed_creation_of_a_log_leaves_no_directory(log_fixture: LogFixture, name: str) -> None:
    manager = await log_fixture.started("d", "e")
    wish_for(manager, log_fixture.root / "e")
    log_fixture.storage.full_for = name
    with pytest.raises(KafkaError, match="No space left") as caught:
        manager.create(T, TOPIC_ID, 7)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert list(log_fixture.root.glob("*/t-0*")) == []
    log_fixture.storage.full_for = ""
    assert create_with_a_record(manager) == log_fixture.root / "d" / "t-0"
    assert await found_after_restart(log_fixture, manager) == ("d", ONE_RECORD)


@pytest.mark.parametrize("name", FIRST_FILES)
async def test_a_leftover_directory_is_logged_and_removed_at_the_next_start(log_fixture: LogFixture, name: str) -> None:
    manager = await log_fixture.started("d", "e")
    wish_for(manager, log_fixture.root / "e")
    log_fixture.storage.full_for, log_fixture.storage.keeps_trees = name, True
    with structlog.testing.capture_logs() as logs, pytest.raises(KafkaError, match="No space left"):
        manager.create(T, TOPIC_ID, 7)
    left = log_fixture.root / "e" / "t-0"
    (event,) = [entry for entry in logs if entry["event"] == "log.not_removed"]
    assert event["path"] == str(left) and "Input/output error" in event["error"]
    log_fixture.storage.full_for, log_fixture.storage.keeps_trees = "", False
    assert left.exists() and create_with_a_record(manager) == log_fixture.root / "d" / "t-0"
    assert await found_after_restart(log_fixture, manager) == ("d", ONE_RECORD)
    assert not left.exists()


async def test_a_log_is_created_over_the_directory_that_a_failed_creation_left(log_fixture: LogFixture) -> None:
    manager = await log_fixture.started("d", "e")
    wish_for(manager, log_fixture.root / "e")
    log_fixture.storage.full_for, log_fixture.storage.keeps_trees = ".index", True
    with pytest.raises(KafkaError):
        manager.create(T, TOPIC_ID, 7)
    log_fixture.storage.full_for = ""
    wish_for(manager, log_fixture.root / "e")
    assert create_with_a_record(manager) == log_fixture.root / "e" / "t-0"
    assert await found_after_restart(log_fixture, manager) == ("e", ONE_RECORD)


@pytest.mark.parametrize("name", ["", *FIRST_FILES])
async def test_a_creation_does_not_change_a_log_that_exists(log_fixture: LogFixture, name: str) -> None:
    there = await stopped_with_a_record(log_fixture, "e")
    kept = there.rename(log_fixture.root / "kept")
    manager = await log_fixture.started("d", "e")
    shutil.copytree(kept, there)
    wish_for(manager, log_fixture.root / "e")
    log_fixture.storage.full_for = name
    with pytest.raises(KafkaError, match="a log is there already"):
        manager.create(T, TOPIC_ID, 8)
    assert {path.name: path.read_bytes() for path in there.iterdir()} == {
        path.name: path.read_bytes() for path in kept.iterdir()
    }
    log_fixture.storage.full_for = ""
    assert await found_after_restart(log_fixture, manager) == ("e", ONE_RECORD)


@pytest.mark.parametrize("name", FIRST_FILES)
async def test_a_move_that_cannot_begin_leaves_no_directory(log_fixture: LogFixture, name: str) -> None:
    manager = await log_fixture.started("d", "e")
    here = create_with_a_record(manager)
    log_fixture.storage.full_for = name
    manager.moves.request(T, str(log_fixture.root / ("e" if here.parent.name == "d" else "d")))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.moves.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert list(log_fixture.root.glob("*/t-0*")) == [here]
    log_fixture.storage.full_for = ""
    assert await found_after_restart(log_fixture, manager) == (here.parent.name, ONE_RECORD)


# ------------------------------------------------------------ directories at a start


@pytest.mark.parametrize("files", [[], [PARTITION_METADATA], [PARTITION_METADATA, f"{0:020d}.log", f"{0:020d}.index"]])
@pytest.mark.parametrize(("whole", "blank"), [("d", "e"), ("e", "d")])
async def test_a_blank_directory_beside_a_log_is_removed(
    log_fixture: LogFixture, files: list[str], whole: str, blank: str
) -> None:
    await stopped_with_a_record(log_fixture, whole)
    left = log_fixture.root / blank / "t-0"
    left.mkdir()
    for name in files:
        left.joinpath(name).touch()
    manager = await log_fixture.started("d", "e")
    assert not left.exists()
    assert await found_after_restart(log_fixture, manager) == (whole, ONE_RECORD)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (f"{0:020d}.log", b"anything"),
        (f"{5:020d}.log", b""),
        (f"{0:020d}.log.deleted", b"anything"),
        ("leader-epoch-checkpoint", b"0\n1\n3 0\n"),
        ("partition-count-checkpoint", b""),
    ],
)
@pytest.mark.parametrize(("whole", "other"), [("d", "e"), ("e", "d")])
async def test_two_directories_with_content_are_refused(
    log_fixture: LogFixture, name: str, content: bytes, whole: str, other: str
) -> None:
    await stopped_with_a_record(log_fixture, whole)
    (log_fixture.root / other / "t-0").mkdir()
    (log_fixture.root / other / "t-0" / name).write_bytes(content)
    with pytest.raises(LogDirError, match=r"t-0 and in .*t-0: move one of them out of the log dirs"):
        await log_fixture.started("d", "e")
    assert (log_fixture.root / other / "t-0").exists()
    assert (log_fixture.root / whole / "t-0" / f"{0:020d}.log").stat().st_size > 0


async def test_a_blank_directory_stays_blank_until_it_has_records(log_fixture: LogFixture) -> None:
    """If the only directory of a log is blank, opening the log creates the files of a first segment.

    The directory still counts as blank.
    """
    path = await stopped_with_a_record(log_fixture, "e")
    kept = path.rename(log_fixture.root / "kept")
    (log_fixture.root / "d" / "t-0").mkdir()
    manager = await log_fixture.started("d", "e")
    manager.close_at_once()
    assert list((log_fixture.root / "d" / "t-0").iterdir()) != []
    kept.rename(path)
    manager = await log_fixture.started("d", "e")
    assert await found_after_restart(log_fixture, manager) == ("e", ONE_RECORD)


async def test_all_but_one_of_several_blank_directories_are_removed(log_fixture: LogFixture) -> None:
    for name in ("d", "e"):
        (log_fixture.root / name / "t-0").mkdir(parents=True)
    manager = await log_fixture.started("d", "e")
    assert list(log_fixture.root.glob("*/t-0")) == [log_fixture.root / "d" / "t-0"]
    assert await found_after_restart(log_fixture, manager) == ("d", [])


@pytest.mark.parametrize("blank", ["d", "e"])
async def test_a_complete_copy_is_preferred_to_a_blank_directory(log_fixture: LogFixture, blank: str) -> None:
    """The process crashed between the two renames that end a move."""
    path = await stopped_with_a_record(log_fixture, "d")
    path.rename(path.with_name(FUTURE))
    (log_fixture.root / blank / "t-0").mkdir()
    manager = await log_fixture.started("d", "e")
    assert await found_after_restart(log_fixture, manager) == ("d", ONE_RECORD)


async def test_a_copy_of_an_earlier_incarnation_is_removed(log_fixture: LogFixture) -> None:
    """The partition of the copy was removed and created again, so no record of the copy may come back."""
    path = await stopped_with_a_record(log_fixture, "e")
    aside = path.rename(log_fixture.root / "aside")
    manager = await log_fixture.started("d", "e")
    wish_for(manager, log_fixture.root / "d")
    manager.create(T, TOPIC_ID, 9)
    future = aside.rename(path.parent / FUTURE)
    assert await found_after_restart(log_fixture, manager) == ("d", [])
    assert not future.exists()


async def test_the_original_log_stays_when_a_move_has_just_begun(log_fixture: LogFixture) -> None:
    manager = await log_fixture.started("d", "e")
    wish_for(manager, log_fixture.root / "d")
    log = manager.create(T, TOPIC_ID, 7)
    target = manager.directories.get(str(log_fixture.root / "e"))
    assert target is not None
    await manager.moves._create(log, target)
    assert await found_after_restart(log_fixture, manager) == ("d", [])


async def test_a_start_fails_when_a_blank_directory_cannot_be_removed(log_fixture: LogFixture) -> None:
    await stopped_with_a_record(log_fixture, "d")
    (log_fixture.root / "e" / "t-0").mkdir()
    log_fixture.storage.keeps_trees = True
    with pytest.raises(LogDirError, match=r"cannot be removed: .*e/t-0"):
        await log_fixture.started("d", "e")
    log_fixture.storage.keeps_trees = False
    (await log_fixture.started("d", "e")).close_at_once()
