from __future__ import annotations

import struct
from typing import Any

import pytest

from anabranch.broker.log.append_validation import MAX_NAMED_RECORDS, validate_append
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.producer_state import AppendOrigin
from anabranch.protocol.batch_builder import BatchBuilder
from anabranch.protocol.batch_layout import CRC_AT, HEADER_BYTES, LOG_APPEND_TIME, MAX_LONG, MIN_LONG
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.errors import ErrorCode, KafkaError, RefusedRecordsError
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.sentinels import NO_TIMESTAMP
from tests.support.log.batches import build_control_batch, with_field
from tests.support.log.log_fixture import START_MS, batch


def validate(data: bytes | bytearray, origin: AppendOrigin = AppendOrigin.CLIENT, **config: Any) -> RecordBatch:
    return validate_append(memoryview(data), LogConfig(**config), START_MS, origin)


def code_of(data: bytes | bytearray, origin: AppendOrigin = AppendOrigin.CLIENT, **config: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        validate(data, origin, **config)
    return caught.value.code


def test_a_valid_batch_is_used_in_place_and_unchanged() -> None:
    data = batch(b"a", b"b")
    before = bytes(data)
    found = validate(data)
    assert found.buffer.obj is data and data == before


def test_a_read_only_batch_is_copied() -> None:
    found = validate(bytes(batch(b"a")))
    assert not found.buffer.readonly


def test_a_bad_checksum_is_corrupt() -> None:
    data = batch(b"aaaa")
    data[-2] ^= 1
    assert code_of(data) == ErrorCode.CORRUPT_MESSAGE
    assert code_of(data, AppendOrigin.COORDINATOR) == ErrorCode.CORRUPT_MESSAGE


def test_a_batch_above_max_message_bytes_is_refused() -> None:
    data = batch(b"x" * 100)
    assert validate(data, max_message_bytes=len(data)).length == len(data)
    assert code_of(data, max_message_bytes=len(data) - 1) == ErrorCode.MESSAGE_TOO_LARGE
    assert code_of(data, AppendOrigin.COORDINATOR, max_message_bytes=len(data) - 1) == ErrorCode.MESSAGE_TOO_LARGE


def test_only_a_coordinator_writes_control_batches() -> None:
    marker = build_control_batch(1, 9, 0, 3, START_MS)
    assert code_of(marker) == ErrorCode.INVALID_RECORD
    assert validate(marker, AppendOrigin.COORDINATOR).is_control


def test_a_compacted_topic_needs_keys() -> None:
    data = batch(b"v", key=None)
    assert validate(data).count == 1
    assert code_of(data, cleanup_policy=("delete", "compact")) == ErrorCode.INVALID_RECORD
    assert validate(batch(b"v"), cleanup_policy=("compact",)).count == 1


MAX_TIMESTAMP_AT = 35


def refusal_of(data: bytes | bytearray, **config: Any) -> RefusedRecordsError:
    with pytest.raises(RefusedRecordsError) as caught:
        validate(data, **config)
    return caught.value


def built(*records: tuple[bytes | None, int]) -> bytes:
    """Return a batch of records with these keys and timestamps."""
    builder = BatchBuilder(CompressionType.NONE, 2**31 - 1)
    for key, timestamp in records:
        builder.append(key, b"v", (), timestamp)
    return builder.build()


def test_a_refusal_names_the_records_without_a_key() -> None:
    data = built((b"k", START_MS), (None, START_MS), (b"", START_MS), (None, START_MS))
    refused = refusal_of(data, cleanup_policy=("compact",))
    assert refused.code is ErrorCode.INVALID_RECORD
    assert [record.batch_index for record in refused.records] == [1, 3]
    assert all("key" in record.message for record in refused.records)
    assert "2 of the batch's 4 records" in refused.message


def test_a_refusal_names_the_records_with_a_timestamp_out_of_bounds() -> None:
    data = built((b"k", START_MS), (b"k", START_MS - 11), (b"k", START_MS + 10), (b"k", START_MS + 11))
    refused = refusal_of(data, message_timestamp_difference_max_ms=10)
    assert refused.code is ErrorCode.INVALID_TIMESTAMP
    assert [record.batch_index for record in refused.records] == [1, 3]


def test_a_batch_whose_max_timestamp_alone_is_out_of_bounds_is_refused() -> None:
    data = bytearray(batch(b"a", timestamp=START_MS))
    struct.pack_into(">q", data, MAX_TIMESTAMP_AT, START_MS + 11)
    struct.pack_into(">I", data, CRC_AT, RecordBatch(data).compute_crc())
    refused = refusal_of(data, message_timestamp_after_max_ms=10)
    assert (refused.code, list(refused.records)) == (ErrorCode.INVALID_TIMESTAMP, [])


def test_a_refusal_names_a_bounded_number_of_records() -> None:
    data = built(*[(None, START_MS)] * (MAX_NAMED_RECORDS + 5))
    refused = refusal_of(data, cleanup_policy=("compact",))
    assert [record.batch_index for record in refused.records] == list(range(MAX_NAMED_RECORDS))
    assert f"{MAX_NAMED_RECORDS + 5} of the batch's" in refused.message


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4])
def test_log_append_time_is_stamped_under_a_new_checksum(codec: CompressionType) -> None:
    data = batch(b"a" * 200, b"b" * 200, timestamp=5, compression=codec)
    found = validate(data, message_timestamp_type="LogAppendTime")
    assert found.timestamp_type == LOG_APPEND_TIME and found.verify_crc()
    assert [record.timestamp for record in found] == [START_MS, START_MS]


def test_a_producers_batch_with_log_append_time_is_refused() -> None:
    data = batch(b"a")
    stamped = validate(data, message_timestamp_type="LogAppendTime")
    assert code_of(bytes(stamped.buffer)) == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize(
    ("config", "timestamp", "accepted"),
    [
        ({"message_timestamp_after_max_ms": 1000}, START_MS + 1000, True),
        ({"message_timestamp_after_max_ms": 1000}, START_MS + 1001, False),
        ({"message_timestamp_before_max_ms": 1000}, START_MS - 1000, True),
        ({"message_timestamp_before_max_ms": 1000}, START_MS - 1001, False),
        ({"message_timestamp_before_max_ms": 1000}, START_MS + 3_600_000, True),
        ({}, START_MS + 3_600_000, True),
        ({}, START_MS + 3_600_001, False),
        ({"message_timestamp_after_max_ms": MAX_LONG}, START_MS * 1_000_000, True),
        ({"message_timestamp_difference_max_ms": 1000}, START_MS + 1001, False),
        ({"message_timestamp_difference_max_ms": 1000}, START_MS - 1001, False),
        ({"message_timestamp_before_max_ms": 1000}, -1, True),
    ],
)
def test_timestamps_are_accepted_only_within_the_bounds(config: dict[str, int], timestamp: int, accepted: bool) -> None:
    data = batch(b"a", timestamp=timestamp)
    if accepted:
        assert validate(data, **config).count == 1
    else:
        assert code_of(data, **config) == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("sent", [CompressionType.NONE, CompressionType.GZIP])
@pytest.mark.parametrize(
    ("name", "codec"),
    [("uncompressed", CompressionType.NONE), ("zstd", CompressionType.ZSTD), ("gzip", CompressionType.GZIP)],
)
def test_a_batch_gets_the_compression_type_of_its_topic(
    sent: CompressionType, name: str, codec: CompressionType
) -> None:
    data = batch(b"a" * 500, None, b"c" * 500, compression=sent, producer_id=4, producer_epoch=1, base_sequence=7)
    original = RecordBatch(bytes(data))
    found = validate(data, compression_type=name)
    assert found.compression == codec and found.verify_crc()
    assert found.records() == original.records()
    for field in ("producer_id", "producer_epoch", "base_sequence", "last_offset_delta", "max_timestamp"):
        assert getattr(found, field) == getattr(original, field)


def test_records_whose_timestamps_are_very_far_apart_stay_readable_in_another_compression() -> None:
    """The timestamp of the first record cannot be the base of the others, as that of the client's batch is."""
    builder = BatchBuilder(CompressionType.NONE)
    builder.start_at(0, NO_TIMESTAMP)
    for index, timestamp in enumerate((-START_MS, MAX_LONG)):
        builder.append_at(index, None, b"v", (), timestamp)
    found = validate(builder.build(), compression_type="gzip", message_timestamp_after_max_ms=MAX_LONG)
    assert [record.timestamp for record in found.records()] == [-START_MS, MAX_LONG]


def test_a_batch_that_is_too_large_without_compression_is_refused() -> None:
    data = batch(b"a" * 5000, compression=CompressionType.GZIP)
    assert code_of(data, compression_type="uncompressed", max_message_bytes=1000) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    ("base", "largest", "second"),
    [
        (2**63 - 10, MAX_LONG, 100),
        (2**63 - 10, MIN_LONG + 89, 100),
        (2**63 - 10, START_MS, 100),
        (MIN_LONG, MIN_LONG, -100),
        (MIN_LONG, START_MS, -100),
    ],
)
def test_timestamps_beyond_64_bits_are_refused(base: int, largest: int, second: int) -> None:
    data = batch(b"a", timestamp=START_MS)
    data[HEADER_BYTES:] = _two_records(second)
    data[8:12] = struct.pack(">i", len(data) - 12)
    for index, value in ((6, 1), (12, 2), (7, base), (8, largest)):
        data = with_field(data, index, value)
    assert code_of(data) == ErrorCode.INVALID_TIMESTAMP


def _two_records(delta: int) -> bytes:
    """The bytes of two records, the second one ``delta`` ms after the first. 63 < abs(delta) < 8192."""
    zigzag = delta * 2 if delta > 0 else -delta * 2 - 1
    later = b"\x00" + bytes([zigzag & 0x7F | 0x80, zigzag >> 7]) + b"\x02\x01\x01\x00"
    return b"\x0c\x00\x00\x00\x01\x01\x00" + bytes([len(later) * 2]) + later


def test_timestamps_before_1970_are_accepted() -> None:
    assert validate(batch(b"a", b"b", timestamp=-86_400_000)).count == 2


def test_a_header_that_names_a_negative_maximum_below_a_records_timestamp_is_refused() -> None:
    assert code_of(with_field(batch(b"a"), 8, -86_400_000)) == ErrorCode.INVALID_TIMESTAMP


def test_more_records_than_the_bytes_can_hold_are_refused() -> None:
    data = batch(b"a")
    for index, value in ((6, 999), (12, 1000)):
        data = with_field(data, index, value)
    assert code_of(data) == ErrorCode.INVALID_RECORD
