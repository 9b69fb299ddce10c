"""One thread removes a large file, and another thread frees the file's blocks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.runtime.os_files import OsStorage
from anabranch.runtime.reclaimer import MAX_WAITING, SMALL_FILE_BYTES, Reclaimer


class Closes:
    """Records which thread closed the last descriptor of each removed file, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.freed_by: list[str] = []
        self._changed = threading.Condition()
        self._close: Callable[[int], None] = os.close
        monkeypatch.setattr(os, "close", self.close)

    def close(self, fd: int) -> None:
        is_removed = os.fstat(fd).st_nlink == 0
        self._close(fd)
        if is_removed:
            with self._changed:
                self.freed_by.append(threading.current_thread().name)
                self._changed.notify_all()

    def wait_for(self, count: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.freed_by) >= count, timeout=10)
        return self.freed_by


@pytest.fixture
def closes(monkeypatch: pytest.MonkeyPatch) -> Closes:
    return Closes(monkeypatch)


def sparse(path: Path, size: int) -> str:
    with path.open("wb") as file:
        file.truncate(size)
    return str(path)


def test_a_large_file_is_freed_by_the_reclaimer(tmp_path: Path, closes: Closes) -> None:
    storage = OsStorage()
    path = sparse(tmp_path / "large", SMALL_FILE_BYTES + 1)
    storage.remove(path)
    assert not storage.exists(path), "the name is removed at once"
    assert closes.wait_for(1) == ["reclaimer"]


def test_the_last_reader_of_a_removed_file_does_not_free_it_either(tmp_path: Path, closes: Closes) -> None:
    storage = OsStorage()
    path = sparse(tmp_path / "large", SMALL_FILE_BYTES + 1)
    file = storage.open(path)
    held = file.range(0, 3)
    storage.remove(path)
    closes.wait_for(1)
    file.close()
    assert held.read() == b"\0\0\0"
    del held
    assert closes.wait_for(2) == ["reclaimer", "reclaimer"]


def test_a_small_file_is_freed_by_the_thread_that_removes_it(tmp_path: Path, closes: Closes) -> None:
    storage = OsStorage()
    path = sparse(tmp_path / "small", SMALL_FILE_BYTES)
    file = storage.open(path)
    storage.remove(path)
    file.close()
    assert closes.freed_by == [threading.current_thread().name]


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OsStorage().remove(str(tmp_path / "none"))


def test_the_number_of_descriptors_that_wait_for_the_reclaimer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    reclaimer = Reclaimer()
    for _ in range(MAX_WAITING):
        assert reclaimer.has_room
        reclaimer.close(-2)
    assert not reclaimer.has_room


def test_a_process_that_still_has_a_large_removed_file_open_can_end(tmp_path: Path) -> None:
    """The interpreter finalizes the objects of a module when no thread can start any more."""
    path = sparse(tmp_path / "large", SMALL_FILE_BYTES + 1)
    program = (
        "import os\n"
        "from anabranch.runtime.os_files import Descriptor\n"
        "from anabranch.runtime.reclaimer import Reclaimer\n"
        f"descriptor = Descriptor(os.open({path!r}, os.O_RDONLY), Reclaimer())\n"
        f"os.unlink({path!r})\n"
        "class Cycle: pass\n"
        "kept = Cycle()\n"
        "kept.itself, kept.descriptor = kept, descriptor\n"
        "del descriptor\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
