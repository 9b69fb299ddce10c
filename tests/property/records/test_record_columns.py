"""Records as columns equal records as objects, and what is damaged is refused as there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.batch_builder import build_batch
from protocol.compression import CompressionType, CorruptRecordError
from protocol.record_columns import read_columns
from protocol.records import Record, RecordBatch

data = st.one_of(st.none(), st.binary(max_size=200))
headers = st.lists(st.tuples(st.text(max_size=5), data), max_size=2)
records = st.lists(st.tuples(data, data, headers, st.integers(0, 2**45)), min_size=1, max_size=20)


def as_columns(found: list[Record]) -> tuple[list[object], ...]:
    fields = [(r.offset, r.timestamp, r.key, r.value) for r in found]
    return tuple(list(column) for column in zip(*fields)) if fields else ([], [], [], [])


@given(records, st.integers(0, 2**40), st.sampled_from(CompressionType), st.booleans())
def test_columns_equal_records(
    found: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]],
    base_offset: int,
    compression: CompressionType,
    appended: bool,
) -> None:
    built = bytearray(build_batch(found, base_offset=base_offset, compression=compression))
    built[22] |= 8 if appended else 0  # LogAppendTime
    batch = RecordBatch(bytes(built))
    assert tuple(read_columns(batch)) == as_columns(batch.records())


@given(records, st.data())
def test_damage_raises_or_reads_what_records_read(
    found: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]], drawn: st.DataObject
) -> None:
    built = bytearray(build_batch(found))
    for _ in range(drawn.draw(st.integers(1, 3))):
        built[drawn.draw(st.integers(57, len(built) - 1))] = drawn.draw(st.integers(0, 255))
    batch = RecordBatch(bytes(built))
    try:
        expected = as_columns(batch.records())
    except CorruptRecordError:
        try:
            read_columns(batch)
        except CorruptRecordError:
            return
        return  # only headers, which columns do not have, are damaged
    assert tuple(read_columns(batch)) == expected


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_body_that_is_cut_short_is_refused(cut: int) -> None:
    built = build_batch([(b"key", b"value", [], 1)] * 5)
    with pytest.raises(CorruptRecordError):
        read_columns(RecordBatch(built[:-cut]))
