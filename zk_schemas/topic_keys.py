"""The config keys of topics: Kafka's names, types, defaults and ranges (Kafka 3.x), and a few new keys.

Only keys with an effect are here. ``kafka_keys`` has the names of Kafka's other keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.zk_schemas.config_def import (
    INT_MAX,
    LONG_MAX,
    Between,
    ConfigDef,
    ConfigError,
    ConfigKey,
    ConfigType,
    ConfigValues,
    Synonym,
    Validator,
    declared,
)
from anabranch.zk_schemas.key_rules import (
    BOOLEAN,
    CLEANUP_POLICIES,
    CLUSTER,
    COMPRESSION_TYPES,
    DOUBLE,
    INT,
    LIST,
    LONG,
    MIN_SEGMENT_BYTES,
    MS_PER_DAY,
    MS_PER_HOUR,
    MS_PER_MINUTE,
    NATURAL,
    POSITIVE,
    RATIO,
    REPLICAS,
    STOCK_ADMIN,
    STOCK_CONSUMERS,
    STOCK_PRODUCERS,
    STRING,
    TIMESTAMP_TYPES,
    UNLIMITED,
)

AUTOSCALE_KEY = "autoscale.enable"
_LOSS_KEY = "delete.latest.values.when.drained"
_AUTOSCALE_BOUNDS = ("autoscale.min.partitions", "autoscale.max.partitions")


def _topic(kind: ConfigType, default: Any, rule: Validator | None = None, synonyms: object = (), *, doc: str) -> Any:
    """``synonyms``: the broker key's name, or several ``(name, factor)`` pairs. The first pair that is set counts."""
    pairs = synonyms if isinstance(synonyms, tuple) else ((synonyms, 1),)
    return declared(kind, default, rule, CLUSTER, tuple(Synonym(key, factor) for key, factor in pairs), doc)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicKeys(ConfigValues):
    """The keys of a topic."""

    autoscale_enable: bool = _topic(
        BOOLEAN,
        False,
        doc="whether the controller doubles or halves the partition count by the bytes that producers write; not "
        "for compacted and internal topics, and not with enable.ordered.delivery=false",
    )
    autoscale_target_bytes_per_second: int = _topic(
        LONG,
        1 << 20,
        POSITIVE,
        doc="bytes/s that producers write to the mean partition, compressed: above it the count doubles, below a "
        "quarter of it the count halves",
    )
    autoscale_min_partitions: int = _topic(
        INT,
        1,
        POSITIVE,
        doc="the lowest count that the controller chooses; never below the count at the topic's creation",
    )
    autoscale_max_partitions: int = _topic(INT, 64, POSITIVE, doc="the highest count that the controller chooses")
    autoscale_cooldown_ms: int = _topic(
        LONG,
        600_000,
        NATURAL,
        doc="how long the count stays after a change of the count, and after the election of another controller",
    )
    autoscale_window_ms: int = _topic(
        LONG, 60_000, Between(1_000, MS_PER_DAY), doc="the time over which the bytes are measured"
    )
    cleanup_policy: list[str] = _topic(
        LIST, ["delete"], CLEANUP_POLICIES, synonyms="log.cleanup.policy", doc="delete, compact or both"
    )
    compression_type: str = _topic(
        STRING, "producer", COMPRESSION_TYPES, synonyms="compression.type", doc="the codec on disk"
    )
    delete_retention_ms: int = _topic(
        LONG,
        MS_PER_DAY,
        NATURAL,
        synonyms="log.cleaner.delete.retention.ms",
        doc="how long a tombstone stays after compaction",
    )
    delete_latest_values_when_drained: bool = _topic(
        BOOLEAN,
        False,
        doc="a marked partition of a compacted topic loses the latest values of its keys when every group has "
        "read them, and older values in other partitions may become visible again; false: the partition stays "
        "until a grow counts it again",
    )
    delete_records_when_drained: bool = _topic(
        BOOLEAN,
        False,
        doc="a partition marked for deletion loses its records when every group has read them, instead of when "
        "they expire; not in compacted topics",
    )
    enable_ordered_delivery: bool = _topic(
        BOOLEAN,
        True,
        doc="whether a key keeps its order when the partition count changes; the value can be changed only before "
        "the first such change",
    )
    file_delete_delay_ms: int = _topic(
        LONG,
        MS_PER_MINUTE,
        NATURAL,
        synonyms="log.segment.delete.delay.ms",
        doc="how long a deleted file stays on disk",
    )
    flush_messages: int = _topic(
        LONG, LONG_MAX, POSITIVE, synonyms="log.flush.interval.messages", doc="records between two flushes"
    )
    flush_ms: int = _topic(
        LONG,
        LONG_MAX,
        NATURAL,
        synonyms=(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
        doc="time between two flushes",
    )
    index_interval_bytes: int = _topic(
        INT, 4096, NATURAL, synonyms="log.index.interval.bytes", doc="log bytes between index entries"
    )
    follower_replication_throttled_replicas: list[str] = _topic(
        LIST,
        [],
        REPLICAS,
        doc="replicas whose fetches follower.replication.throttled.rate limits, as partition:broker, or *",
    )
    leader_replication_throttled_replicas: list[str] = _topic(
        LIST,
        [],
        REPLICAS,
        doc="replicas whose sends leader.replication.throttled.rate limits, as partition:broker, or *",
    )
    max_compaction_lag_ms: int = _topic(
        LONG,
        LONG_MAX,
        POSITIVE,
        synonyms="log.cleaner.max.compaction.lag.ms",
        doc="the longest time that a record stays uncompacted",
    )
    max_message_bytes: int = _topic(
        INT, 1_048_588, NATURAL, synonyms="message.max.bytes", doc="the largest record batch"
    )
    message_timestamp_after_max_ms: int = _topic(
        LONG,
        MS_PER_HOUR,
        NATURAL,
        synonyms="log.message.timestamp.after.max.ms",
        doc="how far a record's timestamp may be ahead of the broker's clock",
    )
    message_timestamp_before_max_ms: int = _topic(
        LONG,
        LONG_MAX,
        NATURAL,
        synonyms="log.message.timestamp.before.max.ms",
        doc="how far a record's timestamp may be behind the broker's clock",
    )
    message_timestamp_difference_max_ms: int = _topic(
        LONG,
        LONG_MAX,
        NATURAL,
        synonyms="log.message.timestamp.difference.max.ms",
        doc="how far a record's timestamp may be from the broker's clock, in both directions",
    )
    message_timestamp_type: str = _topic(
        STRING,
        "CreateTime",
        TIMESTAMP_TYPES,
        synonyms="log.message.timestamp.type",
        doc="the timestamp of a record: CreateTime is the producer's, LogAppendTime the broker's",
    )
    min_cleanable_dirty_ratio: float = _topic(
        DOUBLE,
        0.5,
        RATIO,
        synonyms="log.cleaner.min.cleanable.ratio",
        doc="the dirty share of a log above which compaction starts",
    )
    min_compaction_lag_ms: int = _topic(
        LONG,
        0,
        NATURAL,
        synonyms="log.cleaner.min.compaction.lag.ms",
        doc="the shortest time that a record stays uncompacted",
    )
    min_insync_replicas: int = _topic(
        INT, 1, POSITIVE, synonyms="min.insync.replicas", doc="in-sync replicas that acks=all needs"
    )
    ordered_delivery_stock_admin: str = _topic(
        STRING,
        "reject",
        STOCK_ADMIN,
        doc="partition counts that a client without ordered resize asks for, if the topic has records: reject (a lower "
        "count is refused, and one that is not the initial count times a power of two), accept (every count that is "
        "possible)",
    )
    ordered_delivery_stock_consumers: str = _topic(
        STRING,
        "accept",
        STOCK_CONSUMERS,
        synonyms="ordered.delivery.stock.consumers",
        doc="consumers that do not keep the order of keys by themselves, after the first resize of the topic: accept "
        "(leaders serve them all records), withhold (leaders serve them only records that no group waits for)",
    )
    ordered_delivery_stock_consumers_max_withhold_ms: int = _topic(
        LONG,
        300_000,
        POSITIVE,
        synonyms="ordered.delivery.stock.consumers.max.withhold.ms",
        doc="with withhold, the longest time that leaders wait for a group at one leader epoch of a partition; after "
        "that the group may lose its order",
    )
    ordered_delivery_stock_producers: str = _topic(
        STRING,
        "verify",
        STOCK_PRODUCERS,
        synonyms="ordered.delivery.stock.producers",
        doc="producers that name no layout, after the first resize of the topic: verify (a batch with a misplaced key "
        "is refused), reject (every batch is refused), accept (keys are not checked)",
    )
    ordered_delivery_retention_waits: bool = _topic(
        BOOLEAN,
        False,
        doc="if a partition waits for records of another partition since a resize, retention.ms does not remove "
        "these records before every group has read them; retention.bytes still removes them. Only groups with "
        "committed offsets of the topic count",
    )
    ordered_delivery_retention_waits_max_ms: int = _topic(
        LONG,
        7 * MS_PER_DAY,
        NATURAL,
        doc="the longest time beyond retention.ms for which ordered.delivery.retention.waits keeps records",
    )
    retention_bytes: int = _topic(
        LONG,
        -1,
        synonyms="log.retention.bytes",
        doc="the bytes that a log keeps: retention deletes the oldest segment if the later segments have at least "
        "this many bytes; -1: no limit",
    )
    retention_ms: int = _topic(
        LONG,
        7 * MS_PER_DAY,
        UNLIMITED,
        synonyms=(
            ("log.retention.ms", 1),
            ("log.retention.minutes", MS_PER_MINUTE),
            ("log.retention.hours", MS_PER_HOUR),
        ),
        doc="how long records stay; -1: no limit",
    )
    segment_bytes: int = _topic(
        INT,
        1 << 30,
        Between(MIN_SEGMENT_BYTES, INT_MAX),
        synonyms="log.segment.bytes",
        doc="the size at which a segment is rolled",
    )
    segment_index_bytes: int = _topic(
        INT,
        10 << 20,
        Between(4),
        synonyms="log.index.size.max.bytes",
        doc="the largest size of an index file; a segment with a full index is rolled",
    )
    segment_jitter_ms: int = _topic(
        LONG,
        0,
        NATURAL,
        synonyms=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", MS_PER_HOUR)),
        doc="the longest random time that is subtracted from segment.ms, so that not all segments are rolled at once",
    )
    segment_ms: int = _topic(
        LONG,
        7 * MS_PER_DAY,
        POSITIVE,
        synonyms=(("log.roll.ms", 1), ("log.roll.hours", MS_PER_HOUR)),
        doc="the age at which a segment is rolled",
    )
    unclean_leader_election_enable: bool = _topic(
        BOOLEAN,
        False,
        synonyms="unclean.leader.election.enable",
        doc="whether a replica outside the ISR may become leader when no other replica can; records may be lost",
    )


TOPIC_CONFIGS = ConfigDef("topic", TopicKeys.all_keys())


def topic_defaults(broker_values: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every topic key for a topic without overrides, from the parsed broker keys."""
    return {key.name: _topic_default(key, broker_values) for key in TOPIC_CONFIGS}


def _topic_default(key: ConfigKey, broker_values: Mapping[str, Any]) -> Any:
    for synonym in key.synonyms:
        value = broker_values.get(synonym.name)
        if value is not None:
            return value * synonym.factor if synonym.factor != 1 and value >= 0 else value
    return key.default


def check_topic_values(values: Mapping[str, Any]) -> None:
    """Check the rules between topic keys, for all parsed overrides of a topic. Raises ``ConfigError``."""
    low = values.get("min.compaction.lag.ms", 0)
    high = values.get("max.compaction.lag.ms", LONG_MAX)
    if low > high:
        raise ConfigError("min.compaction.lag.ms", f"{low} is above max.compaction.lag.ms, which is {high}")
    lowest, highest = (values.get(name, TOPIC_CONFIGS[name].default) for name in _AUTOSCALE_BOUNDS)
    if lowest > highest:
        raise ConfigError(_AUTOSCALE_BOUNDS[0], f"{lowest} is above {_AUTOSCALE_BOUNDS[1]}, which is {highest}")
    if values.get(AUTOSCALE_KEY) and not values.get("enable.ordered.delivery", True):
        raise ConfigError(AUTOSCALE_KEY, "cannot be true with enable.ordered.delivery=false")
    if values.get(AUTOSCALE_KEY) and "compact" in (policies := values.get("cleanup.policy", [])):
        raise ConfigError(AUTOSCALE_KEY, f"cannot be true with cleanup.policy={','.join(policies)}")
    if values.get(_LOSS_KEY) and "compact" not in values.get("cleanup.policy", []):
        raise ConfigError(_LOSS_KEY, "can only be true if the topic sets a cleanup.policy that includes compact")
