"""What a segment, index, snapshot or checkpoint file holds, as dictionaries: Anabranch's files and Kafka's alike."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from broker.log.producer_snapshot import decode_snapshot
from protocol.batch_layout import CONTROL_COMMIT, LOG_APPEND_TIME
from protocol.errors import KafkaError
from protocol.records import Record, RecordBatch, iter_batches, read_control_record

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
TXN_ENTRY = struct.Struct(">hqqqq")

Row = dict[str, Any]


class UnknownFileError(ValueError):
    """The name says nothing this program can read."""


def dump_file(path: Path, *, records: bool = False) -> Iterator[Row]:
    """One row for each batch or entry of ``path``; with ``records`` a batch's row has its records under ``records``.

    Raises ``UnknownFileError`` for a name with another suffix. Where a file is damaged the last row has ``error`` and
    the byte position.
    """
    for suffix, reader in READERS.items():
        if path.name.endswith(suffix):
            return reader(path, records)
    raise UnknownFileError(f"{path}: no segment file ({', '.join(READERS)})")


def _batches(path: Path, with_records: bool) -> Iterator[Row]:
    data = memoryview(path.read_bytes())
    position = 0
    try:
        for batch in iter_batches(data):
            yield _batch_row(batch, position, with_records)
            position += batch.length
    except KafkaError as error:
        yield {"position": position, "error": error.message}


def _batch_row(batch: RecordBatch, position: int, with_records: bool) -> Row:
    valid = batch.verify_crc()
    row: Row = {
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "count": batch.count,
        "base_sequence": batch.base_sequence,
        "last_sequence": batch.last_sequence,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "partition_leader_epoch": batch.partition_leader_epoch,
        "is_transactional": batch.is_transactional,
        "is_control": batch.is_control,
        "position": position,
        "timestamp_type": "LogAppendTime" if batch.timestamp_type == LOG_APPEND_TIME else "CreateTime",
        "max_timestamp": batch.max_timestamp,
        "size": batch.length,
        "magic": batch.magic,
        "compression": batch.compression.name.lower(),
        "crc": batch.crc,
        "is_valid": valid,
    }
    if with_records and valid:
        row["records"] = [_record_row(batch, record) for record in batch]
    return row


def _record_row(batch: RecordBatch, record: Record) -> Row:
    row: Row = {"offset": record.offset, "timestamp": record.timestamp}
    if batch.is_control:
        kind, coordinator_epoch = read_control_record(record)
        marker = "COMMIT" if kind == CONTROL_COMMIT else "ABORT"
        return {**row, "marker": marker, "coordinator_epoch": coordinator_epoch}
    return {**row, "key": record.key, "value": record.value, "headers": record.headers}


def _offset_index(path: Path, _records: bool) -> Iterator[Row]:
    base = int(path.name.split(".")[0])
    for relative, position in _entries(path, OFFSET_ENTRY):
        yield {"offset": base + relative, "position": position}


def _time_index(path: Path, _records: bool) -> Iterator[Row]:
    base = int(path.name.split(".")[0])
    for timestamp, relative in _entries(path, TIME_ENTRY):
        yield {"timestamp": timestamp, "offset": base + relative}


def _txn_index(path: Path, _records: bool) -> Iterator[Row]:
    for version, producer_id, first, last, last_stable in _entries(path, TXN_ENTRY):
        yield {
            "version": version,
            "producer_id": producer_id,
            "first_offset": first,
            "last_offset": last,
            "last_stable_offset": last_stable,
        }


def _snapshot(path: Path, _records: bool) -> Iterator[Row]:
    for entry in decode_snapshot(str(path), path.read_bytes()):
        yield entry._asdict()


def _checkpoint(path: Path, _records: bool) -> Iterator[Row]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        yield {"line": number, "text": line}


def _entries(path: Path, entry: struct.Struct) -> Iterator[tuple[Any, ...]]:
    """Whole entries; a preallocated index ends where its zeros begin."""
    data = path.read_bytes()
    for number, fields in enumerate(entry.iter_unpack(data[: len(data) // entry.size * entry.size])):
        if number and not any(fields):
            return
        yield fields


READERS: dict[str, Callable[[Path, bool], Iterator[Row]]] = {
    ".log": _batches,
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": _txn_index,
    ".snapshot": _snapshot,
    "-checkpoint": _checkpoint,
    "partition.metadata": _checkpoint,
}
