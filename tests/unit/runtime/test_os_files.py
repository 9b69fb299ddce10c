"""Behaviour of real files that the contract suite cannot show: failing writes, and one fdatasync for many waiters."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from anabranch.runtime.env import File, Storage
from anabranch.runtime.os_files import OsStorage
from anabranch.runtime.real_trio import RealStorage

LIMITED_WRITES = """
import errno, resource, sys
from anabranch.runtime.os_files import OsStorage
file = OsStorage().open(sys.argv[1], create=True)
file.append(b"x" * 600)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    file.append(b"y" * 600)
except OSError as error:
    assert error.errno == errno.EFBIG, error
    assert error.filename == sys.argv[1], error
    print(file.size(), file.pread(590, 100))
"""


def test_the_bytes_of_a_failed_append_are_truncated(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", LIMITED_WRITES, str(tmp_path / "f")], capture_output=True, text=True, check=False
    )
    assert answer.stderr == ""
    assert answer.stdout.strip() == "600 b'xxxxxxxxxx'"


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda file: file.truncate(1), b"1"),
        (lambda file: file.pwrite(3, b"4567"), b"1234567"),
        (lambda file: trio.run(file.cut, 2), b"12"),
        (lambda file: file.size(), b"123"),
    ],
)
def test_bytes_are_appended_at_the_end_also_after_another_change(
    tmp_path: Path, change: Callable[[File], object], left: bytes
) -> None:
    file = OsStorage().open(str(tmp_path / "file"), create=True)
    file.append(b"12")
    file.append(b"3")
    change(file)
    file.append(b"end")
    file.append(b"!")
    assert (tmp_path / "file").read_bytes() == left + b"end!"


def test_a_descriptor_closes_with_its_last_range(tmp_path: Path) -> None:
    storage: Storage = RealStorage()
    file = storage.open(str(tmp_path / "f"), create=True)
    file.append(b"0123456789")
    pieces = [file.range(0, 5), file.range(5, 5)]
    descriptor = pieces[0].descriptor.fd  # type: ignore[attr-defined]
    file.close()
    assert [piece.read() for piece in pieces] == [b"01234", b"56789"]
    pieces.pop()
    os.fstat(descriptor)
    pieces.pop()
    with pytest.raises(OSError):
        os.fstat(descriptor)


@pytest.mark.trio
async def test_calls_during_a_sync_share_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    running, go_on = threading.Event(), threading.Event()

    def slow_fdatasync(descriptor: int) -> None:
        calls.append(descriptor)
        running.set()
        assert go_on.wait(10)

    monkeypatch.setattr(os, "fdatasync", slow_fdatasync)
    storage = RealStorage()
    files = [storage.open(str(tmp_path / f"f{n}"), create=True) for n in range(2)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(files[0].sync)
        await trio.to_thread.run_sync(running.wait, 10)
        for number in range(20):
            nursery.start_soon(files[number % 2].sync)
        await trio.testing.wait_all_tasks_blocked()
        assert len(calls) == 1
        go_on.set()
    assert len(calls) == 3  # the first one, then one for each of the two files


@pytest.mark.trio
async def test_a_failing_sync_fails_only_the_calls_for_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = RealStorage()
    good = storage.open(str(tmp_path / "good"), create=True)
    bad = storage.open(str(tmp_path / "bad"), create=True)
    bad_descriptor = bad.range(0, 0).descriptor.fd  # type: ignore[attr-defined]

    def fdatasync(descriptor: int) -> None:
        if descriptor == bad_descriptor:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    outcomes: list[str] = []

    async def sync(name: str, file: object) -> None:
        try:
            await file.sync()  # type: ignore[attr-defined]
        except OSError:
            name += " failed"
        outcomes.append(name)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(sync, "good", good)
            nursery.start_soon(sync, "bad", bad)
    assert sorted(outcomes) == ["bad failed"] * 3 + ["good"] * 3


@pytest.mark.parametrize("use", [lambda file: file.pread(-1, 1), lambda file: file.truncate(-1)])
def test_an_error_of_a_file_names_its_path(tmp_path: Path, use: Callable[[File], object]) -> None:
    file = OsStorage().open(str(tmp_path / "f"), create=True)
    with pytest.raises(OSError, match=r"\[Errno 22\] .*/f'"):
        use(file)
    file.close()
