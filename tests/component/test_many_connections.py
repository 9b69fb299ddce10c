"""Many connections share each pass of the event loop: bytes that are received and moved in one pass are counted."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from anabranch.protocol.framing import BUFFER_BYTES, GROWTH, FrameReader
from anabranch.protocol.generated.metadata import MetadataRequest
from anabranch.protocol.message_limits import MIB
from anabranch.runtime.channel import Channel
from anabranch.runtime.os_sockets import SocketStream
from anabranch.runtime.real_trio import RealNetwork
from anabranch.runtime.turns import PASS_BYTES
from tests.support.broker.broker_harness import DEADLINE_S, one_broker
from tests.support.broker.loop_probe import LoopProbe

pytestmark = pytest.mark.trio
CONNECTIONS = 100
SENT = BUFFER_BYTES + 4_000
MOST_IN_A_PASS = 2 * (PASS_BYTES + 2 * MIB)
"""A pass may also have the work that began the pass, and the turns that were given before."""


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
    network = RealNetwork()
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
