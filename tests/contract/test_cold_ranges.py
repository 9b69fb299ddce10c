"""A range of a file outside the page cache blocks no event loop while the disk reads it (real sockets and files)."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from anabranch.runtime import cold_ranges, os_files, os_sockets, real_anyio, real_trio
from anabranch.runtime.cold_ranges import WINDOW_BYTES, is_cold, read_through
from anabranch.runtime.env import Network, Stream

HOST = "127.0.0.1"
DEADLINE_S = 10.0


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[Network], Awaitable[None]]], None]:
    network: Network = real_trio.TrioNetwork() if request.param == "trio" else real_anyio.AnyioNetwork()

    def run_with(scenario: Callable[[Network], Awaitable[None]]) -> None:
        async def limited() -> None:
            with anyio.fail_after(DEADLINE_S):
                await scenario(network)

        trio.run(limited) if request.param == "trio" else anyio.run(limited, backend="asyncio")

    return run_with


async def connected(network: Network) -> tuple[Stream, Stream]:
    listener = await network.listen(HOST, 0)
    client = await network.connect(HOST, listener.port)
    server = await listener.accept()
    listener.close()
    return client, server


async def received(stream: Stream, size: int) -> bytes:
    data = bytearray()
    buffer = bytearray(1 << 16)
    while len(data) < size and (count := await stream.receive_into(memoryview(buffer))):
        data += buffer[:count]
    return bytes(data)


class SlowDisk:
    """A disk on which every byte is cold until a thread has read it; the read waits for ``may_read``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_read = threading.Event()
        self.threads: set[int] = set()
        self.most_bytes = 0
        self._warm: set[int] = set()
        monkeypatch.setattr(os_files, "is_cold", self._is_cold)
        monkeypatch.setattr(os_sockets, "read_through", self._read_through)

    def _is_cold(self, fd: int, offset: int, length: int) -> bool:
        return offset not in self._warm

    def _read_through(self, fd: int, offset: int, length: int) -> None:
        assert self.may_read.wait(DEADLINE_S)
        self.threads.add(threading.get_ident())
        self.most_bytes = max(self.most_bytes, length)
        self._warm.add(offset)
        read_through(fd, offset, length)


@pytest.mark.parametrize("at_once", [True, False], ids=["send_now", "send"])
def test_other_connections_are_served_while_the_disk_reads(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at_once: bool
) -> None:
    disk = SlowDisk(monkeypatch)
    content = random.Random(1).randbytes(3 * WINDOW_BYTES + 77)
    file = real_trio.RealStorage().open(str(tmp_path / "file"), create=True)
    file.append(content)
    parts: list[Any] = [b"head", file.range(0, 100), file.range(100, len(content) - 100), b"tail"]

    async def scenario(network: Network) -> None:
        client, server = await connected(network)
        other_client, other_server = await connected(network)
        whole: list[bytes] = []

        async def receive() -> None:
            whole.append(await received(client, len(content) + 8))

        async def send() -> None:
            rest = server.send_now(parts) if at_once else parts
            assert len(rest) >= 3, "no byte of the file is sent before it was read"
            await server.send(rest)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            tasks.start_soon(send)
            await other_client.send([b"still there?"])
            assert await received(other_server, 12) == b"still there?"
            assert not whole
            disk.may_read.set()
        assert whole == [b"head" + content + b"tail"]
        assert threading.get_ident() not in disk.threads and disk.most_bytes <= WINDOW_BYTES
        for stream in (client, server, other_client, other_server):
            stream.close()

    run(scenario)


def test_a_file_truncated_before_the_rest_of_its_range_is_sent_is_an_error(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk = SlowDisk(monkeypatch)
    file = real_trio.RealStorage().open(str(tmp_path / "file"), create=True)
    file.append(bytes(100_000))
    part = file.range(0, 100_000)

    async def scenario(network: Network) -> None:
        client, server = await connected(network)
        rest = server.send_now([part])
        file.truncate(0)
        disk.may_read.set()
        with pytest.raises(OSError, match="file ends"):
            await server.send(rest)
        client.close()
        server.close()

    run(scenario)


def test_pages_that_the_kernel_dropped_are_cold_until_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * WINDOW_BYTES))
    fd = os.open(path, os.O_RDWR)
    try:
        assert not is_cold(fd, 0, WINDOW_BYTES)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if not is_cold(fd, 0, WINDOW_BYTES):
            pytest.skip("the file system of the temporary directory keeps its files in memory, or cannot be asked")
        assert is_cold(fd, WINDOW_BYTES, 1)
        read_through(fd, 0, 3 * WINDOW_BYTES)
        assert not is_cold(fd, 0, 3 * WINDOW_BYTES)
        assert not is_cold(fd, 3 * WINDOW_BYTES, 10), "after the end there are no bytes to wait for"
    finally:
        os.close(fd)


def test_nothing_is_cold_where_the_kernel_cannot_be_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        monkeypatch.setattr(cold_ranges, "RWF_NOWAIT", None)
        assert not is_cold(fd, 0, 1)
    finally:
        os.close(fd)
    monkeypatch.undo()
    assert not is_cold(fd, 0, 1), "the later read reports the error"


def test_a_file_system_that_cannot_tell_is_asked_once_per_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    errors = [errno.EIO, errno.EOPNOTSUPP]

    def preadv(*_arguments: object) -> int:
        raise OSError(errors.pop(0), "no")

    file = real_trio.RealStorage().open(str(tmp_path / "file"), create=True)
    file.append(b"x")
    monkeypatch.setattr(os, "preadv", preadv)
    assert not file.is_cold(0, 1), "an error that the read itself reports"
    assert not file.is_cold(0, 1)
    assert not errors
    assert not file.is_cold(0, 1)
