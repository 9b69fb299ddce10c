"""Bad input to a broker on a real socket: it closes the connection or sends a typed error, and continues to serve."""

from __future__ import annotations

import gc
import resource
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from anabranch.protocol.batch_builder import BatchBuilder
from anabranch.protocol.compression import CompressionType, compress
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.framing import RequestHeader, encode_request
from anabranch.protocol.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.support.broker import requests
from tests.support.broker.broker_harness import OneBroker, closes, frame, one_broker
from tests.support.broker.requests import only

pytestmark = pytest.mark.trio

MANY_CONNECTIONS = 2000


def batch(value: bytes = b"value", count: int = 1, codec: CompressionType = CompressionType.NONE) -> bytearray:
    builder = BatchBuilder(codec, 1 << 20)
    for _ in range(count):
        builder.append(b"key", value, (), 1_000)
    return bytearray(builder.build())


async def produce(broker: OneBroker, records: bytes | bytearray, *, version: int = 9, acks: int = -1) -> int:
    """Produce ``records`` to partition 0 of topic t. Returns the error code."""
    return int(only(await broker.request(requests.produce(records, acks=acks), version)).error_code)


async def end_offset(broker: OneBroker) -> int:
    return int(only(await broker.request(requests.list_offsets(0))).offset)


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 100 * 1024 * 1024 + 1),
        struct.pack(">i", 0),
        frame(b"\0\x12\0"),
        frame(struct.pack(">hhih", 999, 0, 1, -1)),
        frame(struct.pack(">hhih", 3, 99, 1, -1)),
        frame(struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 2**31 - 1)),
        frame(struct.pack(">hhih", 3, 1, 1, 32767)),
        frame(b"\xff" * 64),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=[
        "negative frame",
        "oversize frame",
        "empty frame",
        "truncated header",
        "unknown API",
        "unknown version",
        "collection longer than the frame",
        "client id longer than the frame",
        "noise",
        "another protocol",
    ],
)
async def test_a_malformed_or_unknown_request_closes_its_connection_only(tmp_path: Path, sent: bytes) -> None:
    async with one_broker(tmp_path) as broker:
        stream = await broker.raw()
        await stream.send_all(sent)
        assert await closes(stream)
        assert (
            await broker.request(ApiVersionsRequest(client_software_name="t", client_software_version="1"))
        ).api_keys


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as broker:
        stream = await broker.raw()
        await stream.send_all(frame(struct.pack(">hhih", 18, 4, 7, -1) + b"whatever"))
        answer = await stream.receive_some(65536)
        correlation_id = struct.unpack_from(">i", answer, 4)[0]
        decoded = ApiVersionsResponse.decode(answer[8:], 0)
    assert correlation_id == 7
    assert decoded.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(api.api_key, api.min_version, api.max_version) for api in decoded.api_keys] == [(18, 0, 3)]


def damaged_crc(records: bytearray) -> None:
    records[-1] ^= 0xFF


def wrong_count(records: bytearray) -> None:
    struct.pack_into(">i", records, 57, 2)
    _reseal(records)


def old_magic(records: bytearray) -> None:
    records[16] = 1


def oldest_magic(records: bytearray) -> None:
    records[16] = 0


def control_bit(records: bytearray) -> None:
    records[22] |= 0x20
    _reseal(records)


def cut_short(records: bytearray) -> None:
    del records[-3:]


def _reseal(records: bytearray) -> None:
    from fastcrc import crc32

    struct.pack_into(">I", records, 17, crc32.iscsi(bytes(records[21:])))


@pytest.mark.parametrize(
    "damage", [damaged_crc, wrong_count, old_magic, oldest_magic, control_bit, cut_short], ids=lambda f: f.__name__
)
async def test_a_malformed_batch_gets_an_error_code_and_is_not_appended(
    tmp_path: Path, damage: Callable[[bytearray], None]
) -> None:
    async with one_broker(tmp_path) as broker:
        await broker.create_topic("t")
        assert await produce(broker, batch()) == 0
        bad = batch()
        damage(bad)
        code = await produce(broker, bad)
        assert code in (
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        )
        assert await end_offset(broker) == 1
        assert await produce(broker, batch()) == 0


async def test_produce_version_2_gets_unsupported_for_message_format(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as broker:
        await broker.create_topic("t")
        assert await produce(broker, batch(), version=2) == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


async def test_a_compression_bomb_is_refused_with_bounded_memory(tmp_path: Path) -> None:
    """On a compacted topic the broker reads the records, and refuses a batch that decompresses beyond the limit."""
    async with one_broker(tmp_path, {"log.cleanup.policy": "compact"}) as broker:
        await broker.create_topic("t")
        bomb = batch(codec=CompressionType.GZIP)
        layer = compress(CompressionType.GZIP, bytes(200 * 1024 * 1024))
        bomb[61:] = layer
        struct.pack_into(">i", bomb, 8, len(bomb) - 12)
        _reseal(bomb)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        code = await produce(broker, bomb)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE)
        assert grown_kib < 300 * 1024
        assert await produce(broker, batch()) == 0


async def test_a_refused_batch_names_the_records_at_fault(tmp_path: Path) -> None:
    """KIP-467: a client fails the records without a key and may send the others again."""
    async with one_broker(tmp_path, {"log.cleanup.policy": "compact"}) as broker:
        await broker.create_topic("t")
        builder = BatchBuilder(CompressionType.NONE, 1 << 20)
        for key in (b"a", None, b"b", None):
            builder.append(key, b"value", (), 1_000)
        refused = only(await broker.request(requests.produce(bytes(builder.build()))))
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert [error.batch_index for error in refused.record_errors] == [1, 3]
        assert "needs a key" in refused.error_message
        assert await end_offset(broker) == 0


@pytest.mark.parametrize("sent", [b"", b"\0\0", frame(b"x" * 100)[:50]], ids=["idle", "half a size", "half a frame"])
async def test_idle_and_slow_connections_are_closed_in_time(tmp_path: Path, sent: bytes) -> None:
    async with one_broker(tmp_path, {"connections.max.idle.ms": "300"}) as broker:
        stream = await broker.raw()
        if sent:
            await stream.send_all(sent)
        assert await closes(stream)


async def test_a_client_that_sends_byte_by_byte_is_closed_at_the_idle_limit(tmp_path: Path) -> None:
    async with one_broker(tmp_path, {"connections.max.idle.ms": "300"}) as broker:
        stream = await broker.raw()
        await stream.send_all(struct.pack(">i", 1_000))

        async def trickle() -> None:
            while True:
                await stream.send_all(b"\0")
                await trio.sleep(0.02)  # pause: the peer is slow on purpose

        async with trio.open_nursery() as nursery:

            async def forever() -> None:
                with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
                    await trickle()

            nursery.start_soon(forever)
            assert await closes(stream)


async def test_connections_of_one_address_are_limited(tmp_path: Path) -> None:
    async with one_broker(tmp_path, {"max.connections.per.ip": "3"}) as broker:
        held = [await broker.raw() for _ in range(2)]
        assert await closes(await broker.raw())
        await held[0].aclose()
        assert (
            await broker.request(ApiVersionsRequest(client_software_name="t", client_software_version="1"))
        ).api_keys


async def test_an_idle_connection_costs_less_than_40_kib(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MANY_CONNECTIONS + 200
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip(f"needs {wanted} descriptors, the limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    async with one_broker(tmp_path) as broker:
        gc.collect()
        before_kib = _resident_kib()
        sockets = []
        try:
            for _ in range(MANY_CONNECTIONS):
                client = trio.socket.socket()
                sockets.append(client)
                await client.connect((broker.host, broker.port))
            await broker.request(ApiVersionsRequest(client_software_name="t", client_software_version="1"))
            await trio.testing.wait_all_tasks_blocked(0.05)
            per_connection_kib = (_resident_kib() - before_kib) / MANY_CONNECTIONS
            assert per_connection_kib < 40
        finally:
            for client in sockets:
                client.close()


def _resident_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS in /proc/self/status")


async def test_a_broker_stops_reading_from_a_client_that_does_not_read_its_responses(tmp_path: Path) -> None:
    """The broker stops reading once eight requests of the connection wait and the socket's buffers are full."""
    async with one_broker(tmp_path) as broker:
        await broker.create_topic("t")
        for _ in range(20):
            assert await produce(broker, batch(b"x" * 500_000)) == 0
        body = requests.fetch(0, max_bytes=50 << 20)
        wire = b"".join(bytes(part) for part in encode_request(RequestHeader(1, 12, 1, None), body))
        greedy = socket.create_connection((broker.host, broker.port))
        greedy.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(greedy))
        before_kib = _resident_kib()
        with trio.move_on_after(1.0) as sending:
            for _ in range(100_000):
                await stream.send_all(wire)
        assert sending.cancelled_caught, "the broker continued to read although the client read no responses"
        assert _resident_kib() - before_kib < 50 * 1024
        assert await produce(broker, batch()) == 0
        await stream.aclose()
