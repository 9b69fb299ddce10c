"""The contents of a partition's files as ``kafka-dump-log`` prints them, for Anabranch's files and Kafka's.

A file is a sequence of rows. A row maps Kafka's names to values in the order in which they are printed. A ``FileFault``
between the rows describes an error; the rest of the file is still read.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from anabranch.broker.log.checkpoint_files import MAX_FILE_BYTES, MalformedFileError
from anabranch.broker.log.producer_snapshot import decode_snapshot
from anabranch.protocol.batch_layout import CONTROL_ABORT, CONTROL_COMMIT, LOG_APPEND_TIME, MAX_SEQUENCE
from anabranch.protocol.compression import CorruptRecordError
from anabranch.protocol.control_records import read_control_record
from anabranch.protocol.plurals import counted
from anabranch.protocol.primitives import DecodeError
from anabranch.protocol.records import Record, RecordBatch, increment_sequence, iter_batches
from anabranch.protocol.sentinels import NO_OFFSET, NO_TIMESTAMP
from anabranch.record_decoders import Decoder, decode_text
from anabranch.runtime.regular_files import open_regular, read_regular

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
TXN_ENTRY = struct.Struct(">hqqqq")
_MARKERS = {CONTROL_COMMIT: "COMMIT", CONTROL_ABORT: "ABORT"}
_METADATA_CONTROLS = ("LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION", "KRAFT_VOTERS")
"""The control record types of Kafka's own metadata log, from type 2 on."""

Row: TypeAlias = dict[str, Any]
RECORDS = "records"


class UnknownFileError(ValueError):
    """This program cannot read files with this name."""


@dataclass(frozen=True, slots=True)
class FileFault:
    """A fault of a file. ``kafka_text`` is the text that Kafka's tool prints for it among the rows, if any.

    ``is_damage`` is False for a fault that compaction causes too.
    """

    message: str
    kafka_text: str | None = None
    is_damage: bool = True


Line: TypeAlias = Row | FileFault


@dataclass(frozen=True, slots=True)
class What:
    """The parts of a file to print: the records of a batch, their keys and values, the entries of an index."""

    deep: bool = False
    contents: bool = False
    metadata: bool = True
    entries: bool = True
    index_sanity: bool = False
    max_bytes: int | None = None
    decoder: Decoder = decode_text


def dump_file(path: Path, what: What) -> Iterator[Line]:
    """The rows of ``path``. A batch's row has an iterator of its records under ``RECORDS``, if ``what`` selects them.

    The iterator has to be used up before the next row is taken.

    Raises ``UnknownFileError`` for a name with another suffix, and ``OSError``.
    """
    for suffix, reader in READERS.items():
        if path.name.endswith(suffix):
            return reader(path, what)
    raise UnknownFileError(f"{path} is not a file of a partition; the suffixes are {', '.join(READERS)}")


def _mapped(path: Path) -> memoryview:
    with open(path, "rb", opener=open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)) if size else memoryview(b"")


# ---------------------------------------------------------------- segments


def _log(path: Path, what: What) -> Iterator[Line]:
    data = _mapped(path)
    yield {"Log starting offset": _base_offset(path)}
    end = len(data) if what.max_bytes is None else min(len(data), what.max_bytes)
    position, last_offset = 0, NO_OFFSET
    try:
        for batch in iter_batches(data):
            if position + batch.length > end:
                return
            if last_offset >= 0 and batch.base_offset != last_offset + 1:
                gap = f"{last_offset} is followed by {batch.base_offset}"
                yield FileFault(f"Non-consecutive offsets in {path}: {gap}", is_damage=False)
            last_offset = batch.last_offset
            yield from _batch_lines(path, batch, position, what)
            position += batch.length
    except CorruptRecordError as error:
        invalid = f"Found {len(data) - position} invalid bytes at the end of {path.name}"
        yield FileFault(f"{invalid}, at position {position}: {error.message}", kafka_text=invalid)


def _batch_lines(path: Path, batch: RecordBatch, position: int, what: What) -> Iterator[Line]:
    is_valid = batch.verify_crc()
    time = "LogAppendTime" if batch.timestamp_type == LOG_APPEND_TIME else "CreateTime"
    row: Row = {
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": batch.count,
        "baseSequence": batch.base_sequence,
        "lastSequence": batch.last_sequence,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "partitionLeaderEpoch": batch.partition_leader_epoch,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "deleteHorizonMs": _optional(batch.base_timestamp if batch.has_delete_horizon else NO_TIMESTAMP),
        "position": position,
        time: batch.max_timestamp,
        "size": batch.length,
        "magic": batch.magic,
        "compresscodec": batch.compression.name.lower(),
        "crc": batch.crc,
        "isvalid": is_valid,
    }
    if not what.deep:
        yield row
    else:
        faults: list[str] = []
        yield {**row, RECORDS: _record_rows(batch, time, what, faults)}
        for fault in faults:
            yield FileFault(f"{path}: the batch at position {position}: {fault}")
    if not is_valid:
        yield FileFault(f"{path}: the CRC of the batch at position {position} is wrong (isvalid: false)")


def _record_rows(batch: RecordBatch, time: str, what: What, faults: list[str]) -> Iterator[Row]:
    """The rows of a batch's records, up to one that cannot be read. Adds at most two descriptions to ``faults``.

    If only the key or the value of a record cannot be decoded, its row has the error, and the other records follow.
    """
    undecoded, first = 0, ""
    try:
        for record in batch:
            row, problem = _record_row(batch, record, time, what)
            if problem:
                undecoded, first = undecoded + 1, first or f"the first at offset {record.offset}: {problem}"
            yield row
    except (CorruptRecordError, DecodeError) as error:
        faults.append(f"the records cannot be read: {error}")
    if undecoded:
        faults.append(f"{counted(undecoded, 'record')} cannot be decoded, {first}")


def _record_row(batch: RecordBatch, record: Record, time: str, what: What) -> tuple[Row, str]:
    """The row of a record, and the reason why its key or value cannot be decoded; empty if they can."""
    key, value = record.key, record.value
    row: Row = {}
    if what.metadata:
        sequence = -1
        if batch.base_sequence >= 0:
            sequence = increment_sequence(batch.base_sequence, record.offset - batch.base_offset)
        row = {
            "offset": record.offset,
            time: record.timestamp,
            "keySize": -1 if key is None else len(key),
            "valueSize": -1 if value is None else len(value),
            "sequence": sequence,
            "headerKeys": [name for name, _ in record.headers],
        }
    try:
        if batch.is_control:
            if what.metadata:
                row |= _control(record)
        elif what.contents:
            shown_key, payload = what.decoder(key, value)
            row |= {name: text for name, text in (("key", shown_key), ("payload", payload)) if text is not None}
    except (CorruptRecordError, DecodeError) as error:
        return row | {"key": f"Error at offset {record.offset}, skipping. {error}"}, str(error)
    return row, ""


def _control(record: Record) -> Row:
    kind, coordinator_epoch = read_control_record(record)
    if kind in _MARKERS:
        return {"endTxnMarker": _MARKERS[kind], "coordinatorEpoch": coordinator_epoch}
    return {"controlType": f"{dict(enumerate(_METADATA_CONTROLS, 2)).get(kind, 'UNKNOWN')}({kind})"}


# ---------------------------------------------------------------- indexes


def _offset_index(path: Path, what: What) -> Iterator[Line]:
    base = _base_offset(path)
    size = path.stat().st_size
    if what.index_sanity:
        last = deque(_entries(path, OFFSET_ENTRY), maxlen=1)
        sane = size % OFFSET_ENTRY.size == 0 and (not last or last[0][0] > 0)
        yield from _sanity(path, sane)
        return
    log = _mapped_log(path)
    for relative, position in _entries(path, OFFSET_ENTRY):
        if what.entries:
            yield {"offset": base + relative, "position": position}
        batch = _batch_at(log, position)
        if batch is None:
            yield FileFault(f"Mismatches in :{path}: no batch begins at position {position}")
        elif batch.last_offset != base + relative:
            yield FileFault(f"Mismatches in :{path}: Index offset: {base + relative}, log offset: {batch.last_offset}")


def _time_index(path: Path, what: What) -> Iterator[Line]:
    base = _base_offset(path)
    if what.index_sanity:
        ascends = all(before <= after for before, after in pairwise(_entries(path, TIME_ENTRY)))
        yield from _sanity(path, path.stat().st_size % TIME_ENTRY.size == 0 and ascends)
        return
    bases, ends, largest = array("q"), array("q"), array("q")
    for batch in _readable(_mapped_log(path)):
        bases.append(batch.base_offset)
        ends.append(batch.last_offset)
        largest.append(max(batch.max_timestamp, largest[-1]) if largest else batch.max_timestamp)
    previous = -1
    for timestamp, relative in _entries(path, TIME_ENTRY):
        offset = base + relative
        if what.entries:
            yield {"timestamp": timestamp, "offset": offset}
        at = bisect_left(ends, offset)
        if at == len(ends) or (ends[at] != offset and bases[at] > offset):
            yield FileFault(f"The following indexed offsets are not found in the log. {path}: Indexed offset: {offset}")
        elif largest[at] != timestamp:
            yield FileFault(
                f"Found timestamp mismatch in :{path}: Index timestamp: {timestamp}, log timestamp: {largest[at]}"
            )
        if timestamp < previous:
            yield FileFault(
                f"Found out of order timestamp in :{path}: Index timestamp: {timestamp}, "
                f"Previously indexed timestamp: {previous}"
            )
        previous = timestamp


def _txn_index(path: Path, _what: What) -> Iterator[Line]:
    for version, producer_id, first, last, last_stable in _entries(path, TXN_ENTRY):
        yield {
            "version": version,
            "producerId": producer_id,
            "firstOffset": first,
            "lastOffset": last,
            "lastStableOffset": last_stable,
        }


def _sanity(path: Path, sane: bool) -> Iterator[Line]:
    yield {"": f"{path} passed sanity check."} if sane else FileFault(f"{path} failed the sanity check")


def _mapped_log(index: Path) -> memoryview:
    """The mapped segment of an index; empty when it is missing."""
    log = index.with_suffix(".log")
    return _mapped(log) if log.exists() else memoryview(b"")


def _readable(log: memoryview) -> Iterator[RecordBatch]:
    try:
        yield from iter_batches(log)
    except CorruptRecordError:
        return


def _batch_at(log: memoryview, position: int) -> RecordBatch | None:
    return next(_readable(log[position:]), None) if 0 <= position < len(log) else None


def _entries(path: Path, entry: struct.Struct) -> Iterator[tuple[Any, ...]]:
    """The whole entries of an index; a preallocated index ends where its zeros begin."""
    data = _mapped(path)
    for number, fields in enumerate(entry.iter_unpack(data[: len(data) // entry.size * entry.size])):
        if number and not any(fields):
            return
        yield fields


# ---------------------------------------------------------------- other files


def _snapshot(path: Path, _what: What) -> Iterator[Line]:
    try:
        for entry in decode_snapshot(str(path), read_regular(path)):
            row = {
                "producerId": entry.producer_id,
                "producerEpoch": entry.epoch,
                "coordinatorEpoch": entry.coordinator_epoch,
                "currentTxnFirstOffset": _optional(entry.txn_first_offset),
                "lastTimestamp": entry.timestamp,
            }
            if entry.last_offset >= 0:
                row |= {
                    "firstSequence": entry.last_sequence - entry.offset_delta & MAX_SEQUENCE,
                    "lastSequence": entry.last_sequence,
                    "lastOffset": entry.last_offset,
                    "offsetDelta": entry.offset_delta,
                    "timestamp": entry.timestamp,
                }
            yield row
    except MalformedFileError as error:
        yield FileFault(str(error))


def _text(path: Path, _what: What) -> Iterator[Line]:
    """The lines of a checkpoint, which is text; Kafka's tool does not read checkpoints."""
    data = read_regular(path, MAX_FILE_BYTES + 1)
    for line in data[:MAX_FILE_BYTES].decode(errors="replace").splitlines():
        yield {"": line}
    if len(data) > MAX_FILE_BYTES:
        yield FileFault(f"{path} has more than {MAX_FILE_BYTES} bytes, the rest is not read")


def _base_offset(path: Path) -> int:
    name = path.name.split(".")[0]
    if not name.isdecimal():
        raise UnknownFileError(f"{path}: the file's name must begin with its base offset")
    return int(name)


def _optional(value: int) -> str:
    return f"OptionalLong[{value}]" if value >= 0 else "OptionalLong.empty"


READERS: dict[str, Callable[[Path, What], Iterator[Line]]] = {
    ".log": _log,
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": _txn_index,
    ".snapshot": _snapshot,
    "-checkpoint": _text,
    "partition.metadata": _text,
}
