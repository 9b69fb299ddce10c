"""What the audit keeps of a run of batches: a row for each batch, for each offending record, and for each key.

Most rules need no other record: they are checked where the segment is read, and only offending records leave it. The
order of a key's records spans files. A key's records of one run and layout are summed up in one row: the first and the
last order value, and whether the values ascend in between. Where these rows do not ascend either, the audit reads the
records of the key themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit.columns import CHECK_SCHEMA, PUBLIC_SCHEMA, Rows, arrow_schema, names_of
from audit.vectors import Ints

NOT_KEPT = ("value", "headers", "codec", "timestamp", "timestamp_type")
_KEPT = [name for name in names_of(f"{PUBLIC_SCHEMA}, {CHECK_SCHEMA}") if name not in NOT_KEPT]
_COUNTS = "records bigint, placed bigint, closed bigint, ordered bigint, last_value bigint, ascends boolean"
SUMMARY_SCHEMA = (
    "kind string, "
    + ", ".join(x for x in f"{PUBLIC_SCHEMA}, {CHECK_SCHEMA}".split(", ") if x.split(" ")[0] in _KEPT)
    + f", {_COUNTS}"
)
"""``kind`` is "row" for a batch's first row and for an offending record, "key" for a key.

A batch's first row counts the batch's records, and those whose partition, layout and order value can be checked.
A key's row has the place and the order value of its first record here, and the order value of the last.
"""
BATCH, KEY = "row", "key"
_NAMES = names_of(SUMMARY_SCHEMA)
_SCHEMA = arrow_schema(_NAMES, SUMMARY_SCHEMA)


def summaries(rows: Rows) -> Iterator[pa.RecordBatch]:
    """The rows of ``SUMMARY_SCHEMA`` for a run."""
    starts = np.asarray(rows.column("batch_start"))
    offends = np.zeros(len(rows), np.bool_)
    if rows.is_record.any():
        unreadable = np.asarray(pc.is_valid(rows.order[1]))
        of_record = rows.misplaced | rows.closed[0] | unreadable
        offends = of_record[rows.record] & rows.is_record
    keep = starts | offends
    kept = rows.arrow(_KEPT, keep)
    first = np.cumsum(starts)[keep] - 1
    counts = {name: _counted(rows, known, first, starts[keep]) for name, known in _countable(rows).items()}
    yield _complete(BATCH, {**dict(zip(kept.schema.names, kept.columns, strict=True)), **counts}, len(kept))
    if rows.order[0].null_count < len(rows.order[0]):
        keys = _keys(rows)
        yield _complete(KEY, keys, len(keys["key"]))


def _countable(rows: Rows) -> dict[str, Ints]:
    """For each batch, how many records there are, and how many of them can be checked for what."""
    columns = rows.run.columns

    def per_batch(known: Any) -> Ints:
        return np.bincount(columns.batch[known], minlength=len(rows.run.positions))

    return {
        "records": per_batch(np.ones(len(columns.batch), np.bool_)),
        "placed": per_batch(rows.placements[1]),
        "closed": per_batch(rows.closed[1]),
        "ordered": per_batch(np.asarray(pc.is_valid(rows.order[0]))),
    }


def _counted(rows: Rows, counts: Ints, batch: Ints, starts: Any) -> pa.Array:
    return pa.array(counts[batch], pa.int64(), mask=~starts)


def _keys(rows: Rows) -> dict[str, pa.Array]:
    """A row for each key and layout, of the records that have an order value."""
    columns = rows.run.columns
    ordered = np.flatnonzero(np.asarray(pc.is_valid(rows.order[0])))
    values = np.asarray(rows.order[0].take(pa.array(ordered)))
    keys = pc.filter(rows.keys, pa.array(rows.is_record)).take(pa.array(ordered)).dictionary_encode()
    versions = rows.layout_versions[columns.batch[ordered]]
    group = np.asarray(keys.indices).astype(np.int64) * (int(versions.max()) + 2) + versions + 1
    order = np.argsort(group, kind="stable")
    group, values = group[order], values[order]
    first = np.flatnonzero(np.concatenate([np.ones(1, np.bool_), group[1:] != group[:-1]]))
    last = np.concatenate([first[1:], np.array([len(group)])]) - 1
    descends = np.concatenate([np.zeros(1, np.bool_), values[1:] <= values[:-1]])
    descends[first] = False
    records = ordered[order[first]]
    version = versions[order[first]]
    offsets = rows.field(0)[columns.batch] + columns.offset_delta
    count = len(first)
    return {
        "topic": pa.repeat(rows.source.manifest.topic, count),
        "partition": pa.repeat(pa.scalar(rows.source.partition.partition, pa.int32()), count),
        "key": keys.dictionary.take(keys.indices.take(pa.array(order[first]))),
        "layout_version": pa.array(version.astype(np.int32), mask=version < 0),
        "offset": pa.array(offsets[records]),
        "order_value": pa.array(values[first]),
        "last_value": pa.array(values[last]),
        "ascends": pa.array(~np.logical_or.reduceat(descends, first)),
    }


def _complete(kind: str, columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
    columns = {"kind": pa.repeat(kind, count), **columns}
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in _SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
