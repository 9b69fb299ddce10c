"""A large Fetch takes little memory for its size. The bytes that Python allocates are counted."""

from __future__ import annotations

import gc
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from anabranch.protocol.framing import RequestHeader, encode_request
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.sentinels import FINAL_SESSION_EPOCH, INITIAL_SESSION_EPOCH
from tests.support.broker.broker_harness import DEADLINE_S, one_broker

pytestmark = pytest.mark.trio
PARTITIONS = 20_000
MOST_TIMES = 12
"""The most bytes for each byte of the request, with the request and its answer."""


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


def fetch_of_many(session_epoch: int) -> bytes:
    """A Fetch of partitions that do not exist."""
    asked = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(PARTITIONS)]
    topics = [FetchTopic(topic="absent", partitions=asked)]
    request = FetchRequest(replica_id=-1, max_bytes=1 << 20, session_epoch=session_epoch, topics=topics)
    return b"".join(map(bytes, encode_request(RequestHeader(request.API_KEY, 12, 1, "client"), request)))


async def answered(stream: trio.SocketStream, request: bytes) -> int:
    """The size of the answer, which is not kept. Returns when the broker has nothing left to do."""
    buffer = bytearray(1 << 16)
    with trio.fail_after(DEADLINE_S):
        await stream.send_all(request)
        received, size = 0, 4
        while received < size:
            count = await stream.socket.recv_into(buffer)
            assert count
            if not received:
                size += struct.unpack_from(">i", buffer)[0]
            received += count
        await trio.testing.wait_all_tasks_blocked()
    return received


@pytest.mark.parametrize("session_epoch", [FINAL_SESSION_EPOCH, INITIAL_SESSION_EPOCH], ids=["alone", "session"])
async def test_a_fetch_of_very_many_partitions_takes_few_times_its_size_and_leaves_nothing(
    session_epoch: int, tmp_path: Path, traced: None
) -> None:
    request = fetch_of_many(session_epoch)
    async with one_broker(tmp_path) as broker:
        stream = await broker.raw()
        async with stream:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            size = await answered(stream, request)
            assert size > 20 * PARTITIONS
            left, peak = tracemalloc.get_traced_memory()
            assert peak - before <= MOST_TIMES * len(request)
            assert left - before <= len(request)
