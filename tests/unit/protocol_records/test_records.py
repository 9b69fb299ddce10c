"""Record batches: oracles in both directions, every rule of a produce batch, and every kind of damage."""

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from kafka import codec as kafka_python_codec
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from anabranch.protocol import batch_builder as b
from anabranch.protocol import batch_layout as layout
from anabranch.protocol import records as r
from anabranch.protocol.batch_builder import BatchBuilder, build_batch
from anabranch.protocol.compression import CompressionType, CorruptRecordError, compress
from anabranch.protocol.control_records import read_control_record
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.produced_batch import read_header, validate_produce_batch
from anabranch.protocol.records import RecordBatch, iter_batches
from anabranch.protocol.sentinels import NO_SEQUENCE
from tests.support.log.batches import build_control_batch

CODECS = list(CompressionType)
T0 = 1_700_000_000_000
RECORDS = [
    (None, b"value without key", [], T0),
    (b"key", None, [], T0 + 5),
    (b"", b"", [], T0 - 70_000),
    (b"k" * 64, b"v" * 300, [("name", b"content"), ("null", None), ("", b"")], T0 + 1_000_000),
    (b"k" * 5000, b"v" * 20_000, [("ä", b"\xff" * 200)], T0),
]


def plain(records) -> list[tuple]:
    return [(x.key, x.value, list(x.headers), x.timestamp) for x in records]


def resealed(batch: bytes | bytearray) -> bytearray:
    """Return the batch with a CRC that matches its bytes."""
    out = bytearray(batch)
    struct.pack_into(">I", out, 17, RecordBatch(out).compute_crc())
    return out


def patched(batch: bytes, fmt: str, at: int, value: int) -> bytes:
    out = bytearray(batch)
    struct.pack_into(fmt, out, at, value)
    return bytes(resealed(out))


def around(
    body: bytes, count: int, codec: CompressionType = CompressionType.NONE, last_delta: int | None = None
) -> bytes:
    """Return a batch with a well-formed header around any body."""
    header = bytearray(build_batch([(None, None, (), T0)])[:61])
    struct.pack_into(">i", header, 8, 49 + len(body))
    struct.pack_into(">h", header, 21, int(codec))
    struct.pack_into(">i", header, 23, count - 1 if last_delta is None else last_delta)
    struct.pack_into(">i", header, 57, count)
    return bytes(resealed(header + body))


# ---------------------------------------------------------------- oracles


@pytest.mark.parametrize("codec", CODECS)
def test_aiokafka_reads_our_batches(codec: CompressionType) -> None:
    raw = build_batch(RECORDS, compression=codec, producer_id=7, producer_epoch=2, base_sequence=11)
    batch = AioBatch(raw)
    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, 11)
    assert plain(batch) == RECORDS


@pytest.mark.parametrize("codec", CODECS)
def test_we_read_batches_of_aiokafka(codec: CompressionType) -> None:
    builder = AioBuilder(2, int(codec), 1, 7, 2, 11, 1 << 20)
    for offset, (key, value, headers, timestamp) in enumerate(RECORDS):
        builder.append(offset, timestamp, key, value, headers)
    batch = validate_produce_batch(builder.build(), 1 << 20)
    assert batch.compression is codec
    assert batch.is_transactional and not batch.is_control
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (7, 2, 11, 15)
    assert plain(batch) == RECORDS


def skip_without(codec: CompressionType) -> None:
    name = codec.name.lower()
    if codec is not CompressionType.NONE and not getattr(kafka_python_codec, f"has_{name}")():
        pytest.skip(f"kafka-python has no {name} library installed")


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_reads_our_batches(codec: CompressionType) -> None:
    skip_without(codec)
    raw = build_batch(RECORDS, compression=codec, base_offset=100, leader_epoch=4)
    theirs = MemoryRecords(raw)
    batch = theirs.next_batch()
    assert batch.validate_crc()
    got = list(batch)
    assert [x.offset for x in got] == list(range(100, 105))
    assert plain(got) == RECORDS


@pytest.mark.parametrize("codec", CODECS)
def test_we_read_batches_of_kafka_python(codec: CompressionType) -> None:
    skip_without(codec)
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=1 << 20)
    for key, value, headers, timestamp in RECORDS:
        builder.append(timestamp, key, value, headers)
    builder.close()
    batch = validate_produce_batch(builder.buffer(), 1 << 20)
    assert plain(batch) == RECORDS


# ---------------------------------------------------------------- header view


def test_the_fields_of_records_are_those_of_each_record() -> None:
    read = RecordBatch(build_batch(RECORDS)).records()
    assert list(zip(*r.fields(read), strict=True)) == [
        (x.offset, x.timestamp, x.key, x.value, list(x.headers)) for x in read
    ]
    assert r.fields([]) == ([], [], [], [], [])


def test_a_batch_reads_the_fields_of_its_header() -> None:
    raw = build_batch(
        RECORDS, base_offset=1000, leader_epoch=9, producer_id=5, producer_epoch=1, base_sequence=2**31 - 3
    )
    batch = RecordBatch(memoryview(raw))
    assert (batch.base_offset, batch.last_offset, batch.next_offset) == (1000, 1004, 1005)
    assert (batch.length, batch.magic, batch.count, batch.partition_leader_epoch) == (len(raw), 2, 5, 9)
    assert (batch.base_timestamp, batch.max_timestamp) == (T0, T0 + 1_000_000)
    assert batch.timestamp_type == layout.CREATE_TIME
    assert batch.last_sequence == 1, "sequences wrap from 2**31 - 1 to 0"
    assert [x.offset for x in batch] == list(range(1000, 1005))
    assert batch.verify_crc()


def test_a_batch_without_a_sequence_has_no_last_sequence() -> None:
    assert RecordBatch(build_batch(RECORDS)).last_sequence == NO_SEQUENCE


def test_rewriting_the_base_offset_does_not_change_the_crc() -> None:
    raw = bytearray(build_batch(RECORDS))
    r.set_base_offset(memoryview(raw), 1 << 40, 77)
    batch = RecordBatch(raw)
    assert (batch.base_offset, batch.partition_leader_epoch) == (1 << 40, 77)
    assert batch.verify_crc()


def test_log_append_time_is_every_records_time() -> None:
    raw = bytearray(build_batch(RECORDS))
    r.set_log_append_time(raw, 42)
    batch = RecordBatch(raw)
    assert batch.verify_crc()
    assert (batch.timestamp_type, batch.max_timestamp) == (layout.LOG_APPEND_TIME, 42)
    assert {x.timestamp for x in batch} == {42}
    assert {x.timestamp for x in AioBatch(raw)} == {42}


# ---------------------------------------------------------------- builder


@pytest.mark.parametrize("limit", [200, 1000, 16384])
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_stays_within_its_size_limit(codec: CompressionType, limit: int) -> None:
    builder = BatchBuilder(codec, limit)
    count = 0
    while builder.append(b"key-%d" % count, b"value" * (count % 9), [("h", b"x")], T0 + count) is not None:
        count += 1
        assert count < limit
    raw = builder.build()
    assert len(raw) <= limit
    assert builder.size_bytes <= limit
    assert RecordBatch(raw).count == count > 0


def test_the_first_record_always_fits() -> None:
    builder = BatchBuilder(max_bytes=100)
    assert builder.append(None, b"x" * 1000, (), T0) == 0
    assert builder.append(None, b"y", (), T0) is None
    assert [x.value for x in RecordBatch(builder.build())] == [b"x" * 1000]


def test_a_lower_expected_compression_ratio_lets_a_batch_take_more_records() -> None:
    def filled(ratio: float) -> int:
        builder = BatchBuilder(CompressionType.LZ4, 1000, compression_ratio=ratio)
        while builder.append(None, b"same" * 10, (), T0) is not None:
            pass
        return builder.count

    assert filled(0.25) > 3 * filled(1.0)


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_compression_does_not_shrink_stays_uncompressed(codec: CompressionType) -> None:
    raw = build_batch([(None, b"ab", (), T0)], compression=codec)
    assert RecordBatch(raw).compression is CompressionType.NONE


def test_estimates_of_a_batch_size_are_never_too_low() -> None:
    for key, value, headers, timestamp in RECORDS:
        assert len(build_batch([(key, value, headers, timestamp)])) <= b.estimate_batch_bytes(key, value, headers)


# ---------------------------------------------------------------- compaction and control batches


def test_retained_records_keep_their_offsets() -> None:
    batch = RecordBatch(build_batch(RECORDS, base_offset=50, producer_id=3, producer_epoch=0, base_sequence=8))
    kept = batch.records()[1:4:2]
    smaller = RecordBatch(b.retain_records(batch, kept))
    assert smaller.records() == kept
    assert (smaller.base_offset, smaller.last_offset, smaller.count) == (50, 54, 2)
    assert (smaller.producer_id, smaller.base_sequence, smaller.last_sequence) == (3, 8, 12)
    assert smaller.verify_crc()


def test_a_batch_left_empty_keeps_its_producer_state() -> None:
    batch = RecordBatch(build_batch(RECORDS, base_offset=50, producer_id=3, producer_epoch=0, base_sequence=8))
    empty = RecordBatch(b.retain_records(batch, []))
    assert empty.records() == []
    assert (empty.length, empty.count, empty.last_offset, empty.last_sequence) == (61, 0, 54, 12)
    assert empty.max_timestamp == batch.max_timestamp
    assert [x.next_offset for x in iter_batches(empty.buffer)] == [55]


def test_a_delete_horizon_replaces_the_base_timestamp_only() -> None:
    batch = RecordBatch(build_batch(RECORDS))
    marked = RecordBatch(b.retain_records(batch, batch.records(), delete_horizon_ms=T0 + 99))
    assert marked.has_delete_horizon
    assert marked.base_timestamp == T0 + 99
    assert plain(marked) == RECORDS
    again = RecordBatch(b.retain_records(marked, marked.records()))
    assert again.has_delete_horizon and again.base_timestamp == T0 + 99


@pytest.mark.parametrize("kind", [layout.CONTROL_ABORT, layout.CONTROL_COMMIT])
def test_control_batches_are_read_by_us_and_by_kafka_python(kind: int) -> None:
    batch = RecordBatch(build_control_batch(kind, 9, 1, 33, T0, base_offset=7))
    assert batch.is_control and batch.is_transactional and batch.verify_crc()
    (record,) = batch
    assert record.key == struct.pack(">hh", 0, kind)
    assert read_control_record(record) == (kind, 33)
    theirs = MemoryRecords(bytes(batch.buffer)).next_batch()
    assert theirs.is_control_batch


@pytest.mark.parametrize(
    ("key", "value"), [(None, b""), (b"\0\0\0", b""), (b"\0\0\0\1", b"\0\0"), (b"\xff\xff\0\0", None)]
)
def test_malformed_control_records_are_refused(key: bytes | None, value: bytes | None) -> None:
    (record,) = RecordBatch(build_batch([(key, value, (), T0)]))
    with pytest.raises(CorruptRecordError):
        read_control_record(record)


# ---------------------------------------------------------------- batches that a broker refuses


def refusal(raw: bytes, max_bytes: int = 1 << 20) -> ErrorCode:
    with pytest.raises(CorruptRecordError) as caught:
        validate_produce_batch(raw, max_bytes)
    return caught.value.code


GOOD = build_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=0)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (GOOD + GOOD, ErrorCode.INVALID_RECORD),
        (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
        (GOOD[:40], ErrorCode.CORRUPT_MESSAGE),
        (patched(GOOD, ">b", 16, 0), ErrorCode.INVALID_RECORD),
        (patched(GOOD, ">b", 16, 1), ErrorCode.INVALID_RECORD),
        (patched(GOOD, ">b", 16, 3), ErrorCode.CORRUPT_MESSAGE),
        (patched(GOOD, ">i", 8, 48), ErrorCode.CORRUPT_MESSAGE),
        (patched(GOOD, ">i", 8, -1), ErrorCode.CORRUPT_MESSAGE),
        (patched(GOOD, ">i", 57, 4), ErrorCode.INVALID_RECORD),
        (patched(GOOD, ">i", 57, 0), ErrorCode.INVALID_RECORD),
        (patched(GOOD, ">i", 57, -5), ErrorCode.INVALID_RECORD),
        (patched(GOOD, ">i", 23, 5), ErrorCode.INVALID_RECORD),
        (patched(GOOD, ">i", 53, -1), ErrorCode.INVALID_RECORD),
        (patched(GOOD, ">h", 51, -1), ErrorCode.INVALID_RECORD),
        (patched(GOOD, ">h", 21, 0x20), ErrorCode.INVALID_RECORD),
        (patched(GOOD, ">h", 21, 0x05), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (patched(build_batch(RECORDS), ">h", 21, 0x10), ErrorCode.INVALID_RECORD),
        (GOOD[:-1] + b"\xee", ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_an_invalid_produce_batch_is_refused_with_its_error_code(raw: bytes, code: ErrorCode) -> None:
    assert refusal(raw) == code


def test_an_oversize_batch_is_refused() -> None:
    assert refusal(GOOD, len(GOOD) - 1) == ErrorCode.MESSAGE_TOO_LARGE
    assert validate_produce_batch(GOOD, len(GOOD)).count == len(RECORDS)


def test_every_cut_of_a_produce_batch_is_refused() -> None:
    for end in range(len(GOOD)):
        assert refusal(GOOD[:end]) in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


def test_every_flipped_bit_under_the_crc_is_refused() -> None:
    raw = build_batch(RECORDS[:3])
    for at in range(21, len(raw)):
        for bit in range(8):
            flipped = bytearray(raw)
            flipped[at] ^= 1 << bit
            assert refusal(flipped) == ErrorCode.CORRUPT_MESSAGE


# ---------------------------------------------------------------- batches that a reader refuses


def test_batches_back_to_back_are_read_one_after_the_other() -> None:
    raw = build_batch(RECORDS) + build_batch(RECORDS[:2], base_offset=5) + build_batch(RECORDS[1:], base_offset=7)
    assert [(b.base_offset, b.count) for b in iter_batches(raw)] == [(0, 5), (5, 2), (7, 4)]


@pytest.mark.parametrize("left", [1, 11, 12, 16, 17, 60, 61, 70])
def test_a_partial_tail_is_skipped_only_where_that_is_allowed(left: int) -> None:
    whole = build_batch(RECORDS)
    raw = whole + whole[:left]
    assert [b.length for b in iter_batches(raw, allow_partial_tail=True)] == [len(whole)]
    with pytest.raises(CorruptRecordError, match="cut short"):
        list(iter_batches(raw))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_named(magic: int) -> None:
    with pytest.raises(CorruptRecordError, match=f"magic {magic}") as caught:
        list(iter_batches(patched(GOOD, ">b", 16, magic), allow_partial_tail=True))
    assert caught.value.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


@pytest.mark.parametrize(("at", "value"), [(57, -1), (57, 6), (23, -1)])
def test_impossible_counts_are_refused_by_the_header(at: int, value: int) -> None:
    with pytest.raises(CorruptRecordError, match="claims"):
        list(iter_batches(patched(GOOD, ">i", at, value)))


def varint(value: int) -> bytes:
    return b.zigzag_varint(value)


def record(body: bytes) -> bytes:
    return varint(len(body)) + body


NORMAL = record(b"\0\0\0" + varint(1) + b"k" + varint(1) + b"v" + b"\0")
DAMAGED = {
    "record length zero": varint(0) + b"\0" * 6,
    "record length negative": varint(-1) + b"\0" * 6,
    "record longer than the batch": varint(100) + b"\0" * 6,
    "key length -2": record(b"\0\0\0" + varint(-2) + b"\1\0\0"),
    "key beyond the record": record(b"\0\0\0" + varint(50) + b"k\1\0\0"),
    "value length -2": record(b"\0\0\0\1" + varint(-2) + b"\0\0"),
    "value beyond the record": record(b"\0\0\0\1" + varint(9) + b"\0\0"),
    "header count negative": record(b"\0\0\0\1\1" + varint(-1)),
    "header count beyond the record": record(b"\0\0\0\1\1" + varint(1 << 30)),
    "null header key": record(b"\0\0\0\1\1" + varint(1) + varint(-1) + b"\1\0"),
    "header key beyond the record": record(b"\0\0\0\1\1" + varint(1) + varint(10) + b"\1\0"),
    "header value -2": record(b"\0\0\0\1\1" + varint(1) + varint(1) + b"h" + varint(-2)),
    "header value beyond the record": record(b"\0\0\0\1\1" + varint(1) + varint(1) + b"h" + varint(9)),
    "bytes left in the record": record(b"\0\0\0\1\1\0" + b"x"),
    "fields past the record": varint(6) + b"\0\0\0\1" + varint(2) + b"vv\0",
    "offset delta negative": record(b"\0\0" + varint(-1) + b"\1\1\0"),
    "offset delta beyond the last": record(b"\0\0" + varint(7) + b"\1\1\0"),
    "offset delta over 32 bits": record(b"\0\0" + b"\xfe\xff\xff\xff\x1f" + b"\1\1\0"),
    "timestamp over 64 bits": record(b"\0" + b"\xff" * 9 + b"\x02" + b"\0\1\1\0"),
    "varint without end": record(b"\0" + b"\xff" * 12),
    "batch ends inside a varint": varint(6) + b"\0\0\0\1\1\x80",
    "bytes after the last record": NORMAL + b"\0",
    "nothing at all": b"",
    "another batch inside": GOOD,
}


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP])
@pytest.mark.parametrize("body", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_records_under_a_good_crc_are_refused(body: bytes, codec: CompressionType) -> None:
    (batch,) = iter_batches(around(compress(codec, body), 1, codec))
    assert batch.verify_crc()
    with pytest.raises(CorruptRecordError):
        batch.records()


def test_the_helper_around_makes_a_valid_batch_from_a_valid_body() -> None:
    assert [x.key for x in RecordBatch(around(NORMAL, 1))] == [b"k"]


def test_offsets_that_repeat_are_refused() -> None:
    with pytest.raises(CorruptRecordError, match="out of order"):
        RecordBatch(around(NORMAL + NORMAL, 2)).records()


def test_a_count_beyond_the_bytes_is_refused_before_the_first_record() -> None:
    (batch,) = iter_batches(around(NORMAL, 1 << 30))
    with pytest.raises(CorruptRecordError, match="claims 1073741824 records"):
        batch.records()


@pytest.mark.parametrize("codec", CODECS[1:])
def test_nested_compression_is_refused(codec: CompressionType) -> None:
    """A v2 batch is compressed once, so a compressed body inside a compressed body is no record."""
    inner = compress(codec, NORMAL * 20)
    with pytest.raises(CorruptRecordError):
        RecordBatch(around(compress(codec, inner), 1, codec)).records()


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_bomb_is_refused_when_its_records_are_read(codec: CompressionType) -> None:
    bomb = around(compress(codec, bytes(8 << 20)), 1000, codec)
    (batch,) = iter_batches(bomb, max_decompressed_bytes=1 << 20)
    with pytest.raises(CorruptRecordError) as caught:
        batch.records()
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_an_unknown_codec_is_refused_when_records_are_read() -> None:
    (batch,) = iter_batches(patched(GOOD, ">h", 21, 6))
    with pytest.raises(CorruptRecordError, match="compression type 6"):
        batch.records()


def test_a_header_name_that_is_no_utf8_does_not_stop_a_reader() -> None:
    body = record(b"\0\0\0\1\1" + varint(1) + varint(2) + b"\xff\xfe" + varint(1) + b"v")
    ((name, content),) = RecordBatch(around(body, 1)).records()[0].headers
    assert (name, content) == ("\ufffd\ufffd", b"v")


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 1 << 20, 1 << 21])
def test_keys_are_found_whatever_the_length_of_their_records(size: int) -> None:
    keys = [b"first", None, b"", b"k" * size, b"last"]
    batch = build_batch([(key, b"v" * size, [("h", b"x" * size)], 1 << 40) for key in keys])
    assert RecordBatch(batch).keys() == keys


def test_records_compare_by_content() -> None:
    one, two = RecordBatch(build_batch([(b"k", b"v", (), T0)] * 2)).records()
    assert one != two
    assert one == RecordBatch(build_batch([(b"k", b"v", (), T0)])).records()[0]
    assert "key=b'k'" in repr(one)


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4])
@pytest.mark.parametrize("some", [1, 7, 25, 100])
def test_records_read_in_steps_equal_records_read_at_once(codec: CompressionType, some: int) -> None:
    whole = build_batch([(b"%d" % n, b"v", [("h", b"1")], T0 + n) for n in range(25)], compression=codec)
    batch = RecordBatch(whole)
    assert len(list(batch.read_in_steps(some))) == -(-25 // some)
    assert batch.is_read and plain(batch.records()) == plain(RecordBatch(whole).records())
    assert batch.keys() == RecordBatch(whole).keys()
    other = RecordBatch(bytearray(whole))
    other.take_over(batch)
    assert other.is_read and plain(other.records()) == plain(batch.records())


@pytest.mark.parametrize("cut", [1, 40])
def test_reading_in_steps_finds_the_same_fault_as_reading_at_once(cut: int) -> None:
    whole = build_batch([(b"%d" % n, b"v", [], T0) for n in range(25)])
    damaged = bytes(whole[:-cut]) + b"\xff" * cut
    with pytest.raises(CorruptRecordError) as expected:
        RecordBatch(damaged).records()
    batch = RecordBatch(damaged)
    list(batch.read_in_steps(7))
    assert not batch.is_read
    for asked in (batch.records, batch.keys):
        with pytest.raises(CorruptRecordError) as found:
            asked()
        assert str(found.value) == str(expected.value)


def test_a_batch_of_too_many_records_is_refused_before_one_is_read() -> None:
    count = layout.MAX_BATCH_ELEMENTS + 1
    whole = bytearray(61) + bytes(7 * count)
    layout.HEADER.pack_into(whole, 0, 0, len(whole) - 12, 0, 2, 0, 0, count - 1, 0, 0, -1, -1, -1, count)
    struct.pack_into(">I", whole, layout.CRC_AT, RecordBatch(whole).compute_crc())
    assert refusal(bytes(whole), len(whole)) == ErrorCode.INVALID_RECORD
    with pytest.raises(CorruptRecordError, match=f"{count} records, {count - 1} are allowed"):
        RecordBatch(whole).records()
    with pytest.raises(CorruptRecordError, match=f"{count} records, {count - 1} are allowed"):
        RecordBatch(whole).keys()


def test_a_record_of_too_many_headers_is_refused_before_one_is_read() -> None:
    count = layout.MAX_BATCH_ELEMENTS + 1
    body = b"\x00\x00\x00\x01\x01" + b._varint(count) + bytes(2 * count)
    body = b._varint(len(body)) + body
    whole = bytearray(61) + body
    layout.HEADER.pack_into(whole, 0, 0, len(whole) - 12, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    with pytest.raises(CorruptRecordError, match=f"claims {count} headers"):
        RecordBatch(whole).records()


def test_a_control_batch_is_not_decompressed_beyond_the_size_of_a_marker() -> None:
    marker = RecordBatch(build_control_batch(1, 9, 0, 3, 5)).control_record()
    assert marker is not None and read_control_record(marker) == (1, 3)
    large = build_batch(
        [(b"k", bytes(layout.MAX_CONTROL_BYTES), (), 5)], is_control=True, compression=CompressionType.ZSTD
    )
    with pytest.raises(CorruptRecordError, match="more than the 65536 bytes"):
        RecordBatch(large).control_record()


def test_records_are_read_in_steps_of_bounded_bytes() -> None:
    value = bytes(layout.SMALL_BODY_BYTES // 2 + 1)
    batch = RecordBatch(build_batch([(b"k", value, (), n) for n in range(6)]))
    assert sum(step is None for step in batch.read_in_steps(1000)) == 3
    assert len(batch.records()) == 6


def test_a_header_that_was_read_before_the_checks_is_not_read_again() -> None:
    header = read_header(memoryview(GOOD))
    assert header is not None
    assert validate_produce_batch(GOOD, len(GOOD), header) is header


def test_a_header_that_was_read_before_the_checks_is_checked() -> None:
    spoiled = memoryview(GOOD[:-1] + bytes([GOOD[-1] ^ 1]))
    with pytest.raises(CorruptRecordError, match="CRC32C"):
        validate_produce_batch(spoiled, len(spoiled), read_header(spoiled))
