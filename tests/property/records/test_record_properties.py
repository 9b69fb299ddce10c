"""Round trips and damage over generated batches."""

import contextlib
import struct

from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.protocol.batch_builder import (
    BatchBuilder,
    build_batch,
    estimate_batch_bytes,
    retain_records,
    zigzag_varint,
)
from anabranch.protocol.compression import CompressionType, CorruptRecordError, compress, decompress
from anabranch.protocol.key_placement import ancestor_below, murmur2, place
from anabranch.protocol.produced_batch import validate_produce_batch
from anabranch.protocol.records import RecordBatch, iter_batches

fields = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=10), fields), max_size=4)
timestamps = st.integers(min_value=-1, max_value=1 << 48)
record_lists = st.lists(st.tuples(fields, fields, headers, timestamps), min_size=1, max_size=20)
codecs = st.sampled_from(list(CompressionType))


def plain(records) -> list[tuple]:
    return [(x.key, x.value, list(x.headers), x.timestamp) for x in records]


@given(record_lists, codecs, st.integers(0, 1 << 50))
def test_a_batch_is_read_back_by_us_and_by_aiokafka(records, codec, base_offset) -> None:
    raw = build_batch(records, compression=codec, base_offset=base_offset)
    batch = validate_produce_batch(raw, len(raw))
    assert plain(batch) == records
    assert [x.offset for x in batch] == list(range(base_offset, base_offset + len(records)))
    assert batch.max_timestamp == max(t for *_, t in records)
    assert plain(AioBatch(raw)) == records


@given(record_lists, codecs)
def test_reading_only_keys_gives_the_keys_of_the_records(records, codec) -> None:
    assert RecordBatch(build_batch(records, compression=codec)).keys() == [key for key, *_ in records]


@given(record_lists, st.data())
def test_keys_of_damaged_records_are_refused_or_read_as_the_records_are(records, data) -> None:
    raw = bytearray(build_batch(records))
    raw[data.draw(st.integers(61, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    batch = RecordBatch(raw)
    found = None
    with contextlib.suppress(CorruptRecordError):
        found = batch.keys()
    with contextlib.suppress(CorruptRecordError):
        assert [record.key for record in batch.records()] == found


@given(record_lists, codecs, st.data())
def test_any_retained_subset_of_records_keeps_its_offsets(records, codec, data) -> None:
    batch = RecordBatch(build_batch(records, compression=codec, base_offset=10))
    kept = [x for x in batch.records() if data.draw(st.booleans())]
    smaller = RecordBatch(retain_records(batch, kept))
    assert smaller.records() == kept
    assert (smaller.base_offset, smaller.last_offset) == (batch.base_offset, batch.last_offset)


@given(record_lists, codecs, st.integers(100, 4000))
def test_the_size_limit_holds_for_all_but_a_single_record(records, codec, limit) -> None:
    builder = BatchBuilder(codec, limit)
    taken = [x for x in records if builder.append(*x) is not None]
    raw = builder.build()
    assert len(raw) <= limit or len(taken) == 1
    assert len(raw) <= max(limit, estimate_batch_bytes(*taken[0][:3]))


@given(record_lists, codecs, st.data())
def test_any_flip_under_the_crc_is_detected(records, codec, data) -> None:
    raw = bytearray(build_batch(records, compression=codec))
    at = data.draw(st.integers(21, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    assert not RecordBatch(raw).verify_crc()


@given(record_lists, codecs, st.data())
@settings(max_examples=300)
def test_a_damaged_batch_gives_records_or_a_corrupt_record_error(records, codec, data) -> None:
    """A hostile client can compute a correct CRC. Reading its bytes gives records or this error, and no other."""
    raw = bytearray(build_batch(records, compression=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        for batch in iter_batches(raw, max_decompressed_bytes=1 << 20):
            plain(batch)
    except CorruptRecordError:
        pass


@given(st.binary(max_size=400), st.integers(0, 40), codecs)
def test_any_body_gives_the_number_of_records_in_the_header_or_an_error(body, count, codec) -> None:
    header = bytearray(build_batch([(None, None, (), 0)])[:61])
    struct.pack_into(">i", header, 8, 49 + len(body))
    struct.pack_into(">h", header, 21, int(codec))
    struct.pack_into(">i", header, 23, count)
    struct.pack_into(">i", header, 57, count)
    try:
        found = RecordBatch(header + body, max_decompressed_bytes=1 << 20).records()
    except CorruptRecordError:
        return
    assert len(plain(found)) == count


@given(st.binary(max_size=300))
def test_any_bytes_give_batches_or_a_corrupt_record_error(raw) -> None:
    try:
        for batch in iter_batches(raw, allow_partial_tail=True):
            batch.records()
    except CorruptRecordError:
        pass


@given(st.sampled_from(list(CompressionType)), st.binary(max_size=5000))
def test_codecs_round_trip(codec, data) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data


@given(st.sampled_from(list(CompressionType)[1:]), st.binary(max_size=500))
def test_decompressing_random_bytes_stays_within_the_limit_or_is_refused(codec, data) -> None:
    with contextlib.suppress(CorruptRecordError):
        assert len(decompress(codec, data, 1 << 16)) <= 1 << 16


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varints_follow_the_definition(value) -> None:
    z = (value << 1) ^ (value >> 63)
    digits = []
    while True:
        z, low = divmod(z & (1 << 64) - 1, 128)
        digits.append(low)
        if not z:
            break
    assert zigzag_varint(value) == bytes(d | 0x80 for d in digits[:-1]) + bytes(digits[-1:])


def place_bit_by_bit(h: int, initial: int, undeleted: int) -> int:
    """Place by Litwin's linear hashing, split by split.

    Bucket ``s`` of a level splits when the count passes ``m + s``.
    """
    m = initial
    p = h % m
    for count in range(initial, undeleted):
        if count == 2 * m:
            m *= 2
        split = count - m
        if p == split and h % (2 * m) == count:
            p = count
    return p


@given(st.binary(max_size=40), st.integers(1, 12), st.integers(0, 90), st.integers(0, 90))
def test_keys_move_only_along_the_tree(key, initial, more, fewer) -> None:
    h = murmur2(key) & 0x7FFFFFFF
    big, small = initial + max(more, fewer), initial + min(more, fewer)
    p = place(h, initial, big)
    assert p == place_bit_by_bit(h, initial, big)
    assert ancestor_below(p, initial, small) == place(h, initial, small)
