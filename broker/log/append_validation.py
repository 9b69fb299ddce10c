"""Checks and changes a batch before a leader appends it to the log. Pure: no state of the partition, no clock.

The usual path reads the header and the CRC only. Records are decoded for a compacted topic (null keys), for a topic
``compression.type`` other than the batch's, for ``message.timestamp.before.max.ms``, and if a timestamp of the header
is negative or far in the future.
"""

from __future__ import annotations

from typing import NamedTuple

from anabranch.broker.log.log_config import MAX_LONG, LogConfig
from anabranch.broker.log.producer_state import AppendOrigin
from anabranch.broker.log.slices import at_once
from anabranch.protocol.batch_builder import recode_in_steps
from anabranch.protocol.batch_layout import CODEC_MASK, LOG_APPEND_TIME_BIT, Buffer
from anabranch.protocol.compression import CompressionType, CorruptRecordError
from anabranch.protocol.errors import ErrorCode, KafkaError, RecordError, RefusedRecordsError
from anabranch.protocol.produced_batch import validate_produce_batch
from anabranch.protocol.records import RecordBatch, set_log_append_time
from anabranch.protocol.sentinels import NO_TIMESTAMP

_CODECS = {
    "uncompressed": CompressionType.NONE,
    "gzip": CompressionType.GZIP,
    "snappy": CompressionType.SNAPPY,
    "lz4": CompressionType.LZ4,
    "zstd": CompressionType.ZSTD,
}

_ORDINARY_MAX = 2**62
"""Up to this timestamp in a header, a record's timestamp fits into 64 bits, because no record is later."""

MAX_NAMED_RECORDS = 1_000
"""The largest number of faulty records that one refusal names. More are named when the client sends them again."""


class ReadBatch(NamedTuple):
    """A batch whose header, and perhaps records, were read already; ``recoded``: it with the compression ``codec``."""

    batch: RecordBatch
    codec: CompressionType | None = None
    recoded: bytes | None = None


def validate_append(
    records: Buffer, config: LogConfig, now_ms: int, origin: AppendOrigin, read: ReadBatch | None = None
) -> RecordBatch:
    """Return the one batch in ``records``, checked and in the topic's form; its ``buffer`` is writable.

    ``read``: what has been read of a client's batch already, a view of ``records``.

    The result shares the memory of ``records`` if that is writable and nothing has to be re-encoded. Raises
    ``KafkaError`` with CORRUPT_MESSAGE 2, MESSAGE_TOO_LARGE 10, INVALID_TIMESTAMP 32, UNSUPPORTED_COMPRESSION_TYPE 76
    or INVALID_RECORD 87.
    """
    if origin is AppendOrigin.CLIENT:
        batch = validate_produce_batch(records, config.max_message_bytes, None if read is None else read.batch)
    else:
        batch = _coordinator_batch(records, config.max_message_bytes)
    if batch.attributes & 0x60:  # control, or a delete horizon, which only compaction may set
        if batch.has_delete_horizon:
            raise CorruptRecordError(
                "the batch has a delete horizon, which only compaction may set", ErrorCode.INVALID_RECORD
            )
        return _writable(batch)
    if "compact" in config.cleanup_policy:
        _refuse_null_keys(batch)
    if config.message_timestamp_type == "LogAppendTime":
        batch = _recompressed(batch, config, read)
        if batch.buffer.readonly:
            batch = _writable(batch)
        set_log_append_time(batch.buffer, now_ms)
        stamped = RecordBatch(batch.buffer)
        stamped.take_over(batch)
        return stamped
    if batch.attributes & LOG_APPEND_TIME_BIT:
        raise CorruptRecordError(
            "the batch has the timestamp type LogAppendTime, the topic has message.timestamp.type=CreateTime",
            ErrorCode.INVALID_TIMESTAMP,
        )
    if _has_odd_timestamps(batch, config, now_ms):
        _check_timestamps(batch, config, now_ms)
    if config.compression_type != "producer":
        batch = _recompressed(batch, config, read)
    return _writable(batch) if batch.buffer.readonly else batch


def intact_batch(records: Buffer, read: ReadBatch | None = None) -> RecordBatch | None:
    """The one batch in ``records`` as a client sent it, whatever a config allows; None if it is malformed."""
    try:
        return validate_produce_batch(records, len(records), None if read is None else read.batch)
    except KafkaError:
        return None


def reads_records(batch: RecordBatch, config: LogConfig, now_ms: int) -> bool:
    """Whether ``validate_append`` may look at each record of a batch."""
    return (
        "compact" in config.cleanup_policy
        or codec_to_be(batch, config) is not None
        or _has_odd_timestamps(batch, config, now_ms)
    )


def codec_to_be(batch: RecordBatch, config: LogConfig) -> CompressionType | None:
    """The codec that a batch has to get; None if the batch stays as it is, or if the topic's codec is unknown."""
    codec = _CODECS.get(config.compression_type)
    return None if codec is None or codec == batch.attributes & CODEC_MASK else codec


def _coordinator_batch(records: Buffer, max_bytes: int) -> RecordBatch:
    batch = RecordBatch(records)
    if batch.length != len(batch.buffer):
        raise CorruptRecordError(f"record batch of {batch.length} bytes in a buffer of {len(batch.buffer)}")
    if batch.length > max_bytes:
        raise CorruptRecordError(
            f"record batch has {batch.length} bytes, {max_bytes} are allowed (max.message.bytes)",
            ErrorCode.MESSAGE_TOO_LARGE,
        )
    batch.ensure_valid()
    return batch


def _writable(batch: RecordBatch) -> RecordBatch:
    if not batch.buffer.readonly:
        return batch
    copied = RecordBatch(bytearray(batch.buffer))
    copied.take_over(batch)
    return copied


def _refuse_null_keys(batch: RecordBatch) -> None:
    indices = batch.keyless()
    if indices:
        raise _refused_records(
            ErrorCode.INVALID_RECORD, indices, batch.count, "each record of a compacted topic needs a key"
        )


def _refused_records(code: ErrorCode, indices: list[int], count: int, rule: str) -> RefusedRecordsError:
    """The error for a batch of ``count`` records: it says that the records at ``indices`` break ``rule`` (KIP-467)."""
    named = indices[:MAX_NAMED_RECORDS]
    which = f"the first is record {indices[0]}" if indices else "but the maximum timestamp in its header does"
    message = f"{rule}; {len(indices)} of the batch's {count} records break this rule, {which}"
    return RefusedRecordsError(code, message, [RecordError(index, rule) for index in named])


def _check_timestamps(batch: RecordBatch, config: LogConfig, now_ms: int) -> None:
    after_ms, before_ms = _timestamp_bounds(config)
    records = batch.records()
    indices = [
        index
        for index, record in enumerate(records)
        if record.timestamp != NO_TIMESTAMP and not -after_ms <= now_ms - record.timestamp <= before_ms
    ]
    if indices or batch.max_timestamp - now_ms > after_ms:
        rule = (
            f"a timestamp may be at most {after_ms} ms ahead of the broker's time {now_ms} and {before_ms} ms behind "
            "it (message.timestamp.*.max.ms)"
        )
        raise _refused_records(ErrorCode.INVALID_TIMESTAMP, indices, len(records), rule)
    if batch.max_timestamp < NO_TIMESTAMP and any(record.timestamp > batch.max_timestamp for record in records):
        raise CorruptRecordError(
            f"the batch's header names the maximum timestamp {batch.max_timestamp}, a record has a larger one",
            ErrorCode.INVALID_TIMESTAMP,
        )


def _has_odd_timestamps(batch: RecordBatch, config: LogConfig, now_ms: int) -> bool:
    """Whether, judged by the batch's header alone, a record may have a timestamp that is not allowed or not readable.

    Neither is possible if both timestamps of the header are ordinary, unless the header is wrong about its records.
    """
    after_ms, before_ms = _timestamp_bounds(config)
    base, largest = batch.base_timestamp, batch.max_timestamp
    latest, earliest = (base, largest) if base > largest else (largest, base)
    return latest - now_ms > after_ms or latest > _ORDINARY_MAX or earliest < NO_TIMESTAMP or before_ms != MAX_LONG


def _timestamp_bounds(config: LogConfig) -> tuple[int, int]:
    """The milliseconds by which a timestamp may be ahead of the broker's time and behind it."""
    both_ms = config.message_timestamp_difference_max_ms
    return min(config.message_timestamp_after_max_ms, both_ms), min(config.message_timestamp_before_max_ms, both_ms)


def _recompressed(batch: RecordBatch, config: LogConfig, read: ReadBatch | None) -> RecordBatch:
    """The batch in the topic's codec; unchanged if it has that codec, or if the topic keeps the producer's codec."""
    codec = codec_to_be(batch, config)
    if codec is None:
        return batch
    recoded = read.recoded if read is not None and read.codec == codec else None
    result = RecordBatch(bytearray(recoded or at_once(recode_in_steps(batch, codec))))
    if result.length > config.max_message_bytes:
        raise CorruptRecordError(
            f"record batch has {result.length} bytes when it is compressed with {config.compression_type} "
            f"(compression.type), {config.max_message_bytes} are allowed (max.message.bytes)",
            ErrorCode.MESSAGE_TOO_LARGE,
        )
    return result


def batch_log_append_time(batch: RecordBatch) -> int:
    """The timestamp that the broker gave the batch; -1 if the records have timestamps of their producer."""
    return batch.max_timestamp if batch.attributes & LOG_APPEND_TIME_BIT else NO_TIMESTAMP
