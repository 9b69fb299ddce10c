"""Rows from segment files: each fault is a row, and each changed byte is found."""

import io

import pyarrow as pa
import pytest

from anabranch.audit.columns import CHECK_SCHEMA, PUBLIC_SCHEMA, Rows, SegmentSource, names_of
from anabranch.audit.crc_locate import locate_changed_byte
from anabranch.audit.manifest import LayoutLine, Manifest, PartitionEntry
from anabranch.audit.order_field import OrderField, OrderFieldError
from anabranch.audit.report import AuditReport, Check, Violation
from anabranch.audit.segment_reader import Row
from anabranch.audit.segment_scan import scan
from anabranch.protocol.batch_builder import build_batch, retain_records
from anabranch.protocol.batch_layout import CONTROL_ABORT
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.key_placement import MOVED_HEADER, place, positive_hash
from anabranch.protocol.records import RecordBatch
from tests.support.audit.naive import read_segment
from tests.support.log.batches import build_control_batch

T0 = 1_700_000_000_000
RECORDS = [(b"key-%d" % n, b"%d\tvalue" % n, (), T0 + n) for n in range(10)]
FIRST = build_batch(RECORDS, base_offset=0)
SECOND = build_batch(RECORDS, base_offset=10, compression=CompressionType.ZSTD)


def rows_of(data: bytes) -> list[Row]:
    return list(read_segment(io.BytesIO(data), len(data)))


def offsets(rows: list[Row]) -> list[int | None]:
    return [row.record.offset if row.record else None for row in rows]


def test_good_batches_give_a_row_for_each_record() -> None:
    rows = rows_of(FIRST + SECOND)
    assert offsets(rows) == list(range(20))
    assert [n for n, row in enumerate(rows) if row.batch_start] == [0, 10]
    assert {(row.position, row.crc_ok, row.error) for row in rows} == {(0, True, None), (len(FIRST), True, None)}


@pytest.mark.parametrize("at", range(21, len(FIRST)))
def test_any_changed_byte_is_an_error_row_and_the_next_batch_is_read(at: int) -> None:
    data = bytearray(FIRST + SECOND)
    data[at] ^= 0x41
    rows = rows_of(bytes(data))
    assert offsets(rows)[-10:] == list(range(10, 20))
    damaged = rows[:-10]
    assert all(not row.crc_ok and row.error for row in damaged)
    assert f"changed byte at {at} of the file" in (damaged[0].error or "")


def test_a_changed_byte_in_a_record_names_the_record() -> None:
    data = bytearray(FIRST)
    data[data.index(b"key-7")] ^= 1
    row = rows_of(bytes(data))[0]
    assert row.suspect_offset == 7
    assert "in the record with offset 7" in (row.error or "")


def test_two_changed_bytes_name_the_batch() -> None:
    data = bytearray(FIRST)
    data[100] ^= 1
    data[180] ^= 1
    row = rows_of(bytes(data))[0]
    assert row.suspect_offset is None
    assert "offsets 0-9" in (row.error or "")


@pytest.mark.parametrize("cut", [1, 11, 12, 30, 60, 61, 100])
def test_a_torn_tail_is_one_row(cut: int) -> None:
    rows = rows_of(FIRST + SECOND[:cut])
    assert offsets(rows) == [*range(10), None]
    assert "cannot be read from here on" in (rows[-1].error or "")


@pytest.mark.parametrize("length", [-1, 0, 48, 1 << 30])
def test_a_damaged_length_ends_the_file(length: int) -> None:
    data = FIRST[:8] + length.to_bytes(4, "big", signed=True) + FIRST[12:] + SECOND
    rows = rows_of(data)
    assert offsets(rows) == [None]
    assert rows[0].batch is None and rows[0].error


def test_an_old_message_format_is_named() -> None:
    data = bytearray(FIRST)
    data[16] = 1
    rows = rows_of(bytes(data) + SECOND)
    assert "magic 1" in (rows[0].error or "")
    assert offsets(rows) == [None, *range(10, 20)]


def test_a_malformed_body_under_a_good_crc_is_an_error_row() -> None:
    data = bytearray(FIRST)
    data[-1] = 0x7E
    data[17:21] = RecordBatch(data).compute_crc().to_bytes(4, "big")
    (row,) = rows_of(bytes(data))
    assert row.crc_ok and row.record is None and "offsets 0-9" in (row.error or "")


def test_a_batch_without_records_is_no_error() -> None:
    (row,) = rows_of(retain_records(RecordBatch(FIRST), []))
    assert (row.record, row.error, row.crc_ok, row.batch_start) == (None, None, True, True)


@pytest.mark.parametrize("size", [1, 2, 50, 3000])
def test_a_changed_byte_is_located_from_the_two_crcs(size: int) -> None:
    from fastcrc import crc32

    data = bytes(n * 7 & 0xFF for n in range(size))
    for at in {0, size // 3, size - 1}:
        changed = bytearray(data)
        changed[at] ^= 0x80
        assert locate_changed_byte(crc32.iscsi(data), crc32.iscsi(changed), size) == at
    assert locate_changed_byte(crc32.iscsi(data), crc32.iscsi(data), size) is None


# ---------------------------------------------------------------- columns


def arrow_rows(
    data: bytes, *, checks: bool = True, topic: str = "t", partition: int = 2, order_by=None, layouts=()
) -> list[dict]:
    manifest = Manifest(topic, "delete", 4, 4, [])
    source = SegmentSource(manifest, PartitionEntry(partition, 0, 20, [], list(layouts)), "t-2/0.log")
    columns = names_of(f"{PUBLIC_SCHEMA}, {CHECK_SCHEMA}" if checks else PUBLIC_SCHEMA)
    order = OrderField(order_by) if order_by else None
    return [
        row for run in scan(io.BytesIO(data), len(data)) for row in Rows(source, run, order).arrow(columns).to_pylist()
    ]


def test_a_public_row_has_every_value_of_its_record() -> None:
    raw = build_batch(
        [(b"k", None, [("h", b"x"), ("n", None)], T0)] * 2,
        base_offset=5,
        leader_epoch=3,
        producer_id=9,
        producer_epoch=1,
        base_sequence=2**31 - 1,
        is_transactional=True,
    )
    first, second = arrow_rows(raw, checks=False)
    assert list(first) == names_of(PUBLIC_SCHEMA)
    assert first == {
        "topic": "t",
        "partition": 2,
        "segment": "t-2/0.log",
        "position": 0,
        "base_offset": 5,
        "offset": 5,
        "leader_epoch": 3,
        "timestamp": T0,
        "timestamp_type": 0,
        "key": b"k",
        "value": None,
        "headers": [{"key": "h", "value": b"x"}, {"key": "n", "value": None}],
        "producer_id": 9,
        "producer_epoch": 1,
        "sequence": 2**31 - 1,
        "is_control": False,
        "is_transactional": True,
        "codec": "none",
        "layout_version": 0,
        "batch_crc_ok": True,
        "error": None,
    }
    assert (second["offset"], second["sequence"]) == (6, 0)


def test_a_row_for_the_checks_has_order_placement_and_layout() -> None:
    rows = arrow_rows(FIRST, order_by="tsv:0")
    assert list(rows[0]) == names_of(f"{PUBLIC_SCHEMA}, {CHECK_SCHEMA}")
    assert [row["order_value"] for row in rows] == list(range(10))
    assert [row["expected_partition"] for row in rows] == [place(positive_hash(key), 4, 4) for key, *_ in RECORDS]
    assert {(row["layout_version"], row["last_offset"], row["record_count"]) for row in rows} == {(0, 9, 10)}


def test_placement_follows_the_layout_of_the_leader_epoch() -> None:
    layouts = [LayoutLine(0, 4, 4, 0), LayoutLine(5, 4, 7, 1)]
    rows = arrow_rows(build_batch(RECORDS, leader_epoch=5), layouts=layouts)
    assert [row["expected_partition"] for row in rows] == [place(positive_hash(key), 4, 7) for key, *_ in RECORDS]
    assert {row["layout_version"] for row in rows} == {1}


@pytest.mark.parametrize(
    ("layouts", "partition", "value", "expected"),
    [
        pytest.param([4, 16], 2, None, 2, id="in its first partition"),
        pytest.param([8, 16], 6, None, 6, id="in a partition in between"),
        pytest.param([16], 6, None, 14, id="in a partition that never had the key"),
        pytest.param([4, 16], 3, None, 14, id="in no ancestor"),
        pytest.param([4, 16], 2, b"0\tvalue", 14, id="with a value"),
    ],
)
def test_a_moved_keys_tombstone_may_be_in_an_earlier_partition_of_the_key(
    layouts: list[int], partition: int, value: bytes | None, expected: int
) -> None:
    """The tombstone of a moved key may be in the key's earlier partition (KIP-253, section 9).

    With 4 partitions the key is in partition 2, with 8 in partition 6, and with 16 in partition 14.
    """
    key = next(b"key-%d" % n for n in range(1000) if place(positive_hash(b"key-%d" % n), 16, 16) == 14)
    history = [LayoutLine(n, 4, undeleted, n + 1) for n, undeleted in enumerate(layouts)]
    headers = [("h", b""), (MOVED_HEADER, b"")]
    data = build_batch([(key, value, headers, T0), (key, value, headers[:1], T0)], leader_epoch=5)
    with_header, without = arrow_rows(data, partition=partition, layouts=history)
    assert (with_header["expected_partition"], with_header["moved"]) == (expected, value is None)
    assert (without["expected_partition"], without["moved"]) == (14, None)


def test_internal_topics_and_markers_have_neither_placement_nor_order() -> None:
    internal = arrow_rows(FIRST, topic="__consumer_offsets", order_by="json:no")
    assert {(row["expected_partition"], row["order_value"], row["order_error"]) for row in internal} == {(None,) * 3}
    (marker,) = arrow_rows(build_control_batch(CONTROL_ABORT, 1, 0, 0, T0))
    assert (marker["marker"], marker["expected_partition"], marker["is_control"]) == (CONTROL_ABORT, None, True)


def test_a_row_without_a_batch_has_only_its_place_and_the_error() -> None:
    (row,) = arrow_rows(b"\0" * 20)
    assert {name for name, value in row.items() if value is not None} == {
        "topic", "partition", "segment", "batch_crc_ok", "error", "position", "batch_start",
        "replica",
    }  # fmt: skip


# ---------------------------------------------------------------- order fields


@pytest.mark.parametrize(
    ("spec", "value", "number"),
    [
        ("tsv:0", b"12\tx", 12),
        ("tsv:2", b"a\tb\t-3", -3),
        ("json:seq", b'{"seq": 5}', 5),
        ("json:a.b", b'{"a": {"b": 6}}', 6),
        ("json:seq", b'{"other": "\xff", "seq": 7}', 7),
    ],
)
def test_the_order_value_is_read_from_the_record_value(spec: str, value: bytes, number: int) -> None:
    field = OrderField(spec)
    assert field.extract(value) == number
    numbers, errors = field.read(pa.array([value, None], pa.binary()))
    assert (numbers.to_pylist(), errors.to_pylist()) == ([number, None], [None, None])


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("tsv:1", b"12"),
        ("tsv:0", b"x"),
        ("tsv:0", b""),
        ("tsv:0", b"99999999999999999999"),
        ("json:seq", b"no json"),
        ("json:seq", b"[1]"),
        ("json:seq", b"[" * 100_000),
        ("json:seq", b'{"seq": "5"}'),
        ("json:seq", b'{"seq": true}'),
        ("json:a.b", b'{"a": 1}'),
    ],
)
def test_a_record_value_without_an_order_value_is_refused(spec: str, value: bytes) -> None:
    field = OrderField(spec)
    with pytest.raises(OrderFieldError) as refused:
        field.extract(value)
    numbers, errors = field.read(pa.array([value, None], pa.binary()))
    assert (numbers.to_pylist(), errors.to_pylist()) == ([None, None], [str(refused.value), None])


@pytest.mark.parametrize("spec", ["", "json:", "tsv:", "tsv:-1", "tsv:x", "xml:a", "seq"])
def test_an_invalid_order_by_is_refused(spec: str) -> None:
    with pytest.raises(OrderFieldError, match="order-by"):
        OrderField(spec)


# ---------------------------------------------------------------- report


def test_a_report_fails_with_any_violation_and_names_its_place() -> None:
    violation = Violation("t", 3, 14, "t-3/0.log", 99, "is wrong")
    assert str(violation) == "t-3 offset 14 in t-3/0.log at byte 99: is wrong"
    good, bad, skipped = Check("a", 5), Check("b", 5, 1, [violation]), Check("c", 0, unknown="no reason")
    assert AuditReport("d", ["t"], 1, 1, 1, 1, [good, skipped]).passed
    report = AuditReport("d", ["t"], 1, 1, 1, 1, [good, bad, skipped]).to_json()
    assert not report["passed"]
    assert [(check["status"], check["unknown"]) for check in report["checks"]] == [
        ("passed", None), ("violated", None), ("unknown", "no reason")
    ]  # fmt: skip
    assert report["decided"] == 2
    assert report["checks"][1]["violations"] == [str(violation)]
    assert report["checks"][1]["offenders"][0]["offset"] == 14


def test_the_exit_status_counts_undecided_checks_only_if_it_is_strict() -> None:
    good, bad, unknown = Check("a", 5), Check("b", 5, 1), Check("c", 5, unknown="half of it", undecided=5)
    for checks, plain, strict in (([good], 0, 0), ([good, unknown], 0, 1), ([bad, unknown], 1, 1)):
        report = AuditReport("d", ["t"], 1, 1, 1, 1, checks)
        assert (report.exit_status(), report.exit_status(strict=True)) == (plain, strict)
    assert not unknown.passed
