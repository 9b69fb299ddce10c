"""Behaviour of real sockets that the contract suite cannot show."""

from __future__ import annotations

import dataclasses
import errno
import socket
from typing import Any

import pytest
import trio

from anabranch.runtime.os_sockets import SocketListener, SocketNetwork, SocketStream, format_address
from anabranch.runtime.real_trio import TRIO_WAITS, TrioNetwork

HOST = "127.0.0.1"


def test_addresses_are_written_as_host_and_port() -> None:
    assert format_address(("127.0.0.1", 80)) == "127.0.0.1:80"
    assert format_address(("::1", 80, 0, 0)) == "[::1]:80"


@pytest.mark.trio
async def test_small_writes_are_not_delayed() -> None:
    network = TrioNetwork()
    listener = await network.listen(HOST, 0)
    client = await network.connect(HOST, listener.port)
    server = await listener.accept()
    for stream in (client, server):
        option = stream._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)  # type: ignore[attr-defined]
        assert option != 0
        stream.close()
    listener.close()


@pytest.mark.trio
async def test_the_addresses_of_a_host_are_tried_one_after_the_other() -> None:
    listener = await TrioNetwork().listen(HOST, 0)

    async def resolve(_host: str, port: int, _passive: bool) -> Any:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.2", port)),
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", (HOST, port)),
        ]

    network = SocketNetwork(dataclasses.replace(TRIO_WAITS, resolve=resolve))
    client = await network.connect("two-addresses", listener.port)
    assert client.peer == f"{HOST}:{listener.port}"
    client.close()
    listener.close()


class Recorded:
    """A connected socket that accepts every byte, and records the flags of each call that sent bytes."""

    def __init__(self) -> None:
        self.flags: list[int] = []

    def sendmsg(self, buffers: list[bytes], _ancillary: object, flags: int) -> int:
        if sent := sum(map(len, buffers)):
            self.flags.append(flags)
        return sent

    def __getattr__(self, name: str) -> Any:
        return lambda *_: (HOST, 1)


@pytest.mark.trio
@pytest.mark.parametrize("count", [1, 63, 64, 65, 128])
async def test_no_byte_is_held_back_for_an_empty_last_part(count: int) -> None:
    """The kernel would wait 200 ms for the next part. A response may end with an empty part."""
    sock: Any = Recorded()
    assert not SocketStream(sock, TRIO_WAITS).send_now([b"x"] * count + [b""])
    assert sock.flags[-1] == 0
    assert all(flags == socket.MSG_MORE for flags in sock.flags[:-1])


class Connecting:
    """A listening socket with connections that wait to be accepted."""

    def __init__(self, sock: socket.socket, waiting: int) -> None:
        self._sock = sock
        self._waiting = waiting
        self.accepted = 0

    def accept(self) -> Any:
        if self.accepted == self._waiting:
            raise BlockingIOError
        self.accepted += 1
        return socket.socket(), (HOST, 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@pytest.mark.trio
async def test_a_burst_of_connections_is_accepted_in_few_passes_of_the_scheduler() -> None:
    """Other tasks run in between. If each connection took a pass, the last of many would wait for seconds."""
    passes = 0

    async def checkpoint() -> None:
        nonlocal passes
        passes += 1

    with socket.socket() as sock:
        sock.bind((HOST, 0))
        burst: Any = Connecting(sock, 1_000)
        listener = SocketListener(burst, dataclasses.replace(TRIO_WAITS, checkpoint=checkpoint))
        for _ in range(1_000):
            (await listener.accept()).close()
    assert 1_000 // 64 <= passes <= 20


class OutOfDescriptors:
    """A listening socket of a process that has no descriptor left for a while."""

    def __init__(self, sock: socket.socket, failures: int) -> None:
        self._sock = sock
        self.failures = failures

    def accept(self) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._sock.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@pytest.mark.trio
async def test_a_listener_continues_after_a_lack_of_descriptors() -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    sock = socket.socket()
    sock.bind((HOST, 0))
    sock.listen()
    short = OutOfDescriptors(sock, failures=3)
    listener = SocketListener(short, dataclasses.replace(TRIO_WAITS, sleep=pause))  # type: ignore[arg-type]
    client = await TrioNetwork().connect(HOST, listener.port)
    with trio.fail_after(5):
        server = await listener.accept()
    assert (short.failures, len(pauses)) == (0, 3)
    client.close()
    server.close()
    sock.close()


@pytest.mark.trio
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such options")
async def test_a_silent_peer_ends_a_connection_after_the_keep_alive_time() -> None:
    network = TrioNetwork(keep_alive_s=20)
    listener = await network.listen(HOST, 0)
    made = await network.connect(HOST, listener.port)
    taken = await listener.accept()
    options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    read = [made._socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options]  # type: ignore[attr-defined]
    assert read == [10, 3, 3, 20_000]
    assert taken._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)  # type: ignore[attr-defined]
    assert not taken._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)  # type: ignore[attr-defined]
    for closing in (made, taken, listener):
        closing.close()
