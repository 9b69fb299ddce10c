"""The log manager's configuration: broker keys, with Kafka's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.broker.log.log_config import MAX_LONG, LogConfig
from anabranch.broker.log.open_segments import DEFAULT_LIMIT
from anabranch.broker.log.producer_state import DEFAULT_EXPIRATION_MS, DEFAULT_REPEATED_MAX_AGE_MS

_KEYS = {
    "log.cleaner.backoff.ms": "cleaner_backoff_ms",
    "log.cleaner.dedupe.buffer.size": "cleaner_dedupe_buffer_bytes",
    "log.cleaner.enable": "cleaner_enable",
    "log.dir.room.bytes": "room_bytes",
    "log.cleaner.io.max.bytes.per.second": "cleaner_io_max_bytes_per_second",
    "log.flush.offset.checkpoint.interval.ms": "flush_offset_checkpoint_interval_ms",
    "log.flush.scheduler.interval.ms": "flush_scheduler_interval_ms",
    "log.flush.start.offset.checkpoint.interval.ms": "flush_start_offset_checkpoint_interval_ms",
    "log.retention.check.interval.ms": "retention_check_interval_ms",
    "log.sealed.segments.open.max": "open_segments",
    "producer.id.expiration.check.interval.ms": "producer_id_expiration_check_interval_ms",
    "producer.id.expiration.ms": "producer_id_expiration_ms",
    "producer.repeated.batch.max.age.ms": "producer_repeated_max_age_ms",
    "replica.high.watermark.checkpoint.interval.ms": "high_watermark_checkpoint_interval_ms",
}


@dataclass(frozen=True, slots=True)
class LogManagerConfig:
    """The log dirs, the broker that owns them, and the intervals of flushes, compaction and retention.

    ``topic_defaults`` is for topics that set no value.
    """

    broker_id: int
    cluster_id: str
    log_dirs: tuple[str, ...]
    topic_defaults: LogConfig = field(default_factory=LogConfig)
    cleaner_backoff_ms: int = 15_000
    cleaner_dedupe_buffer_bytes: int = 134_217_728
    cleaner_enable: bool = True
    cleaner_io_max_bytes_per_second: float = float(MAX_LONG)
    flush_offset_checkpoint_interval_ms: int = 60_000
    flush_scheduler_interval_ms: int = MAX_LONG
    flush_start_offset_checkpoint_interval_ms: int = 60_000
    high_watermark_checkpoint_interval_ms: int = 5_000
    open_segments: int = DEFAULT_LIMIT
    producer_id_expiration_check_interval_ms: int = 600_000
    producer_id_expiration_ms: int = DEFAULT_EXPIRATION_MS
    producer_repeated_max_age_ms: int = DEFAULT_REPEATED_MAX_AGE_MS
    retention_check_interval_ms: int = 300_000
    room_bytes: int = 64 * 1024 * 1024

    @classmethod
    def from_values(
        cls,
        values: Mapping[str, Any],
        *,
        broker_id: int,
        cluster_id: str,
        log_dirs: tuple[str, ...],
        topic_defaults: LogConfig | None = None,
    ) -> LogManagerConfig:
        """Build it from parsed broker values by Kafka key; other keys are skipped."""
        given = {name: values[key] for key, name in _KEYS.items() if values.get(key) is not None}
        return cls(broker_id, cluster_id, log_dirs, topic_defaults or LogConfig(), **given)
