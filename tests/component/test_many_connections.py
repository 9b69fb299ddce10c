"""Many connections: each costs little memory, and they share each pass of the event loop.

The bytes that are received and moved in one pass are counted, and the bytes that Python allocates for a connection.
"""

from __future__ import annotations

import gc
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.protocol.framing import BUFFER_BYTES, GROWTH, FrameReader
from anabranch.protocol.generated.metadata import MetadataRequest
from anabranch.protocol.message_limits import MIB
from anabranch.runtime.channel import Channel
from anabranch.runtime.os_sockets import SocketStream
from anabranch.runtime.real_trio import TrioNetwork
from anabranch.runtime.turns import PASS_BYTES
from tests.support.broker.broker_harness import DEADLINE_S, one_broker
from tests.support.broker.loop_probe import LoopProbe

pytestmark = pytest.mark.trio
CONNECTIONS = 100
SENT = BUFFER_BYTES + 4_000
MOST_IN_A_PASS = 2 * (PASS_BYTES + 2 * MIB)
"""A pass may also have the work that began the pass, and the turns that were given before."""

FEW_CONNECTIONS = 40
"""Fewer than ``socket.listen.backlog.size``: the kernel connects them while the broker does not run."""
MOST_BYTES_OF_A_CONNECTION = 7 * 1024
"""A connection that has sent less than a frame takes at most 8 KB in all, with what the allocator adds."""


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.fixture
async def probe(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LoopProbe]:
    """Counts the bytes of receives, and of the buffers that partial frames are moved to."""
    found = LoopProbe()
    buffer, receive_into = FrameReader.buffer, SocketStream.receive_into

    def counted_buffer(reader: FrameReader, moves: int | None = None) -> memoryview:
        found.step(reader.moves())
        return buffer(reader, moves)

    async def counted_receive(stream: SocketStream, buffer: memoryview) -> int:
        received = await receive_into(stream, buffer)
        found.step(received)
        return received

    monkeypatch.setattr(FrameReader, "buffer", counted_buffer)
    monkeypatch.setattr(SocketStream, "receive_into", counted_receive)
    with found.watching():
        yield found


async def test_a_broker_grows_the_buffers_of_many_connections_one_after_the_other(
    tmp_path: Path, probe: LoopProbe
) -> None:
    async with one_broker(tmp_path) as broker, trio.open_nursery() as nursery:
        await _grow(broker.raw, probe, nursery)
        nursery.cancel_scope.cancel()


async def _grow(connect: Any, probe: LoopProbe, nursery: trio.Nursery) -> None:
    """Many connections send a part of a large frame, all of them at once."""
    streams = [await connect() for _ in range(CONNECTIONS)]
    frame = struct.pack(">i", 90 * MIB) + b"\0" * SENT
    probe.steps = probe.most_steps = 0
    for stream in streams:
        nursery.start_soon(stream.send_all, frame)
    with trio.fail_after(DEADLINE_S):
        while probe.steps < CONNECTIONS * (SENT + GROWTH * BUFFER_BYTES):
            await trio.lowlevel.checkpoint()
    assert probe.most_steps <= MOST_IN_A_PASS


async def test_the_channels_of_a_client_grow_their_buffers_one_after_the_other(probe: LoopProbe) -> None:
    network = TrioNetwork()
    listener = await network.listen("127.0.0.1", 0)

    async def ask(nursery: trio.Nursery) -> None:
        channel = await Channel.connect(network, "127.0.0.1", listener.port, "test")
        nursery.start_soon(channel.run)
        channel.post(MetadataRequest(), version=9)

    async def connect() -> Any:
        nursery.start_soon(ask, nursery)
        stream = await listener.accept()

        class Sender:
            async def send_all(self, data: bytes) -> None:
                await stream.send([data])

        return Sender()

    async with trio.open_nursery() as nursery:
        await _grow(connect, probe, nursery)
        nursery.cancel_scope.cancel()
    listener.close()


async def test_a_connection_that_has_sent_less_than_a_frame_takes_little_memory(
    tmp_path: Path, probe: LoopProbe, traced: None
) -> None:
    async with one_broker(tmp_path) as broker:
        with ExitStack() as clients:
            await _half_open(broker.port, probe, clients)  # creates what all connections share
            before, _ = tracemalloc.get_traced_memory()
            taken = await _half_open(broker.port, probe, clients) - before
        assert taken / FEW_CONNECTIONS <= MOST_BYTES_OF_A_CONNECTION


async def _half_open(port: int, probe: LoopProbe, clients: ExitStack) -> int:
    """Open connections that begin a frame. Returns the traced memory, without the objects of these clients."""
    sockets, _ = tracemalloc.get_traced_memory()
    for _ in range(FEW_CONNECTIONS):
        client = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
        client.sendall(struct.pack(">i", 90 * MIB) + b"\0")
    sockets = tracemalloc.get_traced_memory()[0] - sockets
    probe.steps = 0
    with trio.fail_after(DEADLINE_S):
        while probe.steps < FEW_CONNECTIONS * 5:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
    return tracemalloc.get_traced_memory()[0] - sockets
