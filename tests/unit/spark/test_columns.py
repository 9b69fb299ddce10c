"""Batches of the log as Arrow batches: the columns' values, ranges within batches, and hidden records."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the extra [spark]")

import pyarrow as pa

from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.compression import CompressionType, CorruptRecordError
from anabranch.protocol.key_placement import MOVED_HEADER
from anabranch.protocol.records import RecordBatch
from anabranch.spark import columns
from anabranch.spark.columns import ArrowBuilder
from anabranch.spark.offsets import Range

HEADER = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": HEADER,
    "leader_epoch": pa.int32(),
}
Raw = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
T0 = 1_700_000_000_000


def batch_of(records: list[Raw], base_offset: int = 0, **options: Any) -> RecordBatch:
    stamped = [(key, value, headers, T0 + at) for at, (key, value, headers) in enumerate(records)]
    return RecordBatch(build_batch(stamped, base_offset=base_offset, leader_epoch=3, **options))


def rows(
    batches: list[tuple[RecordBatch, bool]], start: int = 0, end: int = 1000, *, headers: bool = False
) -> list[dict[str, Any]]:
    schema = pa.schema([(name, kind) for name, kind in TYPES.items() if headers or name != "headers"])
    builder = ArrowBuilder(Range("t", 5, start, end, -1), schema)
    found = [*builder.add(batches), *builder.rest()]
    return [row for batch in found for row in batch.to_pylist()]


SOME: list[Raw] = [(b"a", b"1", []), (None, b"2", [("h", None)]), (b"b", None, [("h", b"x"), ("i", b"")])]


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZSTD])
def test_records_become_rows_with_all_columns(compression: CompressionType) -> None:
    found = rows([(batch_of(SOME, 7, compression=compression), True)], headers=True)
    assert [(row["key"], row["value"], row["offset"]) for row in found] == [
        (b"a", b"1", 7),
        (None, b"2", 8),
        (b"b", None, 9),
    ]
    last = found[2]
    assert last["timestamp"].timestamp() * 1000 == T0 + 2
    assert (last["topic"], last["partition"], last["timestampType"], last["leader_epoch"]) == ("t", 5, 0, 3)
    assert [row["headers"] for row in found] == [
        [],
        [{"key": "h", "value": None}],
        [{"key": "h", "value": b"x"}, {"key": "i", "value": b""}],
    ]
    without = rows([(batch_of(SOME, 7, compression=compression), True)])
    assert without == [{name: value for name, value in row.items() if name != "headers"} for row in found]


@pytest.mark.parametrize("headers", [False, True])
def test_a_range_within_batches_has_only_its_offsets(headers: bool) -> None:
    batches = [(batch_of(SOME, 0), True), (batch_of(SOME, 3), True), (batch_of(SOME, 6), True)]
    found = rows(batches, 1, 8, headers=headers)
    assert [row["offset"] for row in found] == [1, 2, 3, 4, 5, 6, 7]
    if headers:
        assert [len(row["headers"]) for row in found] == [1, 2, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
def test_tombstones_of_moved_keys_and_hidden_batches_are_left_out(compression: CompressionType) -> None:
    moved: list[Raw] = [
        (b"a", b"1", []),
        (b"b", None, [(MOVED_HEADER, b"")]),
        (b"c", None, []),
        (b"d", b"2", [(MOVED_HEADER, b"")]),
    ]
    batches = [(batch_of(moved, 0, compression=compression), True), (batch_of(SOME, 4), False)]
    assert [row["key"] for row in rows(batches)] == [b"a", b"c", b"d"]


def test_arrow_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "DECODED_BYTES", 100_000)
    schema = pa.schema([(name, kind) for name, kind in TYPES.items() if name != "headers"])
    builder = ArrowBuilder(Range("t", 5, 0, 10**6, -1), schema)
    large = [(batch_of([(b"k", b"v", [])] * 4000, at * 4000), True) for at in range(8)]
    found = [[batch.num_rows for batch in builder.add([each])] for each in large]
    assert found == [[], [], [10000, 2000], [], [], [10000, 2000], [], []]
    assert [batch.num_rows for batch in builder.rest()] == [8000]
    assert [*builder.rest()] == []


def test_a_malformed_batch_is_named() -> None:
    data = bytearray(batch_of(SOME).buffer)
    data[-1] ^= 2  # the length of the last header's value
    with pytest.raises(CorruptRecordError, match="header"):
        rows([(batch_of(SOME), True), (RecordBatch(bytes(data)), True)])


@pytest.mark.parametrize("unfit", [2**63 // 1000 + 1, 2**63 - 1, -(2**63) // 1000 - 1, -(2**63)])
def test_a_timestamp_that_spark_cannot_hold_is_null_and_named(unfit: int, caplog: pytest.LogCaptureFixture) -> None:
    batch = RecordBatch(build_batch([(b"k", b"v", (), T0)], base_offset=7))
    other = RecordBatch(build_batch([(b"k", b"w", (), unfit)], base_offset=8))
    edge = RecordBatch(build_batch([(b"k", b"x", (), columns.LATEST_MS)], base_offset=9))
    schema = pa.schema([(name, kind) for name, kind in TYPES.items() if name != "headers"])
    builder = ArrowBuilder(Range("t", 5, 0, 1000, -1), schema)
    found = pa.Table.from_batches([*builder.add([(one, True) for one in (batch, other, edge)]), *builder.rest()])
    assert found["value"].to_pylist() == [b"v", b"w", b"x"]
    micros = found["timestamp"].cast(pa.int64()).to_pylist()
    assert micros == [T0 * 1000, None, columns.LATEST_MS * 1000]
    assert f"t-5: the timestamp {unfit} of the record at offset 8 does not fit" in caplog.text
