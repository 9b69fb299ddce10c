"""The summary of a part of a segment: rows for its batches, for each offending record, and for each key.

Most rules need only one record at a time. These rules are checked where the segment is read, and only offending records
are kept. The order of a key's records spans files, so a key's records of one part and one layout are summed up in one
row: the first and the last order value, and whether the values ascend in between. When a key's rows do not ascend, the
audit reads the records of that key.

Each batch has a row. With ``merged`` there is a row for each stretch, which is a series of consecutive batches without
a fault. Rules over batches find the same offences in stretches, as long as no two stretches overlap
(``row_checks.overlapping_stretches``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastcrc import crc32

from anabranch.audit import index_checks
from anabranch.audit import segment_scan as scan
from anabranch.audit.columns import CHECK_SCHEMA, PUBLIC_SCHEMA, Rows, SegmentSource, arrow_schema, names_of
from anabranch.audit.files import open_file, why
from anabranch.audit.parts import SegmentPart
from anabranch.audit.segment_scan import READ_BYTES
from anabranch.protocol.batch_layout import CONTROL_BIT, LENGTH_PREFIX_BYTES, TRANSACTIONAL_BIT
from anabranch.protocol.record_arrays import Bools, Ints, gather

NOT_KEPT = ("value", "headers", "codec", "timestamp", "timestamp_type")
_KEPT = [name for name in names_of(f"{PUBLIC_SCHEMA}, {CHECK_SCHEMA}") if name not in NOT_KEPT]
_COUNTS = (
    "batches bigint, records bigint, bytes bigint, base_timestamp bigint, max_timestamp bigint, placed bigint, "
    "placeable bigint, closed bigint, by_clients bigint, ordered bigint, last_value bigint, ascends boolean, "
    "file_crc bigint"
)
HOT_KEYS = 20
"""This many of the most frequent keys are kept for each run of batches, and in the report."""
SUMMARY_SCHEMA = (
    "kind string, "
    + ", ".join(x for x in f"{PUBLIC_SCHEMA}, {CHECK_SCHEMA}".split(", ") if x.split(" ")[0] in _KEPT)
    + f", {_COUNTS}"
)
"""``kind`` is "row" for a batch's first row and for an offending record, "key" for a key, "hot" for a frequent key,
"entry" for a wrong index entry (``position`` is its first byte in the index file), "index" for an index file and "file"
for a file of the manifest. A stretch of ``batches`` has the first row of its first batch, with the ``last_offset``, the
``last_sequence`` and the ``record_count`` of the whole stretch.

A batch's first row counts the batch's bytes and records, and the records whose partition, layout and order value can be
checked: ``placed`` of ``placeable``, ``closed`` of ``by_clients``, ``ordered``. A key's row has the place and the order
value of its first record in the part, and the order value of its last one. A frequent key's row has its ``records``. An
index file's row has its number of entries in ``records``, null without such a file. A file's row has its ``bytes`` and
its CRC32C, ``file_crc``.
"""
BATCH, KEY, HOT, ENTRY, INDEX, FILE = "row", "key", "hot", "entry", "index", "file"
_NAMES = names_of(SUMMARY_SCHEMA)
_SCHEMA = arrow_schema(_NAMES, SUMMARY_SCHEMA)


def summaries(part: Iterable[Rows], of: SegmentPart | None = None, *, merged: bool = False) -> Iterator[pa.RecordBatch]:
    """The rows of ``SUMMARY_SCHEMA`` for the runs of a part of a segment, and for the other files of ``of``."""
    keys, runs = [], []
    hot: Counter[bytes] = Counter()
    source = None
    for rows in part:
        source = rows.source
        yield _batches_and_offences(rows, merged)
        runs.append(_headers(rows))
        hot.update(_hot_keys(rows))
        if rows.order[0].null_count < len(rows.order[0]):
            keys.append(_keys(rows))
    if of is not None:
        yield from _files(of, runs)
    if source is None:
        return
    if keys:
        of_part = keys[0] if len(keys) == 1 else _grouped(pa.Table.from_batches(keys).combine_chunks())
        yield _complete(KEY, _place(source, len(of_part)) | _columns_of(of_part), len(of_part))
    if hot:
        names, counts = zip(*hot.most_common(HOT_KEYS), strict=True)
        columns = {"key": pa.array(names, pa.binary()), "records": pa.array(counts, pa.int64())}
        yield _complete(HOT, _place(source, len(names)) | columns, len(names))


def _place(source: SegmentSource, count: int) -> dict[str, pa.Array]:
    return {
        "topic": pa.repeat(source.manifest.topic, count),
        "partition": pa.repeat(pa.scalar(source.partition.partition, pa.int32()), count),
        "replica": pa.repeat(pa.scalar(source.broker, pa.int32()), count),
    }


def _headers(rows: Rows) -> Ints:
    """For each batch of a run: position, base offset, last offset, largest timestamp, and whether its CRC is right."""
    base = rows.field(scan.BASE_OFFSET)
    fields = (rows.run.positions, base, base + rows.field(scan.LAST_OFFSET_DELTA), rows.field(scan.MAX_TIMESTAMP))
    return np.array([*fields, rows.run.crc_ok], np.int64)


def _files(part: SegmentPart, runs: Sequence[Ints]) -> Iterator[pa.RecordBatch]:
    """The rows of a part's indexes; for the segment's first part, also the rows of its files."""
    log, size = Path(part.directory, part.source.segment), 0
    if log.exists():
        size = log.stat().st_size
    headers = np.concatenate(runs, axis=1) if runs else np.zeros((5, 0), np.int64)
    end = size if part.end is None else part.end
    positions, base_offsets, last_offsets, max_timestamps, crc_ok = headers
    batches = index_checks.Batches(
        positions, base_offsets, last_offsets, max_timestamps, crc_ok != 0, part.begin, end, part.end is None
    )
    found: list[dict[str, Any]] = []
    for suffix in index_checks.SUFFIXES:
        path = log.with_suffix(suffix)
        at = {"segment": part.source.segment.removesuffix(".log") + suffix}
        if not path.exists():
            found += [{"kind": INDEX, **at}] if part.begin == 0 else []
            continue
        try:
            index = index_checks.read_index(path, int(log.stem))
        except OSError as error:
            message = f"the index cannot be read: {why(error)}"
            found += [{"kind": ENTRY, **at, "error": message}, {"kind": INDEX, **at}] if part.begin == 0 else []
            continue
        faults = list(index_checks.file_faults(index)) if part.begin == 0 else []
        if not faults and suffix == ".index":
            faults += index_checks.offset_faults(index, batches)
        elif not faults:
            faults += index_checks.time_faults(index, batches, part.source.manifest.is_compacted)
        found += [{"kind": ENTRY, **at, "position": x.position, "offset": x.offset, "error": x.message} for x in faults]
        found += [{"kind": INDEX, **at, "records": len(index.offset)}] if part.begin == 0 else []
    if part.begin == 0 and part.source.manifest.generation > 0:
        for path in sorted(log.parent.glob(f"{log.stem}.*")):
            try:
                size, crc = crc32c_of(path)
            except OSError:
                continue  # other rows report it as unreadable
            name = part.source.segment.removesuffix(log.name) + path.name
            found.append({"kind": FILE, "segment": name, "bytes": size, "file_crc": crc})
    if found:
        columns = {
            name: pa.array([row.get(name) for row in found], _SCHEMA.field(name).type)
            for name in ("kind", "segment", "position", "offset", "error", "records", "bytes", "file_crc")
        }
        yield _complete("", _place(part.source, len(found)) | columns, len(found))


def crc32c_of(path: Path) -> tuple[int, int]:
    """The size and the CRC32C of a file."""
    size, crc = 0, 0
    with open_file(path) as file:
        while piece := file.read(READ_BYTES):
            size, crc = size + len(piece), crc32.iscsi(piece, crc)
    return size, crc


def _hot_keys(rows: Rows) -> dict[bytes, int]:
    """The most frequent keys of clients' records in a run, and the number of records of each."""
    columns = rows.run.columns
    lengths = np.where(rows.is_of_client, columns.key_length, -1)
    counted = gather(rows.run.body, columns.key_at, lengths).drop_null().value_counts()
    counts = np.asarray(counted.field("counts"))
    most = np.argsort(-counts, kind="stable")[:HOT_KEYS]
    return dict(zip(counted.field("values").take(pa.array(most)).to_pylist(), counts[most].tolist(), strict=True))


def _batches_and_offences(rows: Rows, merged: bool) -> pa.RecordBatch:
    starts = np.asarray(rows.column("batch_start"))
    offends = np.zeros(len(rows), np.bool_)
    if rows.is_record.any():
        unreadable = np.asarray(pc.is_valid(rows.order[1]))
        of_record = rows.misplaced | rows.closed[0] | unreadable
        offends = of_record[rows.record] & rows.is_record
    first = np.flatnonzero(~_continues(rows, offends) if merged else np.ones(len(rows.run.positions), np.bool_))
    begins = np.zeros(len(rows.run.positions), np.bool_)
    begins[first] = True
    keep = starts & begins[rows.batch] | offends
    kept = rows.only(keep)
    stretch = (np.cumsum(begins) - 1)[kept.batch]
    columns = _columns_of(kept.arrow(_KEPT))
    columns |= {
        name: pa.array(found[stretch], _SCHEMA.field(name).type, mask=np.asarray(columns[name].is_null()))
        for name, found in _last_of(rows, first).items()
    }
    counts = {
        name: pa.array(found[stretch], pa.int64(), mask=~starts[keep])
        for name, found in _countable(rows, first).items()
    }
    return _complete(BATCH, columns | counts, len(kept))


def _continues(rows: Rows, offends: Bools) -> Bools:
    """A mask of the batches that belong to the same stretch as the previous batch.

    Both batches are without a fault, and the second one may follow the first by every rule.
    """
    run, base = rows.run, rows.field(scan.BASE_OFFSET)
    last = base + rows.field(scan.LAST_OFFSET_DELTA)
    sequence, last_sequence = rows.field(scan.BASE_SEQUENCE), rows.last_sequences
    whole = run.has_header & run.crc_ok & np.array([error is None for error in run.errors], np.bool_)
    whole &= (last >= base) & (rows.field(scan.COUNT) == last - base + 1) & (last_sequence >= sequence)
    whole &= rows.field(scan.ATTRIBUTES) & (CONTROL_BIT | TRANSACTIONAL_BIT) == 0
    whole[rows.batch[offends]] = False
    same = whole[1:] & whole[:-1] & (base[1:] == last[:-1] + 1)
    for name in (scan.LEADER_EPOCH, scan.PRODUCER_ID, scan.PRODUCER_EPOCH):
        values = rows.field(name)
        same &= values[1:] == values[:-1]
    without = (sequence[1:] < 0) & (sequence[:-1] < 0)
    same &= without | (sequence[:-1] >= 0) & (sequence[1:] == last_sequence[:-1] + 1)
    return np.concatenate([np.zeros(1, np.bool_), same])


def _last_of(rows: Rows, first: Ints) -> dict[str, Ints]:
    """The end of each stretch, and the record count in its headers. ``first`` has the indexes of the first batches."""
    last = np.append(first[1:], len(rows.run.positions)) - 1
    return {
        "last_offset": (rows.field(scan.BASE_OFFSET) + rows.field(scan.LAST_OFFSET_DELTA))[last],
        "last_sequence": rows.last_sequences[last],
        "record_count": np.add.reduceat(rows.field(scan.COUNT), first),
    }


def _countable(rows: Rows, first: Ints) -> dict[str, Ints]:
    """The batches, bytes, times and records of each stretch. ``first`` has the indexes of the first batches.

    The result also has the numbers of records that the rules can check.
    """
    columns = rows.run.columns

    def per_batch(known: Any) -> Ints:
        return np.bincount(columns.batch[known], minlength=len(rows.run.positions))

    sums = {
        "batches": np.ones(len(rows.run.positions), np.int64),
        "bytes": rows.field(scan.BATCH_LENGTH) + LENGTH_PREFIX_BYTES,
        "records": per_batch(np.ones(len(columns.batch), np.bool_)),
        "placed": per_batch(rows.placements[1]),
        "placeable": per_batch(rows.is_of_client & (columns.key_length >= 0)),
        "closed": per_batch(rows.closed[1]),
        "by_clients": per_batch(rows.is_of_client),
        "ordered": per_batch(np.asarray(pc.is_valid(rows.order[0]))),
    }
    return {name: np.add.reduceat(values, first) for name, values in sums.items()} | {
        "base_timestamp": np.minimum.reduceat(rows.field(scan.BASE_TIMESTAMP), first),
        "max_timestamp": np.maximum.reduceat(rows.field(scan.MAX_TIMESTAMP), first),
    }


def _keys(rows: Rows) -> pa.RecordBatch:
    """A row for each key and layout, from the records of a run with an order value."""
    columns = rows.run.columns
    ordered = np.flatnonzero(np.asarray(pc.is_valid(rows.order[0])))
    versions = rows.layout_versions[columns.batch[ordered]]
    offsets = rows.offsets[ordered]
    values = rows.order[0].take(pa.array(ordered))
    keys = gather(rows.run.body, columns.key_at[ordered], columns.key_length[ordered])
    return _grouped(
        pa.table(
            {
                "key": keys,
                "layout_version": pa.array(versions.astype(np.int32), mask=versions < 0),
                "offset": pa.array(offsets),
                "order_value": values,
                "last_value": values,
                "ascends": pa.repeat(True, len(ordered)),
            }
        )
    )


def _grouped(rows: pa.Table) -> pa.RecordBatch:
    """One row for each key and layout, from rows of this form in the order of offsets."""
    keys = rows["key"].combine_chunks().dictionary_encode()
    versions = _numbers(pc.fill_null(rows["layout_version"], -1)).astype(np.int64)
    first_values, last_values = _numbers(rows["order_value"]), _numbers(rows["last_value"])
    group = np.asarray(keys.indices).astype(np.int64) * (int(versions.max()) + 2) + versions + 1
    order = np.argsort(group, kind="stable")
    group = group[order]
    new = np.concatenate([np.ones(1, np.bool_), group[1:] != group[:-1]])
    first = np.flatnonzero(new)
    last = np.concatenate([first[1:], np.array([len(group)])]) - 1
    descends = ~_numbers(rows["ascends"])[order]
    descends[1:] |= ~new[1:] & (first_values[order[1:]] <= last_values[order[:-1]])
    of_first = pa.array(order[first])
    kept = {name: rows[name].combine_chunks().take(of_first) for name in ("layout_version", "offset", "order_value")}
    return pa.RecordBatch.from_pydict(
        {
            "key": keys.dictionary.take(keys.indices.take(of_first)),
            **kept,
            "last_value": pa.array(last_values[order[last]]),
            "ascends": pa.array(~np.logical_or.reduceat(descends, first)),
        }
    )


def _numbers(column: pa.ChunkedArray) -> Any:
    return column.combine_chunks().to_numpy(zero_copy_only=False)


def _columns_of(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _complete(kind: str, columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
    columns = {"kind": pa.repeat(kind, count), **columns}
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in _SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
