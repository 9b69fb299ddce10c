"""Frames, headers, and the buffers that contain them."""

from __future__ import annotations

import struct

import pytest

from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.framing import (
    BUFFER_BYTES,
    GROWTH,
    LARGE_BUFFER_BYTES,
    SMALL_PARTIAL_BYTES,
    BufferPool,
    ClientConnection,
    FrameError,
    Request,
    RequestHeader,
    ServerConnection,
    UnsupportedRequestError,
    decode_response,
    encode_request,
    encode_response,
)
from anabranch.protocol.generated.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from anabranch.protocol.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataResponse
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.message import Message
from anabranch.protocol.message_limits import MAX_FRAME_BYTES, RequestLimits
from anabranch.protocol.primitives import DecodeError


def wire(body: Message, version: int, correlation_id: int = 1, client_id: str | None = "me") -> bytes:
    return b"".join(encode_request(RequestHeader(body.API_KEY, version, correlation_id, client_id), body))  # type: ignore[arg-type]


def feed(connection: ServerConnection, data: bytes) -> list[Request]:
    """Receive all of ``data``, as many bytes at a time as the connection accepts."""
    found = []
    position = 0
    while position < len(data):
        buffer = connection.buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(data) - position)
        buffer[:count] = data[position : position + count]
        connection.received(count)
        position += count
        while (request := connection.next_request()) is not None:
            found.append(request)
    return found


def produce(size: int, fill: bytes = b"r") -> ProduceRequest:
    partition = PartitionProduceData(records=fill * size)
    return ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=[partition])])


def records_of(request: Request) -> bytes:
    assert isinstance(request.body, ProduceRequest)
    records = request.body.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    return bytes(records)


def test_request_headers_have_the_bytes_of_their_version() -> None:
    """Header version 1 belongs to the versions before an API's first flexible version.

    Header version 2 belongs to the first flexible version and later versions, and ends with a byte of tags.
    """
    assert wire(HeartbeatRequest(), 3)[4:14] == struct.pack(">hhih", 12, 3, 1, 2)
    assert wire(MetadataRequest(), 8)[14:16] == b"me"
    assert wire(MetadataRequest(), 9)[14:17] == b"me\0"
    assert wire(MetadataRequest(), 0, client_id=None)[12:14] == b"\xff\xff"


@pytest.mark.parametrize("client_id", ["me", "", None, "ü"])
@pytest.mark.parametrize("version", [0, 9])
def test_a_request_is_read_with_its_header_and_body(version: int, client_id: str | None) -> None:
    data = wire(MetadataRequest(), version, 77, client_id)
    (request,) = feed(ServerConnection(), data)
    assert request.header == RequestHeader(ApiKey.METADATA, version, 77, client_id)
    assert request.body == MetadataRequest()
    assert request.size == len(data) - 4
    assert not request.unsupported


def test_tags_in_a_header_are_skipped() -> None:
    data = bytearray(wire(MetadataRequest(), 9))
    data[16:17] = b"\1\5\2xx"
    data[:4] = struct.pack(">i", len(data) - 4)
    (request,) = feed(ServerConnection(), bytes(data))
    assert request.body == MetadataRequest()


def test_a_response_is_read_back_with_its_correlation_id() -> None:
    for version, header in ((3, 4), (4, 5)):
        parts = encode_response(ApiKey.HEARTBEAT, version, 9, HeartbeatResponse(error_code=27))
        data = b"".join(parts)  # type: ignore[arg-type]
        assert struct.unpack(">ii", data[:8]) == (len(data) - 4, 9)
        assert len(data) == 4 + header + len(HeartbeatResponse().encode(version))
        assert decode_response(ApiKey.HEARTBEAT, version, memoryview(data)[4:]) == (9, HeartbeatResponse(error_code=27))


def test_api_versions_response_header_is_always_version_0() -> None:
    response = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, max_version=3)])
    data = b"".join(encode_response(ApiKey.API_VERSIONS, 3, 5, response))  # type: ignore[arg-type]
    assert data[8:] == response.encode(3)
    assert decode_response(ApiKey.API_VERSIONS, 3, memoryview(data)[4:]) == (5, response)


def test_a_refusal_of_api_versions_is_read_in_version_0() -> None:
    """KIP-511: an unsupported version is answered in version 0 with error 35."""
    response = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, max_version=3)])
    data = b"".join(encode_response(ApiKey.API_VERSIONS, 0, 5, response))  # type: ignore[arg-type]
    assert decode_response(ApiKey.API_VERSIONS, 3, memoryview(data)[4:]) == (5, response)


def test_an_api_versions_request_of_an_unknown_version_is_unsupported() -> None:
    data = bytearray(wire(ApiVersionsRequest(), 3))
    data[6:8] = struct.pack(">h", 4)
    (request,) = feed(ServerConnection(), bytes(data))
    assert request.unsupported
    assert request.header == RequestHeader(18, 4, 1, "me")
    assert request.body == ApiVersionsRequest()


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_frame_size_out_of_bounds_is_refused(size: int) -> None:
    with pytest.raises(
        FrameError, match=rf"^frame of {size} bytes; 0 to 1000 are accepted .socket.request.max.bytes.$"
    ):
        feed(ServerConnection(RequestLimits(max_bytes=1000)), struct.pack(">i", size))


@pytest.mark.parametrize(
    ("data", "protocol"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
        (b"GET /metrics HTTP/1.1\r\n", "HTTP"),
        (b"POST / HTTP/1.0\r\n", "HTTP"),
        (bytes.fromhex("15030300020246"), "TLS"),
        (bytes.fromhex("160301020001"), "TLS"),
    ],
)
def test_another_protocol_is_named(data: bytes, protocol: str) -> None:
    expected = f"^the other side speaks {protocol}, not Kafka's protocol$"
    with pytest.raises(FrameError, match=expected):
        feed(ServerConnection(), data)
    frames = ClientConnection(MAX_FRAME_BYTES)
    frames.buffer()[: len(data)] = data
    frames.received(len(data))
    with pytest.raises(FrameError, match=expected):
        frames.next_frame()


def test_an_admin_request_above_its_own_limit_is_refused_by_its_first_bytes() -> None:
    def begun(api_key: int) -> bytes:
        return struct.pack(">ihh", 2_000, api_key, 5)

    limits = RequestLimits(max_bytes=10_000, max_small_bytes=9_000, max_admin_bytes=1_999)
    with pytest.raises(FrameError, match=r"CREATE_TOPICS request of 2000 bytes; 1999 are accepted .admin.request.max"):
        feed(ServerConnection(limits), begun(ApiKey.CREATE_TOPICS))
    assert feed(ServerConnection(limits._replace(max_admin_bytes=2_000)), begun(ApiKey.CREATE_TOPICS)) == []
    assert feed(ServerConnection(limits), begun(ApiKey.PRODUCE)) == []


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.JOIN_GROUP, ApiKey.FETCH, 9_999])
def test_only_produce_and_the_controller_may_send_requests_as_large_as_the_socket_takes(key: int) -> None:
    limits = RequestLimits(max_bytes=10_000, max_small_bytes=5_000)
    begun = struct.pack(">ihh", 5_001, key, 0)
    with pytest.raises(FrameError, match=r"request of 5001 bytes; 5000 are accepted .small.request.max.bytes"):
        feed(ServerConnection(limits), begun)
    for bulk in (ApiKey.PRODUCE, ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA):
        begun = struct.pack(">ihh", 5_001, bulk, 0)
        assert feed(ServerConnection(limits), begun) == []
        with pytest.raises(FrameError, match=r"small[.]request[.]max[.]bytes"):
            feed(ServerConnection(limits._replace(bulk_apis=frozenset())), begun)
    small = RequestLimits(max_bytes=1_000)
    with pytest.raises(FrameError, match=r"1000 are accepted .socket.request.max.bytes"):
        feed(ServerConnection(small), struct.pack(">ihh", 1_001, key, 0))


@pytest.mark.parametrize(("key", "version"), [(3, 13), (3, -1), (0, 10), (1, 3), (9999, 0), (-1, 0), (25399, 0)])
def test_unknown_apis_and_versions_are_refused(key: int, version: int) -> None:
    header = struct.pack(">hhih", key, version, 1, -1)
    with pytest.raises(UnsupportedRequestError, match="not implemented"):
        feed(ServerConnection(), struct.pack(">i", len(header)) + header)


def test_a_request_cut_at_any_byte_within_its_frame_is_a_decode_error() -> None:
    frame = wire(MetadataRequest(), 9)[4:]
    for length in range(len(frame)):
        with pytest.raises(DecodeError):
            feed(ServerConnection(), struct.pack(">i", length) + frame[:length])


def test_a_response_cut_at_any_byte_is_a_decode_error() -> None:
    frame = b"".join(encode_response(ApiKey.METADATA, 9, 1, MetadataResponse()))[4:]  # type: ignore[arg-type]
    for length in range(len(frame)):
        with pytest.raises(DecodeError):
            decode_response(ApiKey.METADATA, 9, memoryview(frame)[:length])


def test_an_idle_connection_holds_no_buffer() -> None:
    connection = ServerConnection()
    assert connection.idle
    data = wire(MetadataRequest(), 9)
    assert len(feed(connection, data)) == 1
    assert connection.idle
    assert not connection.has_partial


@pytest.mark.parametrize("sent", [1, 3, 4, 5, SMALL_PARTIAL_BYTES])
def test_a_connection_with_a_small_part_of_a_frame_holds_no_buffer(sent: int) -> None:
    connection = ServerConnection()
    data = wire(produce(2 * BUFFER_BYTES), 9)
    assert feed(connection, data[:sent]) == []
    assert connection.idle
    assert connection.has_partial
    (request,) = feed(connection, data[sent:])
    assert len(records_of(request)) == 2 * BUFFER_BYTES
    assert not connection.has_partial


def test_a_larger_part_of_a_frame_stays_in_its_buffer() -> None:
    connection = ServerConnection()
    feed(connection, wire(produce(BUFFER_BYTES), 9)[: SMALL_PARTIAL_BYTES + 1])
    assert not connection.idle
    assert BUFFER_BYTES <= GROWTH * (SMALL_PARTIAL_BYTES + 1)


def test_a_buffer_is_used_again_once_no_request_holds_it() -> None:
    pool = BufferPool()
    connection = ServerConnection(pool=pool)
    buffer = pool.take()
    pool.give(buffer)
    feed(connection, wire(MetadataRequest(), 9))
    assert pool.take() is buffer


def test_a_buffer_is_not_used_again_while_its_records_are_held() -> None:
    pool = BufferPool()
    connection = ServerConnection(pool=pool)
    held = feed(connection, wire(produce(100, b"a"), 9))
    more = [feed(connection, wire(produce(100, fill), 9))[0] for fill in (b"b", b"c", b"d")]
    assert [records_of(request) for request in held + more] == [fill * 100 for fill in (b"a", b"b", b"c", b"d")]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (BUFFER_BYTES - 100, BUFFER_BYTES),
        (BUFFER_BYTES + 1, LARGE_BUFFER_BYTES),
        (LARGE_BUFFER_BYTES - 100, LARGE_BUFFER_BYTES),
        (LARGE_BUFFER_BYTES + 1, BUFFER_BYTES),
    ],
)
def test_a_connection_receives_into_buffers_that_fit_its_frames(size: int, expected: int) -> None:
    pool = BufferPool()
    connection = ServerConnection(pool=pool)
    frame = wire(produce(size), 9)
    feed(connection, frame)
    assert len(connection.buffer()) == expected
    connection.close()
    pooled = pool.take(expected)
    assert len(pooled) == expected
    pool.give(pooled)
    feed(connection, frame)
    assert pool.take(expected) is pooled
    feed(connection, wire(MetadataRequest(), 9))
    assert len(connection.buffer()) == BUFFER_BYTES


def test_a_part_of_a_frame_never_fills_the_next_buffer() -> None:
    frame = wire(produce(2 * BUFFER_BYTES), 9)
    most = LARGE_BUFFER_BYTES // GROWTH
    for sent in (most - 1, most, most + 1):
        connection = ServerConnection()
        feed(connection, frame)
        feed(connection, frame[:sent])
        assert connection.idle == (sent <= most)
        assert len(connection.buffer()) == LARGE_BUFFER_BYTES - sent
        (request,) = feed(connection, frame[sent:])
        assert len(records_of(request)) == 2 * BUFFER_BYTES


def test_a_pool_keeps_at_most_the_same_memory_in_buffers_of_each_size() -> None:
    pool = BufferPool(max_buffers=16)
    for size, most in ((BUFFER_BYTES, 16), (LARGE_BUFFER_BYTES, 4), (2 * BUFFER_BYTES, 0)):
        buffers = [pool.take(size) for _ in range(most + 1)]
        for buffer in buffers:
            pool.give(buffer)
        kept = [pool.take(size) for _ in range(most + 1)]
        assert sum(any(found is buffer for buffer in buffers) for found in kept) == most


def test_a_pool_keeps_a_bounded_number_of_buffers() -> None:
    pool = BufferPool(max_buffers=2)
    buffers = [pool.take() for _ in range(4)]
    for buffer in buffers:
        pool.give(buffer)
    assert [pool.take() is buffer for buffer in reversed(buffers[2:])] == [True, True]
    assert all(pool.take() is not buffer for buffer in buffers)


@pytest.mark.parametrize("size", [BUFFER_BYTES - 100, BUFFER_BYTES, BUFFER_BYTES + 1, 1_000_000, 5_000_000])
def test_frames_larger_than_a_buffer_are_read(size: int) -> None:
    connection = ServerConnection()
    data = wire(MetadataRequest(), 9) + wire(produce(size), 9) + wire(produce(10), 3)
    _, large, small = feed(connection, data)
    assert len(records_of(large)) == size
    assert len(records_of(small)) == 10
    assert connection.idle


def test_the_buffer_of_a_frame_grows_with_the_received_bytes() -> None:
    connection = ServerConnection(RequestLimits(max_bytes=100_000_000))
    feed(connection, struct.pack(">i", 100_000_000))
    assert len(connection.buffer()) <= BUFFER_BYTES
    feed(connection, b"\0" * BUFFER_BYTES)
    assert len(connection.buffer()) <= GROWTH * (BUFFER_BYTES + 4)


def test_closing_gives_the_buffer_back() -> None:
    pool = BufferPool()
    connection = ClientConnection(pool=pool)
    connection.buffer()[:2] = b"\0\0"
    connection.received(2)
    connection.close()
    assert connection.idle
    assert connection.next_frame() is None


def test_bytes_after_a_request_are_ignored() -> None:
    """Kafka ignores them, too: librdkafka 2.x ends its Metadata request for all topics with three surplus bytes."""
    frame = wire(MetadataRequest(topics=None), 9)[4:] + b"\0\0\0"
    (request,) = feed(ServerConnection(), struct.pack(">i", len(frame)) + frame)
    assert request.body == MetadataRequest(topics=None)
    assert request.size == len(frame)
