"""A hostile server: its answers cost a client bounded memory, and end the connection with an error that names them."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import anyio
import pytest

from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.generated.metadata import MetadataRequest
from anabranch.protocol.message_limits import MIB
from anabranch.runtime.channel import Channel, ChannelClosedError
from anabranch.runtime.real_anyio import client_env
from tests.support.protocol.hostile_frames import EMPTY, Dense, dense_messages, unknown_tags

HOST = "127.0.0.1"
VERSION = 9


def dense(path: str) -> Dense:
    (found,) = (
        message
        for message in dense_messages("RESPONSE")
        if (message.table.api_key, message.version) == (ApiKey.METADATA, VERSION)
        and (".".join(message.path), message.filling) == (path, EMPTY)
    )
    return found


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


ANSWERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "topics of a few bytes": (
        lambda: framed(dense("topics").response(MIB)),
        r"MetadataResponse v9: topics\[\]: the elements are so small that they need \d+ bytes of memory",
    ),
    "tags in the header": (
        lambda: framed(b"\0\0\0\1" + unknown_tags(MIB)),
        "262144 are unknown; 10000 are accepted in one message",
    ),
    "tags in the body": (
        lambda: framed(b"\0\0\0\1\0" + dense("topics").body(count=1)[:-1] + unknown_tags(MIB)),
        "262144 are unknown; 10000 are accepted in one message",
    ),
    "an array that cannot fit": (
        lambda: framed(b"\0\0\0\1\0" + b"\0\0\0\0\xff\xff\xff\xff\x0f"),
        r"brokers: length 4294967294 at byte 9",
    ),
    "a frame above the limit": (
        lambda: struct.pack(">i", 4 * MIB + 1),
        "frame of 4194305 bytes; 0 to 4194304 are accepted",
    ),
    "a negative size": (lambda: struct.pack(">i", -1), "frame of -1 bytes"),
    "an answer to no request": (lambda: framed(b"\0\0\0\7" + b"\0" * 20), "correlation id 7 belongs to no request"),
}


@pytest.mark.parametrize("what", ANSWERS)
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_hostile_answer_ends_the_connection_and_costs_bounded_memory(what: str, backend: str) -> None:
    make, expected = ANSWERS[what]
    answer = make()

    async def scenario() -> int:
        network = client_env().network
        listener = await network.listen(HOST, 0)

        async def serve() -> None:
            stream = await listener.accept()
            await stream.receive_into(memoryview(bytearray(1_000)))
            await stream.send([answer])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            opened = Channel.open(network, HOST, listener.port, "test", max_frame_bytes=4 * MIB)
            async with opened as channel:
                tracemalloc.start()
                with pytest.raises(ChannelClosedError, match=expected):
                    await channel.request(MetadataRequest(), version=VERSION)
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
            tasks.cancel_scope.cancel()
        return peak

    assert anyio.run(scenario, backend=backend) <= 20 * MIB
