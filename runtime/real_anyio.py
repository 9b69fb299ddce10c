"""The real ``Env`` of a client: AnyIO under asyncio or trio, TCP, no storage."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import socket
import time
from typing import Any
from weakref import WeakSet

import anyio
import anyio.lowlevel
import anyio.to_thread

from anabranch.runtime.env import Env
from anabranch.runtime.os_sockets import AddressInfo, SocketNetwork, SocketStream, Waits, passive_host


class AnyioClock:
    """The system's clocks. ``monotonic`` is the running event loop's clock, which deadlines use too."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return anyio.current_time()


async def _resolve(host: str, port: int, passive: bool) -> AddressInfo:
    look_up = functools.partial(
        socket.getaddrinfo, passive_host(host) if passive else host, port, type=socket.SOCK_STREAM
    )
    flags = socket.AI_PASSIVE if passive else 0
    with contextlib.suppress(OSError):
        return look_up(flags=flags | socket.AI_NUMERICHOST)  # without a thread
    try:
        return await anyio.to_thread.run_sync(functools.partial(look_up, flags=flags), abandon_on_cancel=True)
    except RuntimeError:  # no thread can be started when the interpreter ends
        return look_up(flags=flags)


ANYIO_WAITS = Waits(
    readable=anyio.wait_readable,
    writable=anyio.wait_writable,
    closing=anyio.notify_closing,
    checkpoint=anyio.lowlevel.checkpoint,
    sleep=anyio.sleep,
    resolve=_resolve,
    closed_errors=(anyio.ClosedResourceError,),
    in_thread=anyio.to_thread.run_sync,
)


class AnyioNetwork(SocketNetwork):
    """TCP under the event loop that AnyIO runs on."""

    def __init__(self) -> None:
        super().__init__(ANYIO_WAITS)

    async def _connect_to(self, found: tuple[Any, ...]) -> SocketStream:
        stream = await super()._connect_to(found)
        _connected.add(stream.sock)
        return stream


_connected: WeakSet[socket.socket] = WeakSet()


def _disconnect_in_child() -> None:
    """Replace the sockets of a forked child by the null device. A byte that the child sent or read would be wrong.

    A socket that is closed instead would go on in the event queue of the kernel, which parent and child share.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for sock in list(_connected):
        if sock.fileno() >= 0:
            os.dup2(null, sock.fileno(), inheritable=False)
    os.close(null)


os.register_at_fork(after_in_child=_disconnect_in_child)


def client_env(*, rng: random.Random | None = None) -> Env:
    """The real ``Env`` under asyncio or trio, without storage and ZooKeeper."""
    return Env(clock=AnyioClock(), network=AnyioNetwork(), rng=rng or random.Random())
