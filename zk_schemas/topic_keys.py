"""The config keys of topics: Kafka's names, types, defaults and ranges (Kafka 3.x), and a few new keys.

Only keys with an effect are here. ``kafka_keys`` has the names of Kafka's other keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.zk_schemas.config_def import (
    INT_MAX,
    LONG_MAX,
    Between,
    ConfigDef,
    ConfigError,
    ConfigKey,
    ConfigType,
    Synonym,
    Validator,
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
    STOCK_CONSUMERS,
    STOCK_PRODUCERS,
    STRING,
    TIMESTAMP_TYPES,
    UNLIMITED,
)


def _topic(name: str, kind: ConfigType, default: Any, rule: Validator | None, synonyms: object, doc: str) -> ConfigKey:
    """``synonyms``: the broker key's name, or several ``(name, factor)`` pairs. The first pair that is set counts."""
    pairs = synonyms if isinstance(synonyms, tuple) else ((synonyms, 1),)
    return ConfigKey(name, kind, default, rule, CLUSTER, tuple(Synonym(key, factor) for key, factor in pairs), doc)


AUTOSCALE_KEY = "autoscale.enable"
_LOSS_KEY = "delete.latest.values.when.drained"
_AUTOSCALE_BOUNDS = ("autoscale.min.partitions", "autoscale.max.partitions")

TOPIC_CONFIGS = ConfigDef(
    "topic",
    [
        ConfigKey(
            AUTOSCALE_KEY,
            BOOLEAN,
            False,
            None,
            CLUSTER,
            doc="whether the controller doubles or halves the partition count by the bytes that producers write; not "
            "for compacted and internal topics, and not with enable.ordered.delivery=false",
        ),
        ConfigKey(
            "autoscale.target.bytes.per.second",
            LONG,
            1 << 20,
            POSITIVE,
            CLUSTER,
            doc="bytes/s that producers write to the mean partition, compressed: above it the count doubles, below a "
            "quarter of it the count halves",
        ),
        ConfigKey(
            "autoscale.min.partitions",
            INT,
            1,
            POSITIVE,
            CLUSTER,
            doc="the lowest count that the controller chooses; never below the count at the topic's creation",
        ),
        ConfigKey(
            "autoscale.max.partitions", INT, 64, POSITIVE, CLUSTER, doc="the highest count that the controller chooses"
        ),
        ConfigKey(
            "autoscale.cooldown.ms",
            LONG,
            600_000,
            NATURAL,
            CLUSTER,
            doc="how long the count stays after a change of the count, and after the election of another controller",
        ),
        ConfigKey(
            "autoscale.window.ms",
            LONG,
            60_000,
            Between(1_000, MS_PER_DAY),
            CLUSTER,
            doc="the time over which the bytes are measured",
        ),
        _topic("cleanup.policy", LIST, ["delete"], CLEANUP_POLICIES, "log.cleanup.policy", "delete, compact or both"),
        _topic("compression.type", STRING, "producer", COMPRESSION_TYPES, "compression.type", "the codec on disk"),
        _topic(
            "delete.retention.ms",
            LONG,
            MS_PER_DAY,
            NATURAL,
            "log.cleaner.delete.retention.ms",
            "how long a tombstone stays after compaction",
        ),
        ConfigKey(
            _LOSS_KEY,
            BOOLEAN,
            False,
            None,
            CLUSTER,
            doc="a marked partition of a compacted topic loses the latest values of its keys when every group has "
            "read them, and older values in other partitions may become visible again; false: the partition stays "
            "until a grow counts it again",
        ),
        ConfigKey(
            "delete.records.when.drained",
            BOOLEAN,
            False,
            None,
            CLUSTER,
            doc="a partition marked for deletion loses its records when every group has read them, instead of when "
            "they expire; not in compacted topics",
        ),
        ConfigKey(
            "enable.ordered.delivery",
            BOOLEAN,
            True,
            None,
            CLUSTER,
            doc="whether a key keeps its order when the partition count changes; the value can be changed only before "
            "the first such change",
        ),
        _topic(
            "file.delete.delay.ms",
            LONG,
            MS_PER_MINUTE,
            NATURAL,
            "log.segment.delete.delay.ms",
            "how long a deleted file stays on disk",
        ),
        _topic(
            "flush.messages", LONG, LONG_MAX, POSITIVE, "log.flush.interval.messages", "records between two flushes"
        ),
        _topic(
            "flush.ms",
            LONG,
            LONG_MAX,
            NATURAL,
            (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
            "time between two flushes",
        ),
        _topic(
            "index.interval.bytes", INT, 4096, NATURAL, "log.index.interval.bytes", "log bytes between index entries"
        ),
        ConfigKey(
            "follower.replication.throttled.replicas",
            LIST,
            [],
            REPLICAS,
            CLUSTER,
            doc="replicas whose fetches follower.replication.throttled.rate limits, as partition:broker, or *",
        ),
        ConfigKey(
            "leader.replication.throttled.replicas",
            LIST,
            [],
            REPLICAS,
            CLUSTER,
            doc="replicas whose sends leader.replication.throttled.rate limits, as partition:broker, or *",
        ),
        _topic(
            "max.compaction.lag.ms",
            LONG,
            LONG_MAX,
            POSITIVE,
            "log.cleaner.max.compaction.lag.ms",
            "the longest time that a record stays uncompacted",
        ),
        _topic("max.message.bytes", INT, 1_048_588, NATURAL, "message.max.bytes", "the largest record batch"),
        _topic(
            "message.timestamp.after.max.ms",
            LONG,
            MS_PER_HOUR,
            NATURAL,
            "log.message.timestamp.after.max.ms",
            "how far a record's timestamp may be ahead of the broker's clock",
        ),
        _topic(
            "message.timestamp.before.max.ms",
            LONG,
            LONG_MAX,
            NATURAL,
            "log.message.timestamp.before.max.ms",
            "how far a record's timestamp may be behind the broker's clock",
        ),
        _topic(
            "message.timestamp.difference.max.ms",
            LONG,
            LONG_MAX,
            NATURAL,
            "log.message.timestamp.difference.max.ms",
            "how far a record's timestamp may be from the broker's clock, in both directions",
        ),
        _topic(
            "message.timestamp.type",
            STRING,
            "CreateTime",
            TIMESTAMP_TYPES,
            "log.message.timestamp.type",
            "the timestamp of a record: CreateTime is the producer's, LogAppendTime the broker's",
        ),
        _topic(
            "min.cleanable.dirty.ratio",
            DOUBLE,
            0.5,
            RATIO,
            "log.cleaner.min.cleanable.ratio",
            "the dirty share of a log above which compaction starts",
        ),
        _topic(
            "min.compaction.lag.ms",
            LONG,
            0,
            NATURAL,
            "log.cleaner.min.compaction.lag.ms",
            "the shortest time that a record stays uncompacted",
        ),
        _topic("min.insync.replicas", INT, 1, POSITIVE, "min.insync.replicas", "in-sync replicas that acks=all needs"),
        _topic(
            "ordered.delivery.stock.consumers",
            STRING,
            "accept",
            STOCK_CONSUMERS,
            "ordered.delivery.stock.consumers",
            "consumers that do not keep the order of keys by themselves, after the first resize of the topic: accept "
            "(leaders serve them all records), withhold (leaders serve them only records that no group waits for)",
        ),
        _topic(
            "ordered.delivery.stock.consumers.max.withhold.ms",
            LONG,
            300_000,
            POSITIVE,
            "ordered.delivery.stock.consumers.max.withhold.ms",
            "with withhold, the longest time that leaders wait for a group at one leader epoch of a partition; after "
            "that the group may lose its order",
        ),
        _topic(
            "ordered.delivery.stock.producers",
            STRING,
            "verify",
            STOCK_PRODUCERS,
            "ordered.delivery.stock.producers",
            "producers that name no layout, after the first resize of the topic: verify (a batch with a misplaced key "
            "is refused), reject (every batch is refused), accept (keys are not checked)",
        ),
        ConfigKey(
            "ordered.delivery.retention.waits",
            BOOLEAN,
            False,
            None,
            CLUSTER,
            doc="if a partition waits for records of another partition since a resize, retention.ms does not remove "
            "these records before every group has read them; retention.bytes still removes them. Only groups with "
            "committed offsets of the topic count",
        ),
        ConfigKey(
            "ordered.delivery.retention.waits.max.ms",
            LONG,
            7 * MS_PER_DAY,
            NATURAL,
            CLUSTER,
            doc="the longest time beyond retention.ms for which ordered.delivery.retention.waits keeps records",
        ),
        _topic(
            "retention.bytes",
            LONG,
            -1,
            None,
            "log.retention.bytes",
            "the bytes that a log keeps: retention deletes the oldest segment if the later segments have at least "
            "this many bytes; -1: no limit",
        ),
        _topic(
            "retention.ms",
            LONG,
            7 * MS_PER_DAY,
            UNLIMITED,
            (
                ("log.retention.ms", 1),
                ("log.retention.minutes", MS_PER_MINUTE),
                ("log.retention.hours", MS_PER_HOUR),
            ),
            "how long records stay; -1: no limit",
        ),
        _topic(
            "segment.bytes",
            INT,
            1 << 30,
            Between(MIN_SEGMENT_BYTES, INT_MAX),
            "log.segment.bytes",
            "the size at which a segment is rolled",
        ),
        _topic(
            "segment.index.bytes",
            INT,
            10 << 20,
            Between(4),
            "log.index.size.max.bytes",
            "the largest size of an index file; a segment with a full index is rolled",
        ),
        _topic(
            "segment.jitter.ms",
            LONG,
            0,
            NATURAL,
            (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", MS_PER_HOUR)),
            "the longest random time that is subtracted from segment.ms, so that not all segments are rolled at once",
        ),
        _topic(
            "segment.ms",
            LONG,
            7 * MS_PER_DAY,
            POSITIVE,
            (("log.roll.ms", 1), ("log.roll.hours", MS_PER_HOUR)),
            "the age at which a segment is rolled",
        ),
        _topic(
            "unclean.leader.election.enable",
            BOOLEAN,
            False,
            None,
            "unclean.leader.election.enable",
            "whether a replica outside the ISR may become leader when no other replica can; records may be lost",
        ),
    ],
)


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
