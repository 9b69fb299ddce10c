"""The log manager's configuration: broker keys, with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.broker.log.log_config import LogConfig
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS, BrokerKeys
from anabranch.zk_schemas.config_def import of_key, values_of_keys


@dataclass(frozen=True, slots=True)
class LogManagerConfig:
    """The log dirs, the broker that owns them, and the intervals of flushes, compaction and retention.

    ``topic_defaults`` is for topics that set no value.
    """

    broker_id: int
    cluster_id: str
    log_dirs: tuple[str, ...]
    topic_defaults: LogConfig = field(default_factory=LogConfig)
    cleaner_backoff_ms: int = of_key(BROKER_CONFIGS, "log.cleaner.backoff.ms")
    cleaner_dedupe_buffer_bytes: int = of_key(BROKER_CONFIGS, "log.cleaner.dedupe.buffer.size")
    cleaner_enable: bool = of_key(BROKER_CONFIGS, "log.cleaner.enable")
    cleaner_io_max_bytes_per_second: float = of_key(BROKER_CONFIGS, "log.cleaner.io.max.bytes.per.second")
    flush_offset_checkpoint_interval_ms: int = of_key(BROKER_CONFIGS, "log.flush.offset.checkpoint.interval.ms")
    flush_scheduler_interval_ms: int = of_key(BROKER_CONFIGS, "log.flush.scheduler.interval.ms")
    flush_start_offset_checkpoint_interval_ms: int = of_key(
        BROKER_CONFIGS, "log.flush.start.offset.checkpoint.interval.ms"
    )
    high_watermark_checkpoint_interval_ms: int = of_key(BROKER_CONFIGS, "replica.high.watermark.checkpoint.interval.ms")
    open_segments: int = of_key(BROKER_CONFIGS, "log.sealed.segments.open.max")
    producer_id_expiration_check_interval_ms: int = of_key(BROKER_CONFIGS, "producer.id.expiration.check.interval.ms")
    producer_id_expiration_ms: int = of_key(BROKER_CONFIGS, "producer.id.expiration.ms")
    producer_repeated_max_age_ms: int = of_key(BROKER_CONFIGS, "producer.repeated.batch.max.age.ms")
    retention_check_interval_ms: int = of_key(BROKER_CONFIGS, "log.retention.check.interval.ms")
    room_bytes: int = of_key(BROKER_CONFIGS, "log.dir.room.bytes")

    @classmethod
    def of(
        cls,
        values: BrokerKeys,
        *,
        broker_id: int,
        cluster_id: str,
        log_dirs: tuple[str, ...],
        topic_defaults: LogConfig | None = None,
    ) -> LogManagerConfig:
        """Build it from a broker's values."""
        taken = values_of_keys(cls, values.by_key())
        return cls(broker_id, cluster_id, log_dirs, topic_defaults or LogConfig(), **taken)
