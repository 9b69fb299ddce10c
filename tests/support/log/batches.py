"""Record batches for tests."""

from __future__ import annotations

import struct

from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.batch_layout import CONTROL_KEY, CONTROL_VALUE, CRC_AT, HEADER
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.sentinels import NO_EPOCH

_CRC_FIELD = 4


def batch_of(count: int, *, value_bytes: int = 10, **fields: int) -> bytes:
    """One uncompressed batch of ``count`` keyed records from offset 0; ``fields`` as for ``build_batch``."""
    records = [(b"key-%d" % number, b"v" * value_bytes, [], 1_700_000_000_000 + number) for number in range(count)]
    return build_batch(records, **fields)


def build_control_batch(
    kind: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
) -> bytes:
    """The transaction marker CONTROL_ABORT or CONTROL_COMMIT: a control batch of one record."""
    return build_batch(
        [(CONTROL_KEY.pack(0, kind), CONTROL_VALUE.pack(0, coordinator_epoch), (), timestamp)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def with_field(data: bytearray, index: int, value: int) -> bytearray:
    """Return a copy of the batch with another value in the field ``index`` of ``HEADER``, with the correct CRC."""
    fields = list(HEADER.unpack_from(data))
    fields[index] = value
    changed = bytearray(data)
    HEADER.pack_into(changed, 0, *fields)
    if index != _CRC_FIELD:
        struct.pack_into(">I", changed, CRC_AT, RecordBatch(changed).compute_crc())
    return changed
