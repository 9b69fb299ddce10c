"""The real ``Env`` of a client: AnyIO under asyncio or trio, TCP, no storage."""

from __future__ import annotations

import random
import socket
import time

import anyio
import anyio.lowlevel
import anyio.to_thread

from anabranch.runtime.env import Env
from anabranch.runtime.os_sockets import AddressInfo, SocketNetwork, Waits, passive_host


class RealClock:
    """The system's clocks. ``monotonic`` is the running event loop's clock, which deadlines use too."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return anyio.current_time()


async def _resolve(host: str, port: int, passive: bool) -> AddressInfo:
    return await anyio.getaddrinfo(
        passive_host(host) if passive else host,
        port,
        type=socket.SOCK_STREAM,
        flags=socket.AI_PASSIVE if passive else 0,
    )


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


class RealNetwork(SocketNetwork):
    """TCP under the event loop that AnyIO runs on."""

    def __init__(self) -> None:
        super().__init__(ANYIO_WAITS)


def client_env(*, rng: random.Random | None = None) -> Env:
    """The real ``Env`` under asyncio or trio, without storage and ZooKeeper."""
    return Env(clock=RealClock(), network=RealNetwork(), rng=rng or random.Random())
