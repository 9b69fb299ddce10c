"""A byte stream gives the same requests whatever the sizes of its chunks, and a returned request never changes."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.protocol.framing import BufferPool, FrameError, RequestHeader, ServerConnection, encode_request
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.message import Message
from anabranch.protocol.message_limits import RequestLimits
from anabranch.protocol.primitives import DecodeError


def _produce(size: int) -> ProduceRequest:
    partition = PartitionProduceData(index=size, records=bytes([size % 251]) * size)
    return ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[partition])])


def _metadata(names: list[str]) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])


MESSAGES: st.SearchStrategy[tuple[Message, int]] = st.one_of(
    st.tuples(st.builds(_metadata, st.lists(st.text(max_size=5), max_size=3)), st.just(9)),
    st.tuples(
        st.builds(_produce, st.integers(0, 300) | st.integers(60_000, 70_000) | st.sampled_from([250_000, 300_000])),
        st.just(9),
    ),
)


def receive(connection: ServerConnection, chunk: bytes) -> list[tuple[RequestHeader, Message]]:
    found = []
    while chunk:
        buffer = connection.buffer()
        count = min(len(buffer), len(chunk))
        buffer[:count] = chunk[:count]
        connection.received(count)
        chunk = chunk[count:]
        while (request := connection.next_request()) is not None:
            found.append((request.header, request.body))
    return found


@settings(max_examples=60)
@given(
    messages=st.lists(MESSAGES, min_size=1, max_size=6),
    cuts=st.lists(st.floats(0, 1), max_size=12),
    every=st.none() | st.integers(1, 7000),
)
def test_chunks_of_any_size_give_the_same_requests(
    messages: list[tuple[Message, int]], cuts: list[float], every: int | None
) -> None:
    expected = [
        (RequestHeader(body.API_KEY, version, number, "client"), body)
        for number, (body, version) in enumerate(messages)
    ]
    stream = b"".join(bytes(part) for header, body in expected for part in encode_request(header, body))  # type: ignore[arg-type]
    positions = sorted({0, len(stream), *(int(cut * len(stream)) for cut in cuts)})
    if every is not None and len(stream) < 2000 * every:
        positions = sorted({*positions, *range(0, len(stream), every)})
    connection = ServerConnection(pool=BufferPool(max_buffers=16))
    found = []
    for begin, end in itertools.pairwise(positions):
        found += receive(connection, stream[begin:end])
    # The comparison comes last, because no later byte may have changed a returned request.
    assert found == expected
    assert connection.idle


@settings(max_examples=300)
@given(data=st.binary(max_size=400))
def test_random_bytes_raise_only_frame_and_decode_errors(data: bytes) -> None:
    connection = ServerConnection(RequestLimits(max_bytes=1000))
    try:
        receive(connection, data)
    except (FrameError, DecodeError):
        connection.close()
        assert connection.idle
