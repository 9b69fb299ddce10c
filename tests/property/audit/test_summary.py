"""The audit's summary rows name exactly the keys that are out of order and the offending records."""

from __future__ import annotations

import io
from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.audit import segment_scan
from anabranch.audit.columns import Rows, SegmentSource
from anabranch.audit.manifest import LayoutLine, Manifest, PartitionEntry
from anabranch.audit.order_field import OrderField
from anabranch.audit.summary import summaries
from anabranch.protocol.batch_builder import build_batch
from tests.support.audit.naive import naive_rows, read_segment

records = st.tuples(st.sampled_from([b"a", b"b", None]), st.integers(0, 30) | st.none())
batches = st.lists(st.tuples(st.lists(records, min_size=1, max_size=6), st.integers(0, 2)), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(parts=batches, ascending=st.booleans(), run=st.sampled_from([1, 100, segment_scan.RUN_BYTES]))
def test_summaries_show_the_keys_out_of_order_and_the_offending_records(parts, ascending: bool, run: int) -> None:
    """A part has one row for each key and layout. The row shows whether the key's records ascend in the layout."""
    data, offset = b"", 0
    for found, epoch in parts:
        values = [b"x" if n is None else b"%d" % (n + (31 * (offset + at) if ascending else 0)) for at, (_, n) in
                  enumerate(found)]  # fmt: skip
        rows = [(key, value, (), 0) for (key, _), value in zip(found, values, strict=True)]
        data += build_batch(rows, base_offset=offset, leader_epoch=epoch)
        offset += len(found)
    lines = [LayoutLine(1, 2, 3, 1), LayoutLine(2, 2, 1 + 1, 2)]
    source = SegmentSource(Manifest("t", "delete", 2, 2, []), PartitionEntry(2, 0, -1, [], lines), "t-2/0.log")
    order_by = OrderField("tsv:0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_scan, "RUN_BYTES", run)
        part = [Rows(source, each, order_by) for each in segment_scan.scan(io.BytesIO(data), len(data))]
        kept = [row for batch in summaries(part) for row in batch.to_pylist()]
    truth = naive_rows(source, read_segment(io.BytesIO(data), len(data)), order_by.extract)

    by_key = defaultdict(list)
    for row in truth:
        if row["order_value"] is not None:
            by_key[row["key"], row["layout_version"]].append((row["offset"], row["order_value"]))
    sums = {(row["key"], row["layout_version"]): row for row in kept if row["kind"] == "key"}
    assert len(sums) == sum(row["kind"] == "key" for row in kept)
    assert sums.keys() == by_key.keys()
    for key, ordered in by_key.items():
        row = sums[key]
        assert (row["offset"], row["order_value"]) == ordered[0]
        assert row["last_value"] == ordered[-1][1]
        assert row["ascends"] == all(a[1] < b[1] for a, b in pairwise(ordered))

    seen = [row for row in kept if row["kind"] == "row"]
    wanted = [
        row
        for row in truth
        if row["batch_start"]
        or row["while_closed"]
        or row["order_error"]
        or row["expected_partition"] not in (None, row["partition"])
    ]
    assert [row["offset"] for row in seen] == [row["offset"] for row in wanted]
    for name, counted in (("placed", "expected_partition"), ("closed", "while_closed"), ("ordered", "order_value")):
        assert sum(row[name] or 0 for row in seen) == sum(row[counted] is not None for row in truth)
    assert sum(row["records"] or 0 for row in seen) == len(truth)


class Batch(NamedTuple):
    """A batch, described by its differences from the batch before."""

    records: int
    gap: int
    epoch: int
    producer: int
    producer_epoch: int
    skipped: int
    is_transactional: bool
    is_damaged: bool


def mostly(usual: object, *others: object) -> st.SearchStrategy:
    return st.sampled_from([usual] * 8 + list(others))


after_another = st.builds(
    Batch,
    st.integers(1, 3),
    mostly(0, 1, -1),
    mostly(0, 1),
    mostly(7, 8, -1),
    mostly(0, 1),
    mostly(0, 1, -1),
    mostly(False, True),
    mostly(False, True),
)


def segment_of(batches: list[Batch], first_sequence: int) -> bytes:
    data, offset, sequence = b"", 10, first_sequence
    for one in batches:
        offset += one.gap
        sequence = sequence + one.skipped & 0x7FFFFFFF
        batch = bytearray(
            build_batch(
                [(b"k", b"%d" % (offset + at), (), 1_000 - at) for at in range(one.records)],
                base_offset=offset,
                leader_epoch=one.epoch,
                producer_id=one.producer,
                producer_epoch=one.producer_epoch if one.producer >= 0 else -1,
                base_sequence=sequence if one.producer >= 0 else -1,
                is_transactional=one.is_transactional and one.producer >= 0,
            )
        )
        batch[-1] ^= one.is_damaged
        data, offset, sequence = data + batch, offset + one.records, sequence + one.records & 0x7FFFFFFF
    return data


SUMMED = (
    "batches", "record_count", "records", "bytes", "placed", "placeable", "closed", "by_clients", "ordered"
)  # fmt: skip


def follows(row: dict, other: dict) -> bool:
    """Whether a batch's row follows another batch's row in every property that a rule over batches checks."""
    same = ("leader_epoch", "producer_id", "producer_epoch")
    return (
        all(x["batch_crc_ok"] and not x["error"] and not x["is_transactional"] for x in (row, other))
        and row["base_offset"] == other["last_offset"] + 1
        and all(row[name] == other[name] for name in same)
        and (row["base_sequence"] == other["last_sequence"] + 1 or row["base_sequence"] == other["base_sequence"] == -1)
        and all(x["base_sequence"] <= x["last_sequence"] for x in (row, other))
    )


@settings(max_examples=200, deadline=None)
@given(batches=st.lists(after_another, min_size=1, max_size=12), first_sequence=mostly(0, 0x7FFFFFFF - 6))
def test_a_stretch_sums_up_batches_that_follow_each_other(batches: list[Batch], first_sequence: int) -> None:
    data = segment_of(batches, first_sequence)
    source = SegmentSource(Manifest("t", "delete", 1, 1, []), PartitionEntry(0, 0, -1, []), "t-0/0.log")

    def rows(merged: bool) -> list[dict]:
        part = [Rows(source, each, OrderField("tsv:0")) for each in segment_scan.scan(io.BytesIO(data), len(data))]
        found = [row for batch in summaries(part, merged=merged) for row in batch.to_pylist()]
        return [row for row in found if row["kind"] == "row"]

    expected: list[dict] = []
    before = None
    for row in rows(merged=False):
        if before is not None and follows(row, before):
            stretch = expected[-1]
            stretch |= {name: row[name] for name in ("last_offset", "last_sequence")}
            for name in SUMMED:
                stretch[name] += row[name]
            stretch["base_timestamp"] = min(stretch["base_timestamp"], row["base_timestamp"])
            stretch["max_timestamp"] = max(stretch["max_timestamp"], row["max_timestamp"])
        else:
            expected.append(dict(row))
        before = row
    assert rows(merged=True) == expected
