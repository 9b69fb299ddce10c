"""The group coordinator's part of a broker's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS, BrokerKeys
from anabranch.zk_schemas.config_def import of_key, values_of_keys
from anabranch.zk_schemas.key_rules import MS_PER_MINUTE


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Group and offset settings of a broker."""

    min_session_timeout_ms: int = of_key(BROKER_CONFIGS, "group.min.session.timeout.ms")
    max_session_timeout_ms: int = of_key(BROKER_CONFIGS, "group.max.session.timeout.ms")
    max_size: int = of_key(BROKER_CONFIGS, "group.max.size")
    max_protocols: int = of_key(BROKER_CONFIGS, "group.max.protocols")
    members_max_bytes: int = of_key(BROKER_CONFIGS, "group.members.max.bytes")
    initial_rebalance_delay_ms: int = of_key(BROKER_CONFIGS, "group.initial.rebalance.delay.ms")
    new_member_join_timeout_ms: int = 300_000
    """How long the first JoinGroup of a member may wait (Kafka's NewMemberJoinTimeoutMs; not a configuration key)."""
    offset_metadata_max_bytes: int = of_key(BROKER_CONFIGS, "offset.metadata.max.bytes")
    offsets_commit_timeout_ms: int = of_key(BROKER_CONFIGS, "offsets.commit.timeout.ms")
    offsets_retention_ms: int = of_key(BROKER_CONFIGS, "offsets.retention.minutes", MS_PER_MINUTE)
    offsets_retention_check_interval_ms: int = of_key(BROKER_CONFIGS, "offsets.retention.check.interval.ms")
    offsets_topic_num_partitions: int = of_key(BROKER_CONFIGS, "offsets.topic.num.partitions")
    stock_consumer_lease_ms: int = of_key(BROKER_CONFIGS, "stock.consumer.lease.ms")
    """The maximum age of a TopicReaders answer that leaders use (ordered.delivery.stock.consumers=withhold)."""
    response_max_bytes: int = of_key(BROKER_CONFIGS, "socket.response.max.bytes")

    @classmethod
    def of(cls, values: BrokerKeys) -> GroupConfig:
        """Build it from a broker's values."""
        return cls(**values_of_keys(cls, values.by_key()))
