"""The config keys of topics and brokers: Kafka's names, types, defaults and ranges (Kafka 3.x), and a few of ours.

Only keys that act are here. ``kafka_keys`` has the names of Kafka's others, ``controller_keys`` those of controllers.
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
_FORMAT_VERSION = Matches(r"\d+\.\d+(\.\d+){0,2}(-IV\d+)?", "a Kafka version like 3.0-IV1")
_ADDRESS = Matches(r".*:\d{1,5}", "host:port")
_REPLICAS = Matches(r"\*|\d+:\d+", "* or partition:broker")
LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
_RATIO = Between(0, 1)
_MIN_SEGMENT_BYTES = 14
_POSITIVE = Between(1)
_NATURAL = Between(0)
_UNLIMITED = Between(-1)


def _topic(name: str, kind: ConfigType, default: Any, rule: Validator | None, synonyms: object, doc: str) -> ConfigKey:
    """``synonyms``: the broker key's name, or several as ``(name, factor)`` pairs, first one set wins."""
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
            doc="the controller doubles and halves the partition count by the bytes that are written; not for "
            "compacted and internal topics, nor with enable.ordered.delivery=false",
        ),
        ConfigKey(
            "autoscale.target.bytes.per.second",
            _LONG,
            1 << 20,
            _POSITIVE,
            _CLUSTER,
            doc="written bytes/s of the mean partition, as compressed by producers: the count doubles above it, and "
            "halves below a quarter of it",
        ),
        ConfigKey(
            "autoscale.min.partitions",
            _INT,
            1,
            _POSITIVE,
            _CLUSTER,
            doc="the lowest count that is chosen; never below the one the topic was created with",
        ),
        ConfigKey("autoscale.max.partitions", _INT, 64, _POSITIVE, _CLUSTER, doc="the highest count that is chosen"),
        ConfigKey(
            "autoscale.cooldown.ms",
            _LONG,
            600_000,
            _NATURAL,
            _CLUSTER,
            doc="how long the count stays after each change, and after another controller has taken office",
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
            doc="in a compacted topic a partition marked for deletion loses the latest values of its keys once every "
            "group has read them, and older ones elsewhere may come back; false: it stays until a grow counts it again",
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
            doc="a key keeps its order across a change of the partition count; changed only before the first one",
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
            doc="replicas that fetch under follower.replication.throttled.rate, as partition:broker, or *",
        ),
        ConfigKey(
            "leader.replication.throttled.replicas",
            _LIST,
            [],
            _REPLICAS,
            _CLUSTER,
            doc="replicas that send under leader.replication.throttled.rate, as partition:broker, or *",
        ),
        _topic(
            "max.compaction.lag.ms",
            _LONG,
            LONG_MAX,
            _POSITIVE,
            "log.cleaner.max.compaction.lag.ms",
            "the longest a record stays uncompacted",
        ),
        _topic("max.message.bytes", _INT, 1_048_588, _NATURAL, "message.max.bytes", "the largest record batch"),
        _topic(
            "message.timestamp.after.max.ms",
            _LONG,
            LONG_MAX,
            _NATURAL,
            "log.message.timestamp.after.max.ms",
            "how far a record's time may lie ahead of the broker's",
        ),
        _topic(
            "message.timestamp.before.max.ms",
            _LONG,
            LONG_MAX,
            _NATURAL,
            "log.message.timestamp.before.max.ms",
            "how far a record's time may lie behind the broker's",
        ),
        _topic(
            "message.timestamp.difference.max.ms",
            _LONG,
            LONG_MAX,
            _NATURAL,
            "log.message.timestamp.difference.max.ms",
            "how far a record's time may be from the broker's, either way",
        ),
        _topic(
            "message.timestamp.type",
            _STRING,
            "CreateTime",
            _TIMESTAMP_TYPES,
            "log.message.timestamp.type",
            "whose time a record carries",
        ),
        _topic(
            "min.cleanable.dirty.ratio",
            _DOUBLE,
            0.5,
            _RATIO,
            "log.cleaner.min.cleanable.ratio",
            "the dirty part of a log from which compaction starts",
        ),
        _topic(
            "min.compaction.lag.ms",
            _LONG,
            0,
            _NATURAL,
            "log.cleaner.min.compaction.lag.ms",
            "the shortest a record stays uncompacted",
        ),
        _topic("min.insync.replicas", _INT, 1, _POSITIVE, "min.insync.replicas", "replicas that acks=all needs"),
        _topic(
            "ordered.delivery.legacy.consumers",
            _STRING,
            "accept",
            _LEGACY_CONSUMERS,
            "ordered.delivery.legacy.consumers",
            "a consumer that does not wait for the order of keys itself, once the topic was resized: accept (it is "
            "given everything), hold (its leaders wait for what all groups have processed)",
        ),
        _topic(
            "ordered.delivery.legacy.consumers.max.hold.ms",
            _LONG,
            300_000,
            _POSITIVE,
            "ordered.delivery.legacy.consumers.max.hold.ms",
            "the longest that a group, at one leader epoch of a partition, is waited for with hold; then its order may "
            "be lost",
        ),
        _topic(
            "ordered.delivery.legacy.producers",
            _STRING,
            "verify",
            _LEGACY_PRODUCERS,
            "ordered.delivery.legacy.producers",
            "a producer that names no layout, once the topic was resized: verify (records with a key that belongs "
            "elsewhere are refused), reject, accept",
        ),
        ConfigKey(
            "ordered.delivery.retention.waits",
            _BOOLEAN,
            False,
            None,
            _CLUSTER,
            doc="what a group has not read, and another partition waits for since a resize, is not removed by "
            "retention.ms; retention.bytes still removes it. Counts for groups with committed offsets of the topic",
        ),
        ConfigKey(
            "ordered.delivery.retention.waits.max.ms",
            _LONG,
            7 * _MS_PER_DAY,
            _NATURAL,
            _CLUSTER,
            doc="how long beyond retention.ms such records stay at most",
        ),
        _topic("retention.bytes", _LONG, -1, None, "log.retention.bytes", "the size a log is cut back to; -1: any"),
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
            "how long records stay; -1: for ever",
        ),
        _topic(
            "segment.bytes",
            _INT,
            1 << 30,
            Between(_MIN_SEGMENT_BYTES, INT_MAX),
            "log.segment.bytes",
            "the size a segment rolls at",
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
            "random time taken off segment.ms, so that not all logs roll at once",
        ),
        _topic(
            "segment.ms",
            _LONG,
            7 * _MS_PER_DAY,
            _POSITIVE,
            (("log.roll.ms", 1), ("log.roll.hours", _MS_PER_HOUR)),
            "the age a segment rolls at",
        ),
        _topic(
            "unclean.leader.election.enable",
            _BOOLEAN,
            False,
            None,
            "unclean.leader.election.enable",
            "whether a replica that is not in sync may lead when no other can, at the price of records",
        ),
    ],
)

_NETWORK_KEYS = [
    ConfigKey("broker.id", _INT, REQUIRED, _NATURAL, doc="this broker's id"),
    ConfigKey("broker.rack", _STRING, None, doc="where this broker stands; replicas are spread over racks"),
    ConfigKey("zookeeper.connect", _STRING, REQUIRED, NotEmpty(), doc="host:port,host:port/chroot"),
    ConfigKey(
        "zookeeper.session.timeout.ms", _INT, 18_000, _POSITIVE, doc="how long ZooKeeper waits for a sign of life"
    ),
    ConfigKey("zookeeper.connection.timeout.ms", _INT, None, _POSITIVE, doc="default: zookeeper.session.timeout.ms"),
    ConfigKey(
        "jute.maxbuffer",
        _INT,
        0xFFFFF,
        Between(0xFFFFF),
        doc="the longest request that the ZooKeeper servers accept; raise it with theirs, never above theirs",
    ),
    ConfigKey("listeners", _LIST, ["PLAINTEXT://:9092"], NotEmpty(), doc="NAME://host:port, ..."),
    ConfigKey(
        "advertised.listeners",
        _LIST,
        None,
        Matches(r"[^:/]+://.*:\d{1,5}", "NAME://host:port"),
        UpdateMode.PER_BROKER,
        doc="what clients connect to; default: listeners",
    ),
    ConfigKey(
        "listener.security.protocol.map",
        _LIST,
        ["PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"],
        NotEmpty(),
        doc="NAME:PROTOCOL, ...",
    ),
    ConfigKey("inter.broker.listener.name", _STRING, None, doc="the listener that controller and brokers use"),
    ConfigKey(
        "metrics.listener",
        _STRING,
        None,
        _ADDRESS,
        doc="host:port of /metrics, /health/live and /health/ready over HTTP; default: none",
    ),
    ConfigKey(
        "metrics.http.max.connections",
        _INT,
        16,
        _POSITIVE,
        doc="connections to metrics.listener; one more closes the one that has been quiet for longest, or is closed",
    ),
    ConfigKey(
        "metrics.http.max.head.bytes",
        _INT,
        8192,
        Between(1024, 1 << 20),
        doc="the first line and the headers of a request to metrics.listener; above it the answer is 431",
    ),
    ConfigKey(
        "metrics.http.max.requests",
        _INT,
        1000,
        _POSITIVE,
        doc="requests of one connection to metrics.listener; then it is closed",
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
        doc="how long a connection to metrics.listener may be quiet between requests",
    ),
    ConfigKey("metrics.max.topics", _INT, 1000, _NATURAL, doc="topics with metrics of their own; others are summed"),
    ConfigKey(
        "metrics.max.partitions",
        _INT,
        1000,
        _NATURAL,
        doc="partitions, offsets of groups and waits with metrics of their own; the others are summed",
    ),
    ConfigKey("metrics.max.groups", _INT, 500, _NATURAL, doc="groups with metrics of their own; the others are summed"),
    ConfigKey(
        "metrics.lag.interval.ms",
        _INT,
        5_000,
        _POSITIVE,
        doc="how often a coordinator asks other leaders where the partitions end that its groups read",
    ),
    ConfigKey(
        "health.loop.lag.ms",
        _INT,
        2_000,
        _POSITIVE,
        doc="a process whose event loop was held up for longer within the last minute is not ready",
    ),
    ConfigKey(
        "logging.levels",
        _LIST,
        ["INFO"],
        Matches(
            rf"(?i:([\w.]+\s*=\s*)?({'|'.join(LOG_LEVELS)}))", f"LEVEL or LOGGER=LEVEL with {', '.join(LOG_LEVELS)}"
        ),
        doc="LEVEL for all loggers, LOGGER=LEVEL for one and those below it, such as anabranch.broker=DEBUG",
    ),
    ConfigKey("logging.format", _STRING, "console", OneOf(("console", "json")), doc="how a line of the log is written"),
    ConfigKey(
        "supported.features",
        _LIST,
        None,
        FeatureRanges(),
        doc="FEATURE:MIN-MAX, ...: fewer than this release has, to rehearse a downgrade; default: all of them",
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
        doc="bytes of unanswered requests, held batches included; -1: any",
    ),
    ConfigKey(
        "max.retried.partitions.per.connection",
        _INT,
        10_000,
        _POSITIVE,
        doc="partitions, each with a producer, of which one connection may have batches to repeat; it closes above",
    ),
    ConfigKey("connections.max.idle.ms", _LONG, 600_000, _UNLIMITED, doc="idle time after which a connection closes"),
    ConfigKey("max.connections", _INT, INT_MAX, _NATURAL, _CLUSTER, doc="connections at a time"),
    ConfigKey("max.connections.per.ip", _INT, INT_MAX, _NATURAL, _CLUSTER, doc="connections of one address at a time"),
    ConfigKey(
        "request.timeout.ms", _INT, 30_000, _POSITIVE, doc="how long a request of this broker waits for its answer"
    ),
    ConfigKey("controlled.shutdown.enable", _BOOLEAN, True, doc="hand leaders over before stopping"),
    ConfigKey("controlled.shutdown.max.retries", _INT, 3, _NATURAL, doc="attempts to hand leaders over"),
    ConfigKey("controlled.shutdown.retry.backoff.ms", _LONG, 5_000, _NATURAL, doc="time between two attempts"),
]

_TOPIC_MANAGEMENT_KEYS = [
    ConfigKey("auto.create.topics.enable", _BOOLEAN, True, doc="create a topic when a client asks for it"),
    ConfigKey("unclean.leader.election.enable", _BOOLEAN, False, None, UpdateMode.ALL_BROKERS),
    ConfigKey("num.partitions", _INT, 1, _POSITIVE, doc="partitions of a topic that does not say"),
    ConfigKey("default.replication.factor", _INT, 1, _POSITIVE, doc="replicas of a topic that does not say"),
    ConfigKey("min.insync.replicas", _INT, 1, _POSITIVE, _CLUSTER),
    ConfigKey("message.max.bytes", _INT, 1_048_588, _NATURAL, _CLUSTER),
    ConfigKey("compression.type", _STRING, "producer", _COMPRESSION_TYPES, _CLUSTER),
    ConfigKey("ordered.delivery.legacy.producers", _STRING, "verify", _LEGACY_PRODUCERS, _CLUSTER),
    ConfigKey(
        "ordered.delivery.legacy.producers.max.hold.ms",
        _INT,
        200,
        Between(0, 5_000),
        doc="how long a batch is held that a producer without idempotence repeats before an earlier one; then it is "
        "refused to be repeated again",
    ),
    ConfigKey(
        "ordered.delivery.legacy.producers.silence.ms",
        _INT,
        1_000,
        Between(0, 60_000),
        doc="how long a doubling waits for a producer that wrote by the old count and has been silent since",
    ),
    ConfigKey("ordered.delivery.legacy.consumers", _STRING, "accept", _LEGACY_CONSUMERS, _CLUSTER),
    ConfigKey("ordered.delivery.legacy.consumers.max.hold.ms", _LONG, 300_000, _POSITIVE, _CLUSTER),
    ConfigKey(
        "stock.consumer.lease.ms",
        _INT,
        3_000,
        Between(500, 60_000),
        doc="how old the answers of coordinators may be by which leaders serve held consumers, and so how long a new "
        "group waits before it may begin; the same on all brokers",
    ),
]

_LOG_KEYS = [
    ConfigKey("log.dir", _STRING, "/tmp/kafka-logs", NotEmpty(), doc="used when log.dirs is not set"),
    ConfigKey("log.dirs", _LIST, None, doc="where logs are kept"),
    ConfigKey(
        "log.flush",
        _STRING,
        "os",
        OneOf(("os", "ack")),
        doc="os: the operating system writes when it likes; ack: on disk before a produce is answered",
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
    ConfigKey("log.retention.check.interval.ms", _LONG, 300_000, _POSITIVE, doc="how often retention is applied"),
    ConfigKey(
        "ordered.delivery.retention.waits.lease.ms",
        _LONG,
        180_000,
        _NATURAL,
        doc="with ordered.delivery.retention.waits: how long a leader keeps everything in a new leader epoch until "
        "the controller says what to keep; longer than retention.warning.interval.ms of controllers and a fail-over",
    ),
    ConfigKey("log.dir.room.bytes", _LONG, 64 << 20, _NATURAL, doc="free bytes at which a full log dir is used again"),
    ConfigKey(
        "log.sealed.segments.open.max",
        _INT,
        128,
        _POSITIVE,
        doc="segments that take no appends and stay open for readers, of all partitions",
    ),
    ConfigKey("log.segment.delete.delay.ms", _LONG, 60_000, _NATURAL, _CLUSTER),
    ConfigKey("log.index.size.max.bytes", _INT, 10 << 20, Between(4), _CLUSTER),
    ConfigKey("log.index.interval.bytes", _INT, 4096, _NATURAL, _CLUSTER),
    ConfigKey("log.flush.interval.messages", _LONG, LONG_MAX, _POSITIVE, _CLUSTER),
    ConfigKey("log.flush.interval.ms", _LONG, None, _NATURAL, _CLUSTER),
    ConfigKey("log.flush.scheduler.interval.ms", _LONG, LONG_MAX, _POSITIVE, doc="how often flushes are looked for"),
    ConfigKey("log.flush.offset.checkpoint.interval.ms", _INT, 60_000, _NATURAL, doc="recovery points are written"),
    ConfigKey("log.flush.start.offset.checkpoint.interval.ms", _INT, 60_000, _NATURAL, doc="log starts are written"),
    ConfigKey("log.message.timestamp.type", _STRING, "CreateTime", _TIMESTAMP_TYPES, _CLUSTER),
    ConfigKey("log.message.timestamp.difference.max.ms", _LONG, LONG_MAX, _NATURAL, _CLUSTER),
    ConfigKey("log.message.timestamp.before.max.ms", _LONG, LONG_MAX, _NATURAL, _CLUSTER),
    ConfigKey("log.message.timestamp.after.max.ms", _LONG, LONG_MAX, _NATURAL, _CLUSTER),
    ConfigKey("log.cleaner.enable", _BOOLEAN, True, doc="whether compaction runs"),
    ConfigKey("log.cleaner.backoff.ms", _LONG, 15_000, _NATURAL, _CLUSTER, doc="pause when nothing is dirty"),
    ConfigKey("log.cleaner.dedupe.buffer.size", _LONG, 128 << 20, Between(1 << 20), _CLUSTER, doc="memory for keys"),
    ConfigKey("log.cleaner.io.max.bytes.per.second", _DOUBLE, float(LONG_MAX), Between(0.0), _CLUSTER),
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
    ConfigKey("offsets.load.buffer.size", _INT, 5 << 20, _POSITIVE, doc="bytes read at a time when loading"),
    ConfigKey("offsets.retention.minutes", _INT, 10_080, _POSITIVE, doc="offsets of an empty group stay this long"),
    ConfigKey("offsets.retention.check.interval.ms", _LONG, 600_000, _POSITIVE, doc="how often offsets expire"),
    ConfigKey("offsets.commit.timeout.ms", _INT, 5_000, _POSITIVE, doc="the longest a commit waits for replicas"),
    ConfigKey("group.min.session.timeout.ms", _INT, 6_000, _NATURAL, doc="the shortest session timeout of a member"),
    ConfigKey("group.max.session.timeout.ms", _INT, 1_800_000, _NATURAL, doc="the longest session timeout of a member"),
    ConfigKey("group.initial.rebalance.delay.ms", _INT, 3_000, _NATURAL, doc="wait for more members of a new group"),
    ConfigKey("group.max.size", _INT, INT_MAX, _POSITIVE, doc="members of a group"),
    ConfigKey("fetch.max.bytes", _INT, 55 << 20, Between(1024), doc="the largest answer to a fetch"),
    ConfigKey("max.incremental.fetch.session.cache.slots", _INT, 1_000, _NATURAL, doc="fetch sessions kept"),
    ConfigKey("producer.id.expiration.ms", _INT, _MS_PER_DAY, _POSITIVE, _CLUSTER, doc="an idle producer is forgotten"),
    ConfigKey("producer.id.expiration.check.interval.ms", _INT, 600_000, _POSITIVE, doc="how often producers expire"),
]

_REPLICATION_KEYS = [
    ConfigKey("replica.lag.time.max.ms", _LONG, 30_000, _POSITIVE, doc="a replica this far behind leaves the ISR"),
    ConfigKey("replica.fetch.max.bytes", _INT, 1 << 20, _NATURAL, doc="what a follower asks for of one partition"),
    ConfigKey("replica.fetch.min.bytes", _INT, 1, _NATURAL, doc="what a follower's fetch waits for"),
    ConfigKey("replica.fetch.response.max.bytes", _INT, 10 << 20, _NATURAL, doc="what a follower's fetch asks for"),
    ConfigKey("replica.fetch.wait.max.ms", _INT, 500, _NATURAL, doc="how long a follower's fetch waits"),
    ConfigKey("replica.fetch.backoff.ms", _INT, 1_000, _NATURAL, doc="the longest pause after a failed fetch"),
    ConfigKey("replica.socket.timeout.ms", _INT, 30_000, _POSITIVE, doc="a leader that takes longer is given up"),
    ConfigKey("leader.replication.throttled.rate", _LONG, LONG_MAX, _POSITIVE, _CLUSTER, doc="bytes/s sent"),
    ConfigKey("follower.replication.throttled.rate", _LONG, LONG_MAX, _POSITIVE, _CLUSTER, doc="bytes/s fetched"),
    ConfigKey("replica.high.watermark.checkpoint.interval.ms", _LONG, 5_000, _POSITIVE, doc="watermarks are written"),
]

BROKER_CONFIGS = ConfigDef(
    "broker",
    [*_NETWORK_KEYS, *_TOPIC_MANAGEMENT_KEYS, *_LOG_KEYS, *_COORDINATOR_KEYS, *_REPLICATION_KEYS],
)


def topic_defaults(broker_values: Mapping[str, Any]) -> dict[str, Any]:
    """What topics without overrides get at a broker: every topic key, from the parsed broker keys."""
    return {key.name: _topic_default(key, broker_values) for key in TOPIC_CONFIGS}


def _topic_default(key: ConfigKey, broker_values: Mapping[str, Any]) -> Any:
    for synonym in key.synonyms:
        value = broker_values.get(synonym.name)
        if value is not None:
            return value * synonym.factor if synonym.factor != 1 and value >= 0 else value
    return key.default


def check_topic_values(values: Mapping[str, Any]) -> None:
    """The rules between topic keys, given all of a topic's parsed overrides. Raises ``ConfigError``."""
    low = values.get("min.compaction.lag.ms", 0)
    high = values.get("max.compaction.lag.ms", LONG_MAX)
    if low > high:
        raise ConfigError("min.compaction.lag.ms", f"{low} is above max.compaction.lag.ms, which is {high}")
    lowest, highest = (values.get(name, TOPIC_CONFIGS[name].default) for name in _AUTOSCALE_BOUNDS)
    if lowest > highest:
        raise ConfigError(_AUTOSCALE_BOUNDS[0], f"{lowest} is above {_AUTOSCALE_BOUNDS[1]}, which is {highest}")
    if values.get(AUTOSCALE_KEY) and not values.get("enable.ordered.delivery", True):
        raise ConfigError(AUTOSCALE_KEY, "true does not go with enable.ordered.delivery=false")
    if values.get(AUTOSCALE_KEY) and "compact" in (policies := values.get("cleanup.policy", [])):
        raise ConfigError(AUTOSCALE_KEY, f"true does not go with cleanup.policy={','.join(policies)}")
    if values.get(_LOSS_KEY) and "compact" not in values.get("cleanup.policy", []):
        raise ConfigError(_LOSS_KEY, "true goes with a cleanup.policy of the topic that includes compact")
