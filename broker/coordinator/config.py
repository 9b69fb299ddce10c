"""The group coordinator's configuration: Kafka's broker keys, names and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MS_PER_MINUTE = 60_000


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Group and offset settings of a broker; every default is Kafka's, if Kafka has the key."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    max_protocols: int = 1_000
    initial_rebalance_delay_ms: int = 3_000
    new_member_join_timeout_ms: int = 300_000
    """How long the first JoinGroup of a member may wait (Kafka's NewMemberJoinTimeoutMs; not a configuration key)."""
    offset_metadata_max_bytes: int = 4_096
    offsets_commit_timeout_ms: int = 5_000
    offsets_retention_ms: int = 10_080 * MS_PER_MINUTE
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 50
    stock_consumer_lease_ms: int = 3_000
    """The maximum age of a TopicReaders answer that leaders use (ordered.delivery.stock.consumers=withhold)."""

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> GroupConfig:
        """Build it from the parsed broker configuration, keyed by Kafka's names; an absent key keeps its default."""
        found = {
            name: int(str(values[key]))
            for key, name in _FIELD_OF_KEY.items()
            if key in values and values[key] is not None
        }
        minutes = values.get("offsets.retention.minutes")
        if minutes is not None:
            found["offsets_retention_ms"] = int(str(minutes)) * MS_PER_MINUTE
        return cls(**found)


_FIELD_OF_KEY = {
    "group.min.session.timeout.ms": "min_session_timeout_ms",
    "group.max.session.timeout.ms": "max_session_timeout_ms",
    "group.max.size": "max_size",
    "group.max.protocols": "max_protocols",
    "group.initial.rebalance.delay.ms": "initial_rebalance_delay_ms",
    "offset.metadata.max.bytes": "offset_metadata_max_bytes",
    "offsets.commit.timeout.ms": "offsets_commit_timeout_ms",
    "offsets.retention.check.interval.ms": "offsets_retention_check_interval_ms",
    "offsets.topic.num.partitions": "offsets_topic_num_partitions",
    "stock.consumer.lease.ms": "stock_consumer_lease_ms",
}
