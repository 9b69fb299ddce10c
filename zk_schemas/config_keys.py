"""The config keys of topics and brokers: Kafka's names, types, defaults and ranges (Kafka 3.x), and a few new keys.

Only keys with an effect are here. ``kafka_keys`` has the names of Kafka's other keys, ``controller_keys`` those of
controllers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.zk_schemas.config_def import (
    INT_MAX,
    LONG_MAX,
    REQUIRED,
    Between,
    ConfigDef,
    ConfigError,
    ConfigKey,
    ConfigType,
    Matches,
    NotEmpty,
    OneOf,
    Synonym,
    UpdateMode,
    Validator,
)
from anabranch.zk_schemas.features import FeatureRanges

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_SHORT, _LONG, _DOUBLE, _LIST = ConfigType.SHORT, ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
_CLUSTER = UpdateMode.CLUSTER_WIDE

_MS_PER_MINUTE = 60_000
_MS_PER_HOUR = 3_600_000
_MS_PER_DAY = 24 * _MS_PER_HOUR

_CLEANUP_POLICIES = OneOf(("delete", "compact"))
_COMPRESSION_TYPES = OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"))
_LEGACY_PRODUCERS = OneOf(("verify", "reject", "accept"))
_LEGACY_CONSUMERS = OneOf(("accept", "hold"))
_TIMESTAMP_TYPES = OneOf(("CreateTime", "LogAppendTime"))
_ADDRESS = Matches(r".*:\d{1,5}", "host:port")
_REPLICAS = Matches(r"\*|\d+:\d+", "* or partition:broker")
LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
_RATIO = Between(0, 1)
_MIN_SEGMENT_BYTES = 14
_POSITIVE = Between(1)
_NATURAL = Between(0)
_UNLIMITED = Between(-1)


def _topic(name: str, kind: ConfigType, default: Any, rule: Validator | None, synonyms: object, doc: str) -> ConfigKey:
    """``synonyms``: the broker key's name, or several ``(name, factor)`` pairs; the first one that is set counts."""
    pairs = synonyms if isinstance(synonyms, tuple) else ((synonyms, 1),)
    return ConfigKey(name, kind, default, rule, _CLUSTER, tuple(Synonym(key, factor) for key, factor in pairs), doc)


AUTOSCALE_KEY = "autoscale.enable"
_LOSS_KEY = "delete.latest.values.when.drained"
_AUTOSCALE_BOUNDS = ("autoscale.min.partitions", "autoscale.max.partitions")

TOPIC_CONFIGS = ConfigDef(
    "topic",
    [
        ConfigKey(
            AUTOSCALE_KEY,
            _BOOLEAN,
            False,
            None,
            _CLUSTER,
            doc="the controller doubles or halves the partition count by the bytes that producers write; not for "
            "compacted and internal topics, and not with enable.ordered.delivery=false",
        ),
        ConfigKey(
            "autoscale.target.bytes.per.second",
            _LONG,
            1 << 20,
            _POSITIVE,
            _CLUSTER,
            doc="bytes/s that producers write to the mean partition, compressed: above it the count doubles, below a "
            "quarter of it the count halves",
        ),
        ConfigKey(
            "autoscale.min.partitions",
            _INT,
            1,
            _POSITIVE,
            _CLUSTER,
            doc="the lowest count that the controller chooses; never below the count at the topic's creation",
        ),
        ConfigKey("autoscale.max.partitions", _INT, 64, _POSITIVE, _CLUSTER, doc="the highest count that is chosen"),
        ConfigKey(
            "autoscale.cooldown.ms",
            _LONG,
            600_000,
            _NATURAL,
            _CLUSTER,
            doc="how long the count stays after a change of the count, and after the election of another controller",
        ),
        ConfigKey(
            "autoscale.window.ms",
            _LONG,
            60_000,
            Between(1_000, _MS_PER_DAY),
            _CLUSTER,
            doc="the time over which the bytes are measured",
        ),
        _topic("cleanup.policy", _LIST, ["delete"], _CLEANUP_POLICIES, "log.cleanup.policy", "delete, compact or both"),
        _topic("compression.type", _STRING, "producer", _COMPRESSION_TYPES, "compression.type", "the codec on disk"),
        _topic(
            "delete.retention.ms",
            _LONG,
            _MS_PER_DAY,
            _NATURAL,
            "log.cleaner.delete.retention.ms",
            "how long a tombstone stays after compaction",
        ),
        ConfigKey(
            _LOSS_KEY,
            _BOOLEAN,
            False,
            None,
            _CLUSTER,
            doc="a marked partition of a compacted topic loses the latest values of its keys once every group has "
            "read them, and older values in other partitions may become visible again; false: the partition stays "
            "until a grow counts it again",
        ),
        ConfigKey(
            "delete.records.when.drained",
            _BOOLEAN,
            False,
            None,
            _CLUSTER,
            doc="a partition marked for deletion loses its records once every group has read them, instead of when "
            "they expire; not in compacted topics",
        ),
        ConfigKey(
            "enable.ordered.delivery",
            _BOOLEAN,
            True,
            None,
            _CLUSTER,
            doc="a key keeps its order across a change of the partition count; it can be changed only before the "
            "first such change",
        ),
        _topic(
            "file.delete.delay.ms",
            _LONG,
            _MS_PER_MINUTE,
            _NATURAL,
            "log.segment.delete.delay.ms",
            "how long a deleted file stays on disk",
        ),
        _topic(
            "flush.messages", _LONG, LONG_MAX, _POSITIVE, "log.flush.interval.messages", "records between two flushes"
        ),
        _topic(
            "flush.ms",
            _LONG,
            LONG_MAX,
            _NATURAL,
            (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
            "time between two flushes",
        ),
        _topic(
            "index.interval.bytes", _INT, 4096, _NATURAL, "log.index.interval.bytes", "log bytes between index entries"
        ),
        ConfigKey(
            "follower.replication.throttled.replicas",
            _LIST,
            [],
            _REPLICAS,
            _CLUSTER,
            doc="replicas whose fetches follower.replication.throttled.rate limits, as partition:broker, or *",
        ),
        ConfigKey(
            "leader.replication.throttled.replicas",
            _LIST,
            [],
            _REPLICAS,
            _CLUSTER,
            doc="replicas whose sends leader.replication.throttled.rate limits, as partition:broker, or *",
        ),
        _topic(
            "max.compaction.lag.ms",
            _LONG,
            LONG_MAX,
            _POSITIVE,
            "log.cleaner.max.compaction.lag.ms",
            "the longest that a record stays uncompacted",
        ),
        _topic("max.message.bytes", _INT, 1_048_588, _NATURAL, "message.max.bytes", "the largest record batch"),
        _topic(
            "message.timestamp.after.max.ms",
            _LONG,
            LONG_MAX,
            _NATURAL,
            "log.message.timestamp.after.max.ms",
            "how far a record's timestamp may be ahead of the broker's clock",
        ),
        _topic(
            "message.timestamp.before.max.ms",
            _LONG,
            LONG_MAX,
            _NATURAL,
            "log.message.timestamp.before.max.ms",
            "how far a record's timestamp may be behind the broker's clock",
        ),
        _topic(
            "message.timestamp.difference.max.ms",
            _LONG,
            LONG_MAX,
            _NATURAL,
            "log.message.timestamp.difference.max.ms",
            "how far a record's timestamp may be from the broker's clock, in both directions",
        ),
        _topic(
            "message.timestamp.type",
            _STRING,
            "CreateTime",
            _TIMESTAMP_TYPES,
            "log.message.timestamp.type",
            "the timestamp of a record: CreateTime is the producer's, LogAppendTime the broker's",
        ),
        _topic(
            "min.cleanable.dirty.ratio",
            _DOUBLE,
            0.5,
            _RATIO,
            "log.cleaner.min.cleanable.ratio",
            "the dirty share of a log from which compaction starts",
        ),
        _topic(
            "min.compaction.lag.ms",
            _LONG,
            0,
            _NATURAL,
            "log.cleaner.min.compaction.lag.ms",
            "the shortest that a record stays uncompacted",
        ),
        _topic("min.insync.replicas", _INT, 1, _POSITIVE, "min.insync.replicas", "replicas that acks=all needs"),
        _topic(
            "ordered.delivery.legacy.consumers",
            _STRING,
            "accept",
            _LEGACY_CONSUMERS,
            "ordered.delivery.legacy.consumers",
            "consumers that do not keep the order of keys by themselves, after the first resize of the topic: accept "
            "(leaders serve them all records), hold (leaders serve them only records that no group has to wait for)",
        ),
        _topic(
            "ordered.delivery.legacy.consumers.max.hold.ms",
            _LONG,
            300_000,
            _POSITIVE,
            "ordered.delivery.legacy.consumers.max.hold.ms",
            "with hold, the longest that leaders wait for a group at one leader epoch of a partition; after that the "
            "group may lose its order",
        ),
        _topic(
            "ordered.delivery.legacy.producers",
            _STRING,
            "verify",
            _LEGACY_PRODUCERS,
            "ordered.delivery.legacy.producers",
            "producers that name no layout, after the first resize of the topic: verify (a batch with a misplaced key "
            "is refused), reject (every batch is refused), accept (keys are not checked)",
        ),
        ConfigKey(
            "ordered.delivery.retention.waits",
            _BOOLEAN,
            False,
            None,
            _CLUSTER,
            doc="retention.ms does not remove records that another partition waits for since a resize and that a "
            "group has not read; retention.bytes still removes them. Only groups with committed offsets of the topic "
            "count",
        ),
        ConfigKey(
            "ordered.delivery.retention.waits.max.ms",
            _LONG,
            7 * _MS_PER_DAY,
            _NATURAL,
            _CLUSTER,
            doc="how long ordered.delivery.retention.waits keeps records at most after retention.ms",
        ),
        _topic("retention.bytes", _LONG, -1, None, "log.retention.bytes", "the largest size of a log; -1: no limit"),
        _topic(
            "retention.ms",
            _LONG,
            7 * _MS_PER_DAY,
            _UNLIMITED,
            (
                ("log.retention.ms", 1),
                ("log.retention.minutes", _MS_PER_MINUTE),
                ("log.retention.hours", _MS_PER_HOUR),
            ),
            "how long records stay; -1: no limit",
        ),
        _topic(
            "segment.bytes",
            _INT,
            1 << 30,
            Between(_MIN_SEGMENT_BYTES, INT_MAX),
            "log.segment.bytes",
            "the size at which a segment is rolled",
        ),
        _topic(
            "segment.index.bytes", _INT, 10 << 20, Between(4), "log.index.size.max.bytes", "the size of an index file"
        ),
        _topic(
            "segment.jitter.ms",
            _LONG,
            0,
            _NATURAL,
            (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _MS_PER_HOUR)),
            "the longest random time that is subtracted from segment.ms, so that not all segments are rolled at once",
        ),
        _topic(
            "segment.ms",
            _LONG,
            7 * _MS_PER_DAY,
            _POSITIVE,
            (("log.roll.ms", 1), ("log.roll.hours", _MS_PER_HOUR)),
            "the age at which a segment is rolled",
        ),
        _topic(
            "unclean.leader.election.enable",
            _BOOLEAN,
            False,
            None,
            "unclean.leader.election.enable",
            "whether a replica outside the ISR may become leader when no other replica can; records may be lost",
        ),
    ],
)

_NETWORK_KEYS = [
    ConfigKey("broker.id", _INT, REQUIRED, _NATURAL, doc="this broker's id"),
    ConfigKey("broker.rack", _STRING, None, doc="the rack of this broker; replicas are spread over racks"),
    ConfigKey("zookeeper.connect", _STRING, REQUIRED, NotEmpty(), doc="host:port,host:port/chroot"),
    ConfigKey("zookeeper.session.timeout.ms", _INT, 18_000, _POSITIVE, doc="the timeout of the ZooKeeper session"),
    ConfigKey(
        "zookeeper.connection.timeout.ms",
        _INT,
        None,
        _POSITIVE,
        doc="how long a starting process waits for the connection to ZooKeeper; default: zookeeper.session.timeout.ms",
    ),
    ConfigKey(
        "jute.maxbuffer",
        _INT,
        0xFFFFF,
        Between(0xFFFFF),
        doc="the longest request that the ZooKeeper servers accept: their own jute.maxbuffer, or less",
    ),
    ConfigKey("listeners", _LIST, ["PLAINTEXT://:9092"], NotEmpty(), doc="NAME://host:port, ..."),
    ConfigKey(
        "advertised.listeners",
        _LIST,
        None,
        Matches(r"[^:/]+://.*:\d{1,5}", "NAME://host:port"),
        UpdateMode.PER_BROKER,
        doc="the addresses that clients connect to; default: listeners",
    ),
    ConfigKey(
        "listener.security.protocol.map",
        _LIST,
        ["PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"],
        NotEmpty(),
        doc="NAME:PROTOCOL, ...",
    ),
    ConfigKey("inter.broker.listener.name", _STRING, None, doc="the listener that the controller and the brokers use"),
    ConfigKey(
        "metrics.listener",
        _STRING,
        None,
        _ADDRESS,
        doc="host:port that serves /metrics, /health/live and /health/ready over HTTP; default: none",
    ),
    ConfigKey(
        "metrics.http.max.connections",
        _INT,
        16,
        _POSITIVE,
        doc="the most connections to metrics.listener; one more closes the connection that has been idle longest, or "
        "is closed itself if none is idle",
    ),
    ConfigKey(
        "metrics.http.max.head.bytes",
        _INT,
        8192,
        Between(1024, 1 << 20),
        doc="the most bytes of the first line and the headers of a request to metrics.listener; with more the answer "
        "is 431",
    ),
    ConfigKey(
        "metrics.http.max.requests",
        _INT,
        1000,
        _POSITIVE,
        doc="the most requests on one connection to metrics.listener; then the connection is closed",
    ),
    ConfigKey(
        "metrics.http.timeout.ms",
        _INT,
        5_000,
        _POSITIVE,
        doc="how long a client of metrics.listener may take to send a request, and to read the answer",
    ),
    ConfigKey(
        "metrics.http.idle.timeout.ms",
        _INT,
        75_000,
        _POSITIVE,
        doc="how long a connection to metrics.listener may be idle between two requests",
    ),
    ConfigKey("metrics.max.topics", _INT, 1000, _NATURAL, doc="topics with their own metrics; the others are summed"),
    ConfigKey(
        "metrics.max.partitions",
        _INT,
        1000,
        _NATURAL,
        doc="partitions, group offsets and waits with their own metrics; the others are summed",
    ),
    ConfigKey("metrics.max.groups", _INT, 500, _NATURAL, doc="groups with their own metrics; the others are summed"),
    ConfigKey(
        "metrics.lag.interval.ms",
        _INT,
        5_000,
        _POSITIVE,
        doc="the time between two requests of a coordinator for the log ends of the partitions that its groups read",
    ),
    ConfigKey(
        "health.loop.lag.ms",
        _INT,
        2_000,
        _POSITIVE,
        doc="a process is not ready if its event loop was blocked for longer than this within the last minute",
    ),
    ConfigKey(
        "logging.levels",
        _LIST,
        ["INFO"],
        Matches(
            rf"(?i:([\w.]+\s*=\s*)?({'|'.join(LOG_LEVELS)}))", f"LEVEL or LOGGER=LEVEL with {', '.join(LOG_LEVELS)}"
        ),
        doc="LEVEL for all loggers, LOGGER=LEVEL for one logger and its children, such as anabranch.broker=DEBUG",
    ),
    ConfigKey("logging.format", _STRING, "console", OneOf(("console", "json")), doc="the format of a log line"),
    ConfigKey(
        "supported.features",
        _LIST,
        None,
        FeatureRanges(),
        doc="FEATURE:MIN-MAX, ...: a part of the features and levels of this release, to rehearse a downgrade; "
        "default: all of them",
    ),
    ConfigKey("socket.request.max.bytes", _INT, 100 << 20, _POSITIVE, doc="the largest request"),
    ConfigKey(
        "admin.request.max.bytes",
        _INT,
        2 << 20,
        _POSITIVE,
        doc="the largest request that creates, changes or deletes topics, configs, partitions or replicas",
    ),
    ConfigKey("socket.send.buffer.bytes", _INT, -1, _UNLIMITED, doc="SO_SNDBUF; -1: the system's"),
    ConfigKey("socket.receive.buffer.bytes", _INT, -1, _UNLIMITED, doc="SO_RCVBUF; -1: the system's"),
    ConfigKey("socket.listen.backlog.size", _INT, 50, _POSITIVE, doc="connections that wait to be accepted"),
    ConfigKey(
        "queued.max.request.bytes",
        _LONG,
        -1,
        _UNLIMITED,
        doc="the most bytes of unanswered requests, held batches included; -1: no limit",
    ),
    ConfigKey(
        "max.retried.partitions.per.connection",
        _INT,
        10_000,
        _POSITIVE,
        doc="the most pairs of partition and producer for which one connection may have batches to repeat; with more "
        "the connection is closed",
    ),
    ConfigKey("connections.max.idle.ms", _LONG, 600_000, _UNLIMITED, doc="idle time after which a connection closes"),
    ConfigKey("max.connections", _INT, INT_MAX, _NATURAL, _CLUSTER, doc="connections at a time"),
    ConfigKey("max.connections.per.ip", _INT, INT_MAX, _NATURAL, _CLUSTER, doc="connections of one address at a time"),
    ConfigKey(
        "request.timeout.ms", _INT, 30_000, _POSITIVE, doc="how long a request of this broker waits for its answer"
    ),
    ConfigKey("controlled.shutdown.enable", _BOOLEAN, True, doc="leaderships move to other brokers before a shutdown"),
    ConfigKey("controlled.shutdown.max.retries", _INT, 3, _NATURAL, doc="attempts to hand leaderships over"),
    ConfigKey("controlled.shutdown.retry.backoff.ms", _LONG, 5_000, _NATURAL, doc="time between two attempts"),
]

_TOPIC_MANAGEMENT_KEYS = [
    ConfigKey("auto.create.topics.enable", _BOOLEAN, True, doc="a topic is created when a client asks for it"),
    ConfigKey("unclean.leader.election.enable", _BOOLEAN, False, None, UpdateMode.ALL_BROKERS),
    ConfigKey("num.partitions", _INT, 1, _POSITIVE, doc="partitions of a topic that is created without a count"),
    ConfigKey("default.replication.factor", _INT, 1, _POSITIVE, doc="replicas of a topic created without a factor"),
    ConfigKey("min.insync.replicas", _INT, 1, _POSITIVE, _CLUSTER),
    ConfigKey("message.max.bytes", _INT, 1_048_588, _NATURAL, _CLUSTER),
    ConfigKey("compression.type", _STRING, "producer", _COMPRESSION_TYPES, _CLUSTER),
    ConfigKey("ordered.delivery.legacy.producers", _STRING, "verify", _LEGACY_PRODUCERS, _CLUSTER),
    ConfigKey(
        "ordered.delivery.legacy.producers.max.hold.ms",
        _INT,
        200,
        Between(0, 5_000),
        doc="how long a broker holds a batch that a producer without idempotence repeats before an earlier batch; "
        "after that the broker refuses the batch, and the producer repeats it again",
    ),
    ConfigKey(
        "ordered.delivery.legacy.producers.silence.ms",
        _INT,
        1_000,
        Between(0, 60_000),
        doc="how long a doubling waits for a producer that placed records by the old count and has sent nothing since",
    ),
    ConfigKey("ordered.delivery.legacy.consumers", _STRING, "accept", _LEGACY_CONSUMERS, _CLUSTER),
    ConfigKey("ordered.delivery.legacy.consumers.max.hold.ms", _LONG, 300_000, _POSITIVE, _CLUSTER),
    ConfigKey(
        "stock.consumer.lease.ms",
        _INT,
        3_000,
        Between(500, 60_000),
        doc="the maximum age of the coordinators' answers by which leaders serve held consumers. A new group waits at "
        "least this time before it begins. All brokers need the same value",
    ),
]

_LOG_KEYS = [
    ConfigKey("log.dir", _STRING, "/tmp/kafka-logs", NotEmpty(), doc="directory of the logs if log.dirs is not set"),
    ConfigKey("log.dirs", _LIST, None, doc="directories of the logs"),
    ConfigKey(
        "log.flush",
        _STRING,
        "os",
        OneOf(("os", "ack")),
        doc="os: the operating system decides when it writes to disk; ack: records are on disk before a produce "
        "request is answered",
    ),
    ConfigKey("log.cleanup.policy", _LIST, ["delete"], _CLEANUP_POLICIES, _CLUSTER),
    ConfigKey("log.segment.bytes", _INT, 1 << 30, Between(_MIN_SEGMENT_BYTES, INT_MAX), _CLUSTER),
    ConfigKey("log.roll.ms", _LONG, None, _POSITIVE, _CLUSTER),
    ConfigKey("log.roll.hours", _INT, 168, _POSITIVE),
    ConfigKey("log.roll.jitter.ms", _LONG, None, _NATURAL, _CLUSTER),
    ConfigKey("log.roll.jitter.hours", _INT, 0, _NATURAL),
    ConfigKey("log.retention.ms", _LONG, None, _UNLIMITED, _CLUSTER),
    ConfigKey("log.retention.minutes", _INT, None, _UNLIMITED),
    ConfigKey("log.retention.hours", _INT, 168, _UNLIMITED),
    ConfigKey("log.retention.bytes", _LONG, -1, None, _CLUSTER),
    ConfigKey("log.retention.check.interval.ms", _LONG, 300_000, _POSITIVE, doc="time between two checks of retention"),
    ConfigKey(
        "ordered.delivery.retention.waits.lease.ms",
        _LONG,
        180_000,
        _NATURAL,
        doc="with ordered.delivery.retention.waits: how long a leader keeps all records in a new leader epoch while "
        "the controller has sent no hold; longer than the controllers' retention.warning.interval.ms and than a "
        "fail-over",
    ),
    ConfigKey("log.dir.room.bytes", _LONG, 64 << 20, _NATURAL, doc="free bytes at which a full log dir is used again"),
    ConfigKey(
        "log.sealed.segments.open.max",
        _INT,
        128,
        _POSITIVE,
        doc="the most segments that take no appends and stay open for readers, over all partitions",
    ),
    ConfigKey("log.segment.delete.delay.ms", _LONG, 60_000, _NATURAL, _CLUSTER),
    ConfigKey("log.index.size.max.bytes", _INT, 10 << 20, Between(4), _CLUSTER),
    ConfigKey("log.index.interval.bytes", _INT, 4096, _NATURAL, _CLUSTER),
    ConfigKey("log.flush.interval.messages", _LONG, LONG_MAX, _POSITIVE, _CLUSTER),
    ConfigKey("log.flush.interval.ms", _LONG, None, _NATURAL, _CLUSTER),
    ConfigKey("log.flush.scheduler.interval.ms", _LONG, LONG_MAX, _POSITIVE, doc="time between two checks for flushes"),
    ConfigKey(
        "log.flush.offset.checkpoint.interval.ms", _INT, 60_000, _NATURAL, doc="how often recovery points are saved"
    ),
    ConfigKey(
        "log.flush.start.offset.checkpoint.interval.ms", _INT, 60_000, _NATURAL, doc="how often log starts are saved"
    ),
    ConfigKey("log.message.timestamp.type", _STRING, "CreateTime", _TIMESTAMP_TYPES, _CLUSTER),
    ConfigKey("log.message.timestamp.difference.max.ms", _LONG, LONG_MAX, _NATURAL, _CLUSTER),
    ConfigKey("log.message.timestamp.before.max.ms", _LONG, LONG_MAX, _NATURAL, _CLUSTER),
    ConfigKey("log.message.timestamp.after.max.ms", _LONG, LONG_MAX, _NATURAL, _CLUSTER),
    ConfigKey("log.cleaner.enable", _BOOLEAN, True, doc="whether compaction runs"),
    ConfigKey("log.cleaner.backoff.ms", _LONG, 15_000, _NATURAL, _CLUSTER, doc="pause when no log is dirty"),
    ConfigKey("log.cleaner.dedupe.buffer.size", _LONG, 128 << 20, Between(1 << 20), _CLUSTER, doc="memory for keys"),
    ConfigKey(
        "log.cleaner.io.max.bytes.per.second",
        _DOUBLE,
        float(LONG_MAX),
        Between(0.0),
        _CLUSTER,
        doc="bytes/s that compaction reads and writes",
    ),
    ConfigKey("log.cleaner.delete.retention.ms", _LONG, _MS_PER_DAY, _NATURAL, _CLUSTER),
    ConfigKey("log.cleaner.min.cleanable.ratio", _DOUBLE, 0.5, _RATIO, _CLUSTER),
    ConfigKey("log.cleaner.min.compaction.lag.ms", _LONG, 0, _NATURAL, _CLUSTER),
    ConfigKey("log.cleaner.max.compaction.lag.ms", _LONG, LONG_MAX, _POSITIVE, _CLUSTER),
]

_COORDINATOR_KEYS = [
    ConfigKey("offset.metadata.max.bytes", _INT, 4096, _NATURAL, doc="the longest metadata of a committed offset"),
    ConfigKey("offsets.topic.num.partitions", _INT, 50, _POSITIVE, doc="partitions of __consumer_offsets"),
    ConfigKey("offsets.topic.replication.factor", _SHORT, 3, _POSITIVE, doc="replicas of __consumer_offsets"),
    ConfigKey("offsets.topic.segment.bytes", _INT, 100 << 20, _POSITIVE, doc="segment size of __consumer_offsets"),
    ConfigKey("offsets.topic.compression.codec", _INT, 0, Between(0, 4), doc="0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd"),
    ConfigKey("offsets.load.buffer.size", _INT, 5 << 20, _POSITIVE, doc="bytes read at a time when offsets are loaded"),
    ConfigKey("offsets.retention.minutes", _INT, 10_080, _POSITIVE, doc="how long the offsets of an empty group stay"),
    ConfigKey("offsets.retention.check.interval.ms", _LONG, 600_000, _POSITIVE, doc="how often offsets expire"),
    ConfigKey("offsets.commit.timeout.ms", _INT, 5_000, _POSITIVE, doc="the longest that a commit waits for replicas"),
    ConfigKey("group.min.session.timeout.ms", _INT, 6_000, _NATURAL, doc="the shortest session timeout of a member"),
    ConfigKey("group.max.session.timeout.ms", _INT, 1_800_000, _NATURAL, doc="the longest session timeout of a member"),
    ConfigKey(
        "group.initial.rebalance.delay.ms", _INT, 3_000, _NATURAL, doc="how long a new group waits for more members"
    ),
    ConfigKey("group.max.size", _INT, INT_MAX, _POSITIVE, doc="members of a group"),
    ConfigKey("fetch.max.bytes", _INT, 55 << 20, Between(1024), doc="the largest answer to a fetch"),
    ConfigKey("max.incremental.fetch.session.cache.slots", _INT, 1_000, _NATURAL, doc="fetch sessions that are kept"),
    ConfigKey(
        "producer.id.expiration.ms", _INT, _MS_PER_DAY, _POSITIVE, _CLUSTER, doc="idle time before a producer expires"
    ),
    ConfigKey("producer.id.expiration.check.interval.ms", _INT, 600_000, _POSITIVE, doc="how often producers expire"),
]

_REPLICATION_KEYS = [
    ConfigKey("replica.lag.time.max.ms", _LONG, 30_000, _POSITIVE, doc="a replica that lags for longer leaves the ISR"),
    ConfigKey("replica.fetch.max.bytes", _INT, 1 << 20, _NATURAL, doc="bytes that a follower requests per partition"),
    ConfigKey("replica.fetch.min.bytes", _INT, 1, _NATURAL, doc="the bytes for which a follower's fetch waits"),
    ConfigKey("replica.fetch.response.max.bytes", _INT, 10 << 20, _NATURAL, doc="bytes of one fetch of a follower"),
    ConfigKey("replica.fetch.wait.max.ms", _INT, 500, _NATURAL, doc="the longest that a follower's fetch waits"),
    ConfigKey("replica.fetch.backoff.ms", _INT, 1_000, _NATURAL, doc="the longest pause after a failed fetch"),
    ConfigKey("replica.socket.timeout.ms", _INT, 30_000, _POSITIVE, doc="how long a follower waits for an answer"),
    ConfigKey("leader.replication.throttled.rate", _LONG, LONG_MAX, _POSITIVE, _CLUSTER, doc="bytes/s sent"),
    ConfigKey("follower.replication.throttled.rate", _LONG, LONG_MAX, _POSITIVE, _CLUSTER, doc="bytes/s fetched"),
    ConfigKey(
        "replica.high.watermark.checkpoint.interval.ms", _LONG, 5_000, _POSITIVE, doc="how often watermarks are saved"
    ),
]

BROKER_CONFIGS = ConfigDef(
    "broker",
    [*_NETWORK_KEYS, *_TOPIC_MANAGEMENT_KEYS, *_LOG_KEYS, *_COORDINATOR_KEYS, *_REPLICATION_KEYS],
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
