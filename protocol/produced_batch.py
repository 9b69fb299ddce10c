"""The checks of a batch that a client sends: its header and its CRC (KIP-98). Written for mypyc, like ``records``."""

from __future__ import annotations

from anabranch.protocol.batch_layout import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    MAX_BATCH_ELEMENTS,
    SMALLEST_RECORD_BYTES,
    TRANSACTIONAL_BIT,
    Buffer,
)
from anabranch.protocol.compression import CorruptRecordError
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.records import RecordBatch, frame_length


def read_header(records: object) -> RecordBatch | None:
    """Read the header of the first batch in ``records``, valid or not; None without a whole header of a batch v2."""
    if not isinstance(records, memoryview) or len(records) < HEADER_BYTES or records[MAGIC_AT] != MAGIC:
        return None
    return RecordBatch(records)


def validate_produce_batch(buf: Buffer, max_bytes: int, header: RecordBatch | None = None) -> RecordBatch:
    """Return the only batch that a client may send for a partition. Only its header and its CRC are checked.

    ``header``: the result of ``read_header`` for ``buf``, which is returned; None if the header is not read yet.
    Raises CorruptRecordError with Kafka's code: CORRUPT_MESSAGE (length, magic above 2, CRC), INVALID_RECORD (magic 0
    and 1, no or several batches, impossible count, control batch, sequence missing), MESSAGE_TOO_LARGE (over
    ``max_bytes``), UNSUPPORTED_COMPRESSION_TYPE.
    """
    view = memoryview(buf)
    invalid = ErrorCode.INVALID_RECORD
    if len(view) == 0:
        raise CorruptRecordError("a produce request must hold exactly one record batch per partition", invalid)
    try:
        length = frame_length(view, 0)
    except KafkaError as error:
        if error.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
            raise CorruptRecordError(f"produce v3 and above takes record batch v2 only: {error}", invalid) from None
        raise
    if length == 0:
        raise CorruptRecordError(f"record batch is cut short at {len(view)} bytes")
    if length > max_bytes:
        raise CorruptRecordError(
            f"record batch has {length} bytes, {max_bytes} are allowed (max.message.bytes)", ErrorCode.MESSAGE_TOO_LARGE
        )
    if length < len(view):
        raise CorruptRecordError("a produce request must hold exactly one record batch per partition", invalid)
    batch = RecordBatch(view) if header is None else header
    batch.ensure_valid()
    if batch.count < 1 or batch.count != batch.last_offset_delta + 1:
        raise CorruptRecordError(
            f"record batch claims {batch.count} records, which do not fit last offset delta {batch.last_offset_delta}",
            invalid,
        )
    if batch.count > MAX_BATCH_ELEMENTS:
        raise CorruptRecordError(f"record batch has {batch.count} records, {MAX_BATCH_ELEMENTS} are allowed", invalid)
    attributes, body_bytes = batch.attributes, length - HEADER_BYTES
    if body_bytes < (1 if attributes & CODEC_MASK else batch.count * SMALLEST_RECORD_BYTES):
        raise CorruptRecordError(
            f"record batch claims {batch.count} records, which do not fit into {body_bytes} bytes", invalid
        )
    if attributes & CONTROL_BIT:
        raise CorruptRecordError("clients may not write control records", invalid)
    if batch.producer_id >= 0 and (batch.base_sequence < 0 or batch.producer_epoch < 0):
        raise CorruptRecordError(
            f"record batch of producer {batch.producer_id} has producer epoch {batch.producer_epoch} and base sequence"
            f" {batch.base_sequence}; neither may be negative",
            invalid,
        )
    if attributes & TRANSACTIONAL_BIT and batch.producer_id < 0:
        raise CorruptRecordError("a transactional batch needs a producer id", invalid)
    if attributes & CODEC_MASK:
        batch.compression  # noqa: B018 - raises for an unknown codec
    return batch
