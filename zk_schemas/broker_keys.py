"""The config keys of brokers: Kafka's names, types, defaults and ranges (Kafka 3.x), and a few new keys.

Only keys with an effect are here. ``kafka_keys`` has the names of Kafka's other keys.
"""

from __future__ import annotations

from anabranch.zk_schemas.config_def import (
    INT_MAX,
    LONG_MAX,
    REQUIRED,
    Between,
    ConfigDef,
    ConfigKey,
    Matches,
    NotEmpty,
    OneOf,
    UpdateMode,
)
from anabranch.zk_schemas.features import FeatureRanges
from anabranch.zk_schemas.key_rules import (
    ADDRESS,
    BOOLEAN,
    CLEANUP_POLICIES,
    CLUSTER,
    COMPRESSION_TYPES,
    DOUBLE,
    INT,
    LIST,
    LOG_LEVELS,
    LONG,
    MIN_SEGMENT_BYTES,
    MS_PER_DAY,
    MS_PER_HOUR,
    NATURAL,
    POSITIVE,
    RATIO,
    SHORT,
    STOCK_CONSUMERS,
    STOCK_PRODUCERS,
    STRING,
    TIMESTAMP_TYPES,
    UNLIMITED,
)

_NETWORK_KEYS = [
    ConfigKey("broker.id", INT, REQUIRED, NATURAL, doc="this broker's id"),
    ConfigKey("broker.rack", STRING, None, doc="the rack of this broker; replicas are spread over racks"),
    ConfigKey(
        "zookeeper.connect", STRING, REQUIRED, NotEmpty(), doc="the ZooKeeper servers, as host:port,host:port/chroot"
    ),
    ConfigKey("zookeeper.session.timeout.ms", INT, 18_000, POSITIVE, doc="the timeout of the ZooKeeper session"),
    ConfigKey(
        "zookeeper.connection.timeout.ms",
        INT,
        None,
        POSITIVE,
        doc="how long a starting process waits for the connection to ZooKeeper; default: zookeeper.session.timeout.ms",
    ),
    ConfigKey(
        "jute.maxbuffer",
        INT,
        0xFFFFF,
        Between(0xFFFFF),
        doc="the longest request that the ZooKeeper servers accept: their own jute.maxbuffer, or less",
    ),
    ConfigKey(
        "listeners",
        LIST,
        ["PLAINTEXT://:9092"],
        NotEmpty(),
        doc="the addresses that the broker listens on, as NAME://host:port, ...; without a host: all interfaces",
    ),
    ConfigKey(
        "advertised.listeners",
        LIST,
        None,
        Matches(r"[^:/]+://.*:\d{1,5}", "NAME://host:port"),
        UpdateMode.PER_BROKER,
        doc="the addresses that clients connect to; default: listeners",
    ),
    ConfigKey(
        "listener.security.protocol.map",
        LIST,
        ["PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"],
        NotEmpty(),
        doc="the protocol of each listener, as NAME:PROTOCOL, ...; only PLAINTEXT is supported",
    ),
    ConfigKey(
        "inter.broker.listener.name",
        STRING,
        None,
        doc="the listener of a broker that the controllers and other brokers connect to; default: its first listener",
    ),
    ConfigKey(
        "metrics.listener",
        STRING,
        None,
        ADDRESS,
        doc="host:port that serves /metrics, /health/live and /health/ready over HTTP; default: none",
    ),
    ConfigKey(
        "metrics.http.max.connections",
        INT,
        16,
        POSITIVE,
        doc="the most connections to metrics.listener; one more closes the connection that has been idle longest, or "
        "is closed itself if none is idle",
    ),
    ConfigKey(
        "metrics.http.max.head.bytes",
        INT,
        8192,
        Between(1024, 1 << 20),
        doc="the most bytes of the first line and the headers of a request to metrics.listener; with more the answer "
        "is 431",
    ),
    ConfigKey(
        "metrics.http.max.requests",
        INT,
        1000,
        POSITIVE,
        doc="the most requests on one connection to metrics.listener; then the connection is closed",
    ),
    ConfigKey(
        "metrics.http.timeout.ms",
        INT,
        5_000,
        POSITIVE,
        doc="how long a client of metrics.listener may take to send a request, and to read the answer",
    ),
    ConfigKey(
        "metrics.http.idle.timeout.ms",
        INT,
        75_000,
        POSITIVE,
        doc="how long a connection to metrics.listener may be idle between two requests",
    ),
    ConfigKey("metrics.max.topics", INT, 1000, NATURAL, doc="topics with their own metrics; the others are summed"),
    ConfigKey(
        "metrics.max.partitions",
        INT,
        1000,
        NATURAL,
        doc="partitions, group offsets and waits with their own metrics; the others are summed",
    ),
    ConfigKey("metrics.max.groups", INT, 500, NATURAL, doc="groups with their own metrics; the others are summed"),
    ConfigKey(
        "metrics.lag.interval.ms",
        INT,
        5_000,
        POSITIVE,
        doc="the time between two requests of a coordinator for the log ends of the partitions that its groups read",
    ),
    ConfigKey(
        "health.loop.lag.ms",
        INT,
        2_000,
        POSITIVE,
        doc="a process is not ready if its event loop was blocked for longer than this within the last minute",
    ),
    ConfigKey(
        "logging.levels",
        LIST,
        ["INFO"],
        Matches(
            rf"(?i:([\w.]+\s*=\s*)?({'|'.join(LOG_LEVELS)}))", f"LEVEL or LOGGER=LEVEL with {', '.join(LOG_LEVELS)}"
        ),
        doc="LEVEL for all loggers, LOGGER=LEVEL for one logger and its children, such as anabranch.broker=DEBUG",
    ),
    ConfigKey("logging.format", STRING, "console", OneOf(("console", "json")), doc="the format of a log line"),
    ConfigKey(
        "supported.features",
        LIST,
        None,
        FeatureRanges(),
        doc="FEATURE:MIN-MAX, ...: a part of the features and levels of this release, to rehearse a downgrade; "
        "default: all of them",
    ),
    ConfigKey(
        "socket.request.max.bytes",
        INT,
        100 << 20,
        POSITIVE,
        doc="the largest request: of Produce, and of the controller to a broker",
    ),
    ConfigKey(
        "small.request.max.bytes",
        INT,
        16 << 20,
        POSITIVE,
        doc="the largest request of any other kind, if socket.request.max.bytes is not less",
    ),
    ConfigKey(
        "admin.request.max.bytes",
        INT,
        2 << 20,
        POSITIVE,
        doc="the largest request that creates, changes or deletes topics, configs, partitions or replicas",
    ),
    ConfigKey(
        "request.max.elements",
        INT,
        1_000_000,
        POSITIVE,
        doc="the most elements of a request: the items of all its arrays, where a batch of records is one",
    ),
    ConfigKey(
        "admin.request.max.elements",
        INT,
        200_000,
        POSITIVE,
        doc="the same for a request that admin.request.max.bytes is for",
    ),
    ConfigKey(
        "controller.request.max.elements",
        INT,
        10_000_000,
        POSITIVE,
        doc="the most elements of a request of the controller, which may name every partition",
    ),
    ConfigKey(
        "decoded.requests.max.bytes",
        LONG,
        64 << 20,
        UNLIMITED,
        doc="a request of many parts waits, before it is decoded, while such requests of all connections take half of "
        "this memory; the other half is for Produce, Fetch and the requests between brokers and controllers; one "
        "request of any size may exceed it; -1: no limit",
    ),
    ConfigKey(
        "socket.response.max.bytes",
        INT,
        64 << 20,
        POSITIVE,
        doc="the largest response, without the records of a fetch (fetch.max.bytes); instead of a larger one, "
        "the connection is closed",
    ),
    ConfigKey("socket.send.buffer.bytes", INT, -1, UNLIMITED, doc="SO_SNDBUF; -1: the system's"),
    ConfigKey("socket.receive.buffer.bytes", INT, -1, UNLIMITED, doc="SO_RCVBUF; -1: the system's"),
    ConfigKey("socket.listen.backlog.size", INT, 4_096, POSITIVE, doc="connections that wait to be accepted"),
    ConfigKey(
        "socket.keepalive.timeout.ms",
        INT,
        30_000,
        Between(1_000),
        doc="TCP ends a connection that this process made, to a broker, a controller or ZooKeeper, if the other side "
        "has acknowledged nothing for this long, also while the connection is idle",
    ),
    ConfigKey(
        "controller.silence.ms",
        INT,
        5_000,
        POSITIVE,
        doc="if the active controller owes an answer and has sent none for this long, the broker asks it for its API "
        "versions; a controller that leaves this unanswered for as long again gets a new connection",
    ),
    ConfigKey(
        "queued.max.request.bytes",
        LONG,
        -1,
        UNLIMITED,
        doc="the broker reads no further request while the requests that it receives or handles, the held batches, "
        "and the responses that are not sent yet, have this many bytes; -1: no limit",
    ),
    ConfigKey(
        "max.retried.partitions.per.connection",
        INT,
        10_000,
        POSITIVE,
        doc="the most pairs of partition and producer for which one connection may have batches to repeat; with more "
        "the connection is closed",
    ),
    ConfigKey(
        "connections.max.idle.ms",
        LONG,
        600_000,
        UNLIMITED,
        doc="idle time after which a connection closes; -1: no limit",
    ),
    ConfigKey(
        "max.connections",
        INT,
        INT_MAX,
        NATURAL,
        CLUSTER,
        doc="the most connections at a time; more wait to be accepted. If there are several listeners, "
        "the one of inter.broker.listener.name always accepts",
    ),
    ConfigKey(
        "max.connections.per.ip",
        INT,
        INT_MAX,
        NATURAL,
        CLUSTER,
        doc="the most connections of one address at a time; more are closed",
    ),
    ConfigKey(
        "request.timeout.ms", INT, 30_000, POSITIVE, doc="how long a request of this broker waits for its answer"
    ),
    ConfigKey(
        "controlled.shutdown.enable", BOOLEAN, True, doc="whether leaderships move to other brokers before a shutdown"
    ),
    ConfigKey(
        "controlled.shutdown.max.retries",
        INT,
        3,
        NATURAL,
        doc="how often the request to move leaderships is repeated after the first attempt",
    ),
    ConfigKey(
        "controlled.shutdown.retry.backoff.ms",
        LONG,
        5_000,
        NATURAL,
        doc="time between two attempts of a controlled shutdown, and the longest that an attempt waits for its answer",
    ),
]

_TOPIC_MANAGEMENT_KEYS = [
    ConfigKey("auto.create.topics.enable", BOOLEAN, True, doc="whether a topic is created when a client asks for it"),
    ConfigKey("unclean.leader.election.enable", BOOLEAN, False, None, UpdateMode.ALL_BROKERS),
    ConfigKey("num.partitions", INT, 1, POSITIVE, doc="partitions of a topic that is created without a count"),
    ConfigKey(
        "default.replication.factor", INT, 1, POSITIVE, doc="replicas of a topic that is created without a factor"
    ),
    ConfigKey("min.insync.replicas", INT, 1, POSITIVE, CLUSTER),
    ConfigKey("message.max.bytes", INT, 1_048_588, NATURAL, CLUSTER),
    ConfigKey("compression.type", STRING, "producer", COMPRESSION_TYPES, CLUSTER),
    ConfigKey("ordered.delivery.stock.producers", STRING, "verify", STOCK_PRODUCERS, CLUSTER),
    ConfigKey(
        "ordered.delivery.stock.producers.max.park.ms",
        INT,
        200,
        Between(0, 5_000),
        doc="how long a broker holds a repeated batch of a producer without idempotence that arrives before its turn; "
        "after that the broker refuses the batch, and the producer repeats it again",
    ),
    ConfigKey(
        "ordered.delivery.stock.producers.silence.ms",
        INT,
        1_000,
        Between(0, 60_000),
        doc="how long a doubling waits for a producer that placed records by the old count and has sent nothing since",
    ),
    ConfigKey("ordered.delivery.stock.consumers", STRING, "accept", STOCK_CONSUMERS, CLUSTER),
    ConfigKey("ordered.delivery.stock.consumers.max.withhold.ms", LONG, 300_000, POSITIVE, CLUSTER),
    ConfigKey(
        "stock.consumer.lease.ms",
        INT,
        3_000,
        Between(500, 60_000),
        doc="leaders serve held consumers only while the coordinators' answers are not older than this. A new group "
        "waits at least this time before it begins. All brokers need the same value",
    ),
]

_LOG_KEYS = [
    ConfigKey("log.dir", STRING, "/tmp/kafka-logs", NotEmpty(), doc="directory of the logs if log.dirs is not set"),
    ConfigKey("log.dirs", LIST, None, doc="directories of the logs; default: log.dir"),
    ConfigKey(
        "log.flush",
        STRING,
        "os",
        OneOf(("os", "ack")),
        doc="os: the operating system decides when it writes to disk; ack: records are on disk before a produce "
        "request is answered",
    ),
    ConfigKey("log.cleanup.policy", LIST, ["delete"], CLEANUP_POLICIES, CLUSTER),
    ConfigKey("log.segment.bytes", INT, 1 << 30, Between(MIN_SEGMENT_BYTES, INT_MAX), CLUSTER),
    ConfigKey("log.roll.ms", LONG, None, POSITIVE, CLUSTER),
    ConfigKey("log.roll.hours", INT, 168, POSITIVE),
    ConfigKey("log.roll.jitter.ms", LONG, None, NATURAL, CLUSTER),
    ConfigKey("log.roll.jitter.hours", INT, 0, NATURAL),
    ConfigKey("log.retention.ms", LONG, None, UNLIMITED, CLUSTER),
    ConfigKey("log.retention.minutes", INT, None, UNLIMITED),
    ConfigKey("log.retention.hours", INT, 168, UNLIMITED),
    ConfigKey("log.retention.bytes", LONG, -1, None, CLUSTER),
    ConfigKey("log.retention.check.interval.ms", LONG, 300_000, POSITIVE, doc="time between two checks of retention"),
    ConfigKey(
        "ordered.delivery.retention.waits.lease.ms",
        LONG,
        180_000,
        NATURAL,
        doc="with ordered.delivery.retention.waits: how long a leader keeps all records in a new leader epoch if the "
        "controller sends no hold; set it longer than the controllers' retention.warning.interval.ms and than a "
        "fail-over",
    ),
    ConfigKey(
        "log.dir.room.bytes",
        LONG,
        64 << 20,
        NATURAL,
        doc="a full log dir is used again when it has this many free bytes, or a twentieth of its file system if that "
        "is less",
    ),
    ConfigKey(
        "log.sealed.segments.open.max",
        INT,
        128,
        POSITIVE,
        doc="how many segments, over all partitions, may stay open for readers after their last append",
    ),
    ConfigKey("log.segment.delete.delay.ms", LONG, 60_000, NATURAL, CLUSTER),
    ConfigKey("log.index.size.max.bytes", INT, 10 << 20, Between(4), CLUSTER),
    ConfigKey("log.index.interval.bytes", INT, 4096, NATURAL, CLUSTER),
    ConfigKey("log.flush.interval.messages", LONG, LONG_MAX, POSITIVE, CLUSTER),
    ConfigKey("log.flush.interval.ms", LONG, None, NATURAL, CLUSTER),
    ConfigKey("log.flush.scheduler.interval.ms", LONG, LONG_MAX, POSITIVE, doc="time between two checks for flushes"),
    ConfigKey(
        "log.flush.offset.checkpoint.interval.ms", INT, 60_000, NATURAL, doc="how often recovery points are saved"
    ),
    ConfigKey(
        "log.flush.start.offset.checkpoint.interval.ms", INT, 60_000, NATURAL, doc="how often log starts are saved"
    ),
    ConfigKey("log.message.timestamp.type", STRING, "CreateTime", TIMESTAMP_TYPES, CLUSTER),
    ConfigKey("log.message.timestamp.difference.max.ms", LONG, LONG_MAX, NATURAL, CLUSTER),
    ConfigKey("log.message.timestamp.before.max.ms", LONG, LONG_MAX, NATURAL, CLUSTER),
    ConfigKey("log.message.timestamp.after.max.ms", LONG, MS_PER_HOUR, NATURAL, CLUSTER),
    ConfigKey("log.cleaner.enable", BOOLEAN, True, doc="whether compaction runs"),
    ConfigKey("log.cleaner.backoff.ms", LONG, 15_000, NATURAL, CLUSTER, doc="pause when no log has to be compacted"),
    ConfigKey(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        128 << 20,
        Between(1 << 20),
        CLUSTER,
        doc="bytes for keys in a compaction",
    ),
    ConfigKey(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        float(LONG_MAX),
        Between(0.0),
        CLUSTER,
        doc="the most bytes/s that compaction reads and writes",
    ),
    ConfigKey("log.cleaner.delete.retention.ms", LONG, MS_PER_DAY, NATURAL, CLUSTER),
    ConfigKey("log.cleaner.min.cleanable.ratio", DOUBLE, 0.5, RATIO, CLUSTER),
    ConfigKey("log.cleaner.min.compaction.lag.ms", LONG, 0, NATURAL, CLUSTER),
    ConfigKey("log.cleaner.max.compaction.lag.ms", LONG, LONG_MAX, POSITIVE, CLUSTER),
]

_COORDINATOR_KEYS = [
    ConfigKey("offset.metadata.max.bytes", INT, 4096, NATURAL, doc="the longest metadata of a committed offset"),
    ConfigKey("offsets.topic.num.partitions", INT, 50, POSITIVE, doc="partitions of __consumer_offsets"),
    ConfigKey("offsets.topic.replication.factor", SHORT, 3, POSITIVE, doc="replicas of __consumer_offsets"),
    ConfigKey("offsets.topic.segment.bytes", INT, 100 << 20, POSITIVE, doc="segment size of __consumer_offsets"),
    ConfigKey("offsets.topic.compression.codec", INT, 0, Between(0, 4), doc="0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd"),
    ConfigKey(
        "offsets.load.buffer.size",
        INT,
        5 << 20,
        POSITIVE,
        doc="bytes read at a time when offsets are loaded; at most 1 MiB are read, whatever the value",
    ),
    ConfigKey(
        "offsets.retention.minutes",
        INT,
        10_080,
        POSITIVE,
        doc="how long committed offsets stay after their group became empty; if no member subscribes to the topic, "
        "how long they stay after the commit",
    ),
    ConfigKey(
        "offsets.retention.check.interval.ms",
        LONG,
        600_000,
        POSITIVE,
        doc="time between two checks for expired offsets",
    ),
    ConfigKey("offsets.commit.timeout.ms", INT, 5_000, POSITIVE, doc="the longest that a commit waits for replicas"),
    ConfigKey("group.min.session.timeout.ms", INT, 6_000, NATURAL, doc="the shortest session timeout of a member"),
    ConfigKey("group.max.session.timeout.ms", INT, 1_800_000, NATURAL, doc="the longest session timeout of a member"),
    ConfigKey(
        "group.initial.rebalance.delay.ms", INT, 3_000, NATURAL, doc="how long a new group waits for more members"
    ),
    ConfigKey("group.max.size", INT, INT_MAX, POSITIVE, doc="the most members of a group"),
    ConfigKey("group.max.protocols", INT, 1_000, POSITIVE, doc="the most assignors that a member may offer"),
    ConfigKey("fetch.max.bytes", INT, 55 << 20, Between(1024), doc="the largest answer to a fetch of a consumer"),
    ConfigKey(
        "fetch.error.delay.ms",
        INT,
        50,
        Between(0, 10_000),
        doc="least delay of the answer to a consumer's fetch with only errors, if its fetch before had only errors too;"
        " the delay is random up to twice this time, and at most the fetch's max_wait_ms",
    ),
    ConfigKey("max.incremental.fetch.session.cache.slots", INT, 1_000, NATURAL, doc="the most fetch sessions"),
    ConfigKey(
        "max.incremental.fetch.session.cache.partitions",
        INT,
        500_000,
        NATURAL,
        doc="the most partitions in all fetch sessions together; a fetch that finds no room has no session",
    ),
    ConfigKey(
        "producer.id.expiration.ms", INT, MS_PER_DAY, POSITIVE, CLUSTER, doc="idle time before a producer expires"
    ),
    ConfigKey(
        "producer.repeated.batch.max.age.ms",
        INT,
        300_000,
        NATURAL,
        CLUSTER,
        doc="how long after its last append to a partition a producer may send batches again in a higher epoch without "
        "having them written twice; at least the delivery timeout of idempotent producers",
    ),
    ConfigKey(
        "producer.id.expiration.check.interval.ms",
        INT,
        600_000,
        POSITIVE,
        doc="time between two checks for expired producers",
    ),
]

_REPLICATION_KEYS = [
    ConfigKey("replica.lag.time.max.ms", LONG, 30_000, POSITIVE, doc="a replica that lags for longer leaves the ISR"),
    ConfigKey("replica.fetch.max.bytes", INT, 1 << 20, NATURAL, doc="bytes that a follower requests per partition"),
    ConfigKey("replica.fetch.min.bytes", INT, 1, NATURAL, doc="the bytes for which a follower's fetch waits"),
    ConfigKey(
        "replica.fetch.response.max.bytes", INT, 10 << 20, NATURAL, doc="bytes that a follower requests at a time"
    ),
    ConfigKey("replica.fetch.wait.max.ms", INT, 500, NATURAL, doc="the longest that a follower's fetch waits"),
    ConfigKey("replica.fetch.backoff.ms", INT, 1_000, NATURAL, doc="the longest pause after a failed fetch"),
    ConfigKey("replica.socket.timeout.ms", INT, 30_000, POSITIVE, doc="how long a follower waits for an answer"),
    ConfigKey(
        "leader.replication.throttled.rate",
        LONG,
        LONG_MAX,
        POSITIVE,
        CLUSTER,
        doc="the most bytes/s that this broker sends to throttled replicas that are not in sync",
    ),
    ConfigKey(
        "follower.replication.throttled.rate",
        LONG,
        LONG_MAX,
        POSITIVE,
        CLUSTER,
        doc="the most bytes/s that this broker fetches for throttled replicas",
    ),
    ConfigKey(
        "replica.high.watermark.checkpoint.interval.ms", LONG, 5_000, POSITIVE, doc="how often watermarks are saved"
    ),
]

BROKER_CONFIGS = ConfigDef(
    "broker",
    [*_NETWORK_KEYS, *_TOPIC_MANAGEMENT_KEYS, *_LOG_KEYS, *_COORDINATOR_KEYS, *_REPLICATION_KEYS],
)
