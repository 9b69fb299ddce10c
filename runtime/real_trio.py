"""The real ``Env`` of a broker or controller: trio, TCP, the local file system."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable

import trio

from anabranch.runtime.env import Env, ZkStore
from anabranch.runtime.os_files import OsStorage
from anabranch.runtime.os_sockets import DEFAULT_KEEP_ALIVE_S, AddressInfo, SocketNetwork, Waits, passive_host


class TrioClock:
    """The system's clocks. ``monotonic`` is trio's clock, as for deadlines. In tests, a mock clock moves the time.

    The clock is that of the run of trio in which it is made: it is read very often.
    """

    def __init__(self) -> None:
        self.monotonic: Callable[[], float] = trio.lowlevel.current_clock().current_time

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


async def _resolve(host: str, port: int, passive: bool) -> AddressInfo:
    return await trio.socket.getaddrinfo(
        passive_host(host) if passive else host,
        port,
        type=socket.SOCK_STREAM,
        flags=socket.AI_PASSIVE if passive else 0,
    )


TRIO_WAITS = Waits(
    readable=trio.lowlevel.wait_readable,
    writable=trio.lowlevel.wait_writable,
    closing=trio.lowlevel.notify_closing,
    checkpoint=trio.lowlevel.checkpoint,
    sleep=trio.sleep,
    resolve=_resolve,
    closed_errors=(trio.ClosedResourceError,),
    in_thread=trio.to_thread.run_sync,
)


class TrioNetwork(SocketNetwork):
    """TCP under trio."""

    def __init__(self, keep_alive_s: float = DEFAULT_KEEP_ALIVE_S) -> None:
        super().__init__(TRIO_WAITS, keep_alive_s)


class RealStorage(OsStorage):
    """The local file system."""


def real_env(
    *, zk: ZkStore | None = None, rng: random.Random | None = None, keep_alive_s: float = DEFAULT_KEEP_ALIVE_S
) -> Env:
    """The real ``Env`` under trio."""
    network = TrioNetwork(keep_alive_s)
    return Env(clock=TrioClock(), network=network, rng=rng or random.Random(), storage=RealStorage(), zk=zk)
