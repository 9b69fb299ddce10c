"""Malformed bytes cause a typed error that names the field, and a malformed length causes no large allocation."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from anabranch.protocol.generated.api_versions import ApiVersionsRequest
from anabranch.protocol.generated.create_topics import CreateTopicsRequest
from anabranch.protocol.generated.fetch import FetchRequest, FetchResponse
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.primitives import DecodeError, read_tags, read_uvarint, write_uvarint
from tests.support.protocol.protocol_tables import Case, cases, full_sample, to_object

ALL = cases()


@pytest.mark.parametrize("case", ALL, ids=str)
def test_every_message_cut_at_any_byte_is_a_decode_error(case: Case) -> None:
    wire = to_object(case.cls, case.table.fields, full_sample(case.table.fields, case.version)).encode(case.version)
    for length in range(len(wire)):
        with pytest.raises(DecodeError, match=case.cls.__name__):
            case.cls.decode(wire[:length], case.version)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_bytes_after_the_message_are_refused(case: Case) -> None:
    wire = case.cls().encode(case.version) + b"\0"
    with pytest.raises(DecodeError, match="1 bytes are left over"):
        case.cls.decode(wire, case.version)


@pytest.mark.parametrize("case", [case for case in ALL if case.table.is_flexible(case.version)], ids=str)
def test_unknown_tags_are_skipped(case: Case) -> None:
    wire = case.cls().encode(case.version)
    assert wire.endswith(b"\0")
    unknown = bytearray(wire[:-1]) + b"\1"
    write_uvarint(unknown, 9999)
    unknown += b"\3abc"
    assert case.cls.decode(bytes(unknown), case.version) == case.cls()


@pytest.mark.parametrize("case", [case for case in ALL if case.table.is_flexible(case.version)], ids=str)
@pytest.mark.parametrize("second", [7000, 6999], ids=["twice", "descending"])
def test_tags_must_ascend(case: Case, second: int) -> None:
    wire = bytearray(case.cls().encode(case.version)[:-1]) + b"\2"
    for tag in (7000, second):
        write_uvarint(wire, tag)
        wire += b"\1x"
    with pytest.raises(DecodeError, match=f"tag {second} after 7000"):
        case.cls.decode(bytes(wire), case.version)


def test_a_length_beyond_the_frame_allocates_nothing() -> None:
    wire = b"\x7f\xff\xff\xff" + b"\0" * 100
    tracemalloc.start()
    with pytest.raises(DecodeError, match=r"topics: length 2147483647 at byte 4 where 100 bytes are left"):
        MetadataRequest.decode(wire, 1)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100_000


def test_a_compact_length_beyond_the_frame_is_refused() -> None:
    with pytest.raises(DecodeError, match="topics: length 4294967294"):
        MetadataRequest.decode(b"\xff\xff\xff\xff\x0f" + b"\0" * 100, 9)


def test_a_count_is_checked_against_the_least_size_of_its_items() -> None:
    # 30 topics of at least 6 bytes each do not fit into 100 bytes.
    with pytest.raises(DecodeError, match="topic_data: length 30"):
        ProduceRequest.decode(b"\0\1\0\0\0\0\0\0\0\x1e" + b"\0" * 100, 0)


def test_negative_lengths_are_refused() -> None:
    with pytest.raises(DecodeError, match="topic_data: length -1"):
        ProduceRequest.decode(b"\0\1\0\0\0\0\xff\xff\xff\xff", 0)
    with pytest.raises(DecodeError, match="transactional_id: length -2"):
        ProduceRequest.decode(b"\xff\xfe\0\1\0\0\0\0\0\0\0\0", 3)


def test_null_is_refused_where_a_field_has_no_null() -> None:
    with pytest.raises(DecodeError, match="client_software_name: length -1"):
        ApiVersionsRequest.decode(b"\0\1\0", 3)


def test_an_error_names_the_field_and_the_byte() -> None:
    request = FetchRequest(max_wait_ms=1)
    wire = request.encode(4)
    with pytest.raises(DecodeError, match=r"FetchRequest v4: max_bytes: .*expected 4, found 2 \(byte 14 of 14"):
        FetchRequest.decode(wire[:14], 4)


def test_text_that_is_not_utf8_is_refused() -> None:
    request = ProduceRequest(topic_data=[TopicProduceData(name="ab", partition_data=[PartitionProduceData()])])
    with pytest.raises(DecodeError, match=r"topic_data.*name.*not UTF-8"):
        ProduceRequest.decode(request.encode(3).replace(b"ab", b"\xff\xfe"), 3)


def test_a_tagged_field_must_fill_its_size() -> None:
    wire = bytearray(FetchRequest().encode(12)[:-1]) + b"\1\0\5\3ab\0\0"
    with pytest.raises(DecodeError, match="cluster_id: 2 bytes are left over"):
        FetchRequest.decode(bytes(wire), 12)


def test_unknown_versions_are_refused() -> None:
    for version in (-1, 3, 13):
        with pytest.raises(DecodeError, match=f"FetchResponse has no version {version}"):
            FetchResponse.decode(b"", version)
    with pytest.raises(DecodeError):
        CreateTopicsRequest.decode(b"", 1)


@pytest.mark.parametrize(
    "raw", [b"\x80\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff\x1f"], ids=["six bytes", "more than 32 bits"]
)
def test_varints_are_bounded(raw: bytes) -> None:
    with pytest.raises(DecodeError, match="varint of more than"):
        read_uvarint(memoryview(raw), 0)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 10253, 2**32 - 1])
def test_varints_are_read_back_as_written(value: int) -> None:
    out = bytearray()
    write_uvarint(out, value)
    assert read_uvarint(memoryview(out), 0) == (value, len(out))


@pytest.mark.parametrize("count", [10_003, 2**32 - 1])
def test_more_unknown_tags_than_a_message_may_have_are_refused_before_they_are_read(count: int) -> None:
    raw = bytearray()
    write_uvarint(raw, count)
    with pytest.raises(DecodeError, match="are unknown; 10000 are accepted in one message"):
        read_tags(memoryview(bytes(raw)), 1, raw[0], (1, 2))


def test_no_object_is_made_for_an_unknown_tag() -> None:
    raw = bytearray()
    write_uvarint(raw, 10_001)
    for tag in range(10_001):
        write_uvarint(raw, tag)
        raw += b"\2xy"
    data = memoryview(bytes(raw))
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(60)  # what other threads of the test's process allocate does not count
    tracemalloc.start()
    tags, end, unknown = read_tags(data, 1, raw[0], (7,))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sys.setswitchinterval(interval_s)
    assert ({tag: bytes(value) for tag, value in tags.items()}, end, unknown) == ({7: b"xy"}, len(raw), 10_000)
    assert peak_bytes < 2_000


def test_a_long_broken_message_is_not_read_twice() -> None:
    wire = MetadataRequest(topics=[MetadataRequestTopic(name="") for _ in range(5000)]).encode(4)
    with pytest.raises(DecodeError, match=r"MetadataRequest v4: cut short or not valid .* within 10004 bytes"):
        MetadataRequest.decode(wire[:-1], 4)
