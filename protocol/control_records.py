"""The record of a control batch: a transaction marker (KIP-98)."""

from __future__ import annotations

from anabranch.protocol.batch_layout import CONTROL_ABORT, CONTROL_COMMIT, CONTROL_KEY, CONTROL_VALUE
from anabranch.protocol.compression import CorruptRecordError
from anabranch.protocol.records import Record


def read_control_record(record: Record) -> tuple[int, int]:
    """(kind, coordinator epoch) of the record of a control batch. Kinds other than 0 and 1 are not interpreted."""
    key = record.key
    value = record.value
    if key is None or len(key) < CONTROL_KEY.size:
        raise CorruptRecordError(f"control record at offset {record.offset} has no type")
    version, kind = CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecordError(f"control record at offset {record.offset} has version {version}")
    if kind not in (CONTROL_ABORT, CONTROL_COMMIT):
        return kind, -1
    if value is None or len(value) < CONTROL_VALUE.size:
        raise CorruptRecordError(f"transaction marker at offset {record.offset} has no coordinator epoch")
    _, coordinator_epoch = CONTROL_VALUE.unpack_from(value)
    return kind, coordinator_epoch
