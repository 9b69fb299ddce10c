"""Segments read with arrays give the rows of a naive row-by-row reader, for whole and damaged segments."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.audit import segment_scan
from anabranch.audit.columns import CHECK_SCHEMA, PUBLIC_SCHEMA, Rows, SegmentSource, names_of
from anabranch.audit.manifest import LayoutLine, Manifest, PartitionEntry
from anabranch.audit.order_field import OrderField
from anabranch.protocol import record_arrays, records
from anabranch.protocol.batch_builder import build_batch, retain_records
from anabranch.protocol.batch_layout import CONTROL_ABORT, CRC_AT, CRC_START, MAX_SEQUENCE
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.key_placement import MOVED_HEADER
from anabranch.protocol.records import RecordBatch, iter_batches
from tests.support.audit.naive import naive_rows, read_segment
from tests.support.log.batches import build_control_batch

COLUMNS = names_of(f"{PUBLIC_SCHEMA}, {CHECK_SCHEMA}")
T0 = 1_700_000_000_000

values = st.one_of(
    st.none(),
    st.binary(max_size=8),
    st.integers(-(10**20), 10**20).map(lambda n: b"%d\tx" % n),
    st.sampled_from([b"+7\t", b" 7\t", b"1_000", b'{"n": 1.0}', b'{"n": 1, "n": 2}', b'{"n": 99999999999999999999}']),
)
header_lists = st.lists(
    st.tuples(st.sampled_from(["h", MOVED_HEADER, ""]), st.none() | st.binary(max_size=200)), max_size=3
)
sent_records = st.tuples(
    st.none() | st.binary(max_size=9), values, header_lists, st.integers(0, 2**41).map(lambda n: T0 + n - 2**40)
)
batches = st.tuples(
    st.lists(sent_records, min_size=1, max_size=70),
    st.sampled_from(CompressionType),
    st.integers(0, 6),
    st.sampled_from([-1, 0, 5, MAX_SEQUENCE - 2]),
    st.booleans(),
    st.integers(0, 40),
)
layouts = st.lists(st.tuples(st.integers(0, 6), st.integers(4, 9)), max_size=3, unique_by=lambda x: x[0])


def segment(parts: list[tuple], gap: int) -> bytes:
    data, offset = b"", 0
    for found, compression, epoch, sequence, transactional, kind in parts:
        producer_id = 7 if sequence >= 0 else -1
        batch = build_batch(
            found,
            compression=compression,
            base_offset=offset,
            leader_epoch=epoch,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=transactional and producer_id >= 0,
        )
        if kind == 0:
            batch = retain_records(RecordBatch(batch), RecordBatch(batch).records()[1::2])
        elif kind == 1:
            batch = build_control_batch(CONTROL_ABORT, 7, 0, offset, T0)
        data += batch
        offset += len(found) + gap
    return data


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(batches, max_size=5),
    gap=st.integers(0, 2),
    history=layouts,
    spec=st.sampled_from([None, "tsv:0", "tsv:1", "json:n"]),
    damage=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255), st.booleans()), max_size=3),
    cut=st.integers(0, 100),
    few=st.sampled_from([0, 2, 48]),
    read=st.sampled_from([80, 1000, segment_scan.READ_BYTES]),
    run=st.sampled_from([1, 2000, segment_scan.RUN_BYTES]),
)
def test_reading_with_arrays_agrees_with_reading_row_by_row(
    parts, gap, history, spec, damage, cut, few, read, run
) -> None:
    """``damage`` changes bytes. If ``damage`` also corrects the CRC, both readers must find the batch malformed."""
    data = bytearray(segment(parts, gap))
    for at, change, mend in damage:
        if data:
            data[at % len(data)] ^= change
            if mend:
                mend_crcs(data)
    data = bytes(data[: len(data) - cut] if cut < 20 else data)
    manifest = Manifest("t", "delete", 4, 4, [])
    lines = [LayoutLine(epoch, 4, undeleted, epoch + 1) for epoch, undeleted in sorted(history)]
    source = SegmentSource(manifest, PartitionEntry(2, 0, -1, [], lines), "t-2/0.log")
    order_by = OrderField(spec) if spec else None
    naive = naive_rows(source, read_segment(io.BytesIO(data), len(data)), order_by.extract if order_by else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_arrays, "FEW_BATCHES", few)
        patch.setattr(segment_scan, "READ_BYTES", read)
        patch.setattr(segment_scan, "RUN_BYTES", run)
        found = [
            row
            for each in segment_scan.scan(io.BytesIO(data), len(data))
            for row in Rows(source, each, order_by).arrow(COLUMNS).to_pylist()
        ]
    assert found == [{name: row.get(name) for name in COLUMNS} for row in naive]


@pytest.mark.parametrize("read", [80, segment_scan.READ_BYTES])
@pytest.mark.parametrize("lost", [1, 60, 200, 1000])
def test_a_file_truncated_after_its_size_was_read_is_an_error(
    lost: int, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_scan, "READ_BYTES", read)
    batch = build_batch([(b"k", bytes(300), [], T0)], base_offset=0, leader_epoch=0)
    data = batch * 3
    left = max(len(data) - lost, 0)
    runs = list(segment_scan.scan(io.BytesIO(data[:left]), len(data)))
    whole = left // len(batch)
    assert [error for run in runs for error in run.errors][:whole] == [None] * whole
    assert runs[-1].positions[-1] == whole * len(batch)
    assert runs[-1].errors[-1] is not None and f"byte {whole * len(batch)}" in runs[-1].errors[-1]


@pytest.mark.parametrize("few", [0, 48])
def test_both_readers_agree_on_every_change_of_each_byte_of_a_batch(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of keys, values and headers have the varint's continuation bit, so a changed length may be overlong."""
    long = b"\xff" * 11
    batch = build_batch(
        [(b"k", long, [], T0), (None, None, [("h", None), ("", b"\xff")], T0 + 1), (long, b"", [], T0 + 99)],
        base_offset=0,
        leader_epoch=1,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
    )
    changed = bytearray()
    for at in range(16, len(batch)):
        for change in range(1, 256):
            copy = bytearray(batch)
            copy[at] ^= change
            changed += copy
    mend_crcs(changed)
    source = SegmentSource(Manifest("t", "delete", 4, 4, []), PartitionEntry(2, 0, -1, [], []), "t-2/0.log")
    monkeypatch.setattr(record_arrays, "FEW_BATCHES", few)
    for part in range(0, len(changed), len(batch) * 4096):
        data = bytes(changed[part : part + len(batch) * 4096])
        naive = naive_rows(source, read_segment(io.BytesIO(data), len(data)))
        (run,) = segment_scan.scan(io.BytesIO(data), len(data))
        found = Rows(source, run).arrow(COLUMNS).to_pylist()
        assert found == [{name: row.get(name) for name in COLUMNS} for row in naive]


@pytest.mark.parametrize("most", [699, 700, 1_000_000])
def test_both_readers_agree_on_batches_with_many_headers(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_arrays, "MAX_BATCH_ELEMENTS", most)
    monkeypatch.setattr(records, "MAX_BATCH_ELEMENTS", most)
    many = [(f"h{n}", bytes(n % 5)) for n in range(400)]
    moved = [*many[:300], (MOVED_HEADER, None)]
    short = [("h", None)] * 299
    data = build_batch([(b"k", b"v", many, T0), (b"k", None, moved[1:], T0), (b"k", b"v", [], T0)], base_offset=0)
    data += build_batch([(b"k", b"v", short, T0)], base_offset=3)
    source = SegmentSource(Manifest("t", "delete", 4, 4, []), PartitionEntry(2, 0, -1, [], []), "t-2/0.log")
    naive = naive_rows(source, read_segment(io.BytesIO(data), len(data)))
    (run,) = segment_scan.scan(io.BytesIO(data), len(data))
    found = Rows(source, run).arrow(COLUMNS).to_pylist()
    assert found == [{name: row.get(name) for name in COLUMNS} for row in naive]
    assert [row["offset"] for row in found] == ([None, 3] if most < 700 else [0, 1, 2, 3])
    lists = record_arrays.header_lists(run.body, run.columns).to_pylist()
    good = [each for each in iter_batches(data) if most >= 700 or each.base_offset == 3]
    headers = [record.headers for each in good for record in each]
    assert [[(pair["key"], pair["value"]) for pair in pairs] for pairs in lists] == headers


def mend_crcs(data: bytearray) -> None:
    """Correct the CRC of every batch that can be found."""
    at = 0
    while at + 61 <= len(data):
        length = int.from_bytes(data[at + 8 : at + 12], "big", signed=True) + 12
        if not 61 <= length <= len(data) - at:
            return
        crc = RecordBatch(memoryview(data)[at : at + length]).compute_crc()
        data[at + CRC_AT : at + CRC_START] = crc.to_bytes(4, "big")
        at += length
