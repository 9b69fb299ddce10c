"""The config keys of brokers: Kafka's names, types, defaults and ranges (Kafka 3.x), and a few new keys.

Only keys with an effect are here. ``kafka_keys`` has the names of Kafka's other keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.protocol.message_limits import DEFAULT_LIMITS
from anabranch.zk_schemas.config_def import (
    INT_MAX,
    LONG_MAX,
    REQUIRED,
    Between,
    ConfigDef,
    Matches,
    NotEmpty,
    OneOf,
    UpdateMode,
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
from anabranch.zk_schemas.process_keys import ProcessKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerKeys(ProcessKeys):
    """The keys of a broker."""

    broker_id: int = declared(INT, REQUIRED, NATURAL, doc="this broker's id")
    broker_rack: str | None = declared(STRING, None, doc="the rack of this broker; replicas are spread over racks")
    listeners: list[str] = declared(
        LIST,
        ["PLAINTEXT://:9092"],
        NotEmpty(),
        doc="the addresses that the broker listens on, as NAME://host:port, ...; without a host: all interfaces",
    )
    advertised_listeners: list[str] | None = declared(
        LIST,
        None,
        Matches(r"[^:/]+://.*:\d{1,5}", "NAME://host:port"),
        UpdateMode.PER_BROKER,
        doc="the addresses that clients connect to; default: listeners",
    )
    listener_security_protocol_map: list[str] = declared(
        LIST,
        ["PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"],
        NotEmpty(),
        doc="the protocol of each listener, as NAME:PROTOCOL, ...; only PLAINTEXT is supported",
    )
    metrics_max_groups: int = declared(INT, 500, NATURAL, doc="groups with their own metrics; the others are summed")
    metrics_lag_interval_ms: int = declared(
        INT,
        5_000,
        POSITIVE,
        doc="the time between two requests of a coordinator for the log ends of the partitions that its groups read",
    )
    controller_request_max_elements: int = declared(
        INT,
        DEFAULT_LIMITS.max_controller_elements,
        POSITIVE,
        doc="the most elements of a request of the controller, which may name every partition",
    )
    fetch_request_max_elements: int = declared(
        INT,
        DEFAULT_LIMITS.max_fetch_elements,
        POSITIVE,
        doc="the most elements of a Fetch: its topics, and the partitions that it reads or forgets",
    )
    socket_send_buffer_bytes: int = declared(INT, -1, UNLIMITED, doc="SO_SNDBUF; -1: the system's")
    socket_receive_buffer_bytes: int = declared(INT, -1, UNLIMITED, doc="SO_RCVBUF; -1: the system's")
    socket_listen_backlog_size: int = declared(INT, 4_096, POSITIVE, doc="connections that wait to be accepted")
    controller_silence_ms: int = declared(
        INT,
        5_000,
        POSITIVE,
        doc="if the active controller owes an answer and has sent none for this long, the broker asks it for its API "
        "versions; a controller that leaves this unanswered for as long again gets a new connection",
    )
    queued_max_request_bytes: int = declared(
        LONG,
        -1,
        UNLIMITED,
        doc="the broker reads no further request while the requests that it receives or handles, the parked batches, "
        "and the responses that are not sent yet, have this many bytes; -1: no limit",
    )
    max_retried_partitions_per_connection: int = declared(
        INT,
        10_000,
        POSITIVE,
        doc="the most pairs of partition and producer for which one connection may have batches to repeat; with more "
        "the connection is closed",
    )
    max_connections: int = declared(
        INT,
        INT_MAX,
        NATURAL,
        CLUSTER,
        doc="the most connections at a time; more wait to be accepted. If there are several listeners, "
        "the one of inter.broker.listener.name always accepts",
    )
    max_connections_per_ip: int = declared(
        INT, INT_MAX, NATURAL, CLUSTER, doc="the most connections of one address at a time; more are closed"
    )
    request_timeout_ms: int = declared(
        INT, 30_000, POSITIVE, doc="how long a request of this broker waits for its answer"
    )
    controlled_shutdown_enable: bool = declared(
        BOOLEAN, True, doc="whether leaderships move to other brokers before a shutdown"
    )
    controlled_shutdown_max_retries: int = declared(
        INT, 3, NATURAL, doc="how often the request to move leaderships is repeated after the first attempt"
    )
    controlled_shutdown_retry_backoff_ms: int = declared(
        LONG,
        5_000,
        NATURAL,
        doc="time between two attempts of a controlled shutdown, and the longest that an attempt waits for its answer",
    )

    # topics
    auto_create_topics_enable: bool = declared(
        BOOLEAN, True, doc="whether a topic is created when a client asks for it"
    )
    min_insync_replicas: int = declared(INT, 1, POSITIVE, CLUSTER)
    message_max_bytes: int = declared(INT, 1_048_588, NATURAL, CLUSTER)
    compression_type: str = declared(STRING, "producer", COMPRESSION_TYPES, CLUSTER)
    ordered_delivery_stock_producers: str = declared(STRING, "verify", STOCK_PRODUCERS, CLUSTER)
    ordered_delivery_stock_producers_max_park_ms: int = declared(
        INT,
        200,
        Between(0, 5_000),
        doc="how long a broker parks a repeated batch of a producer without idempotence that arrives before its turn; "
        "after that the broker refuses the batch, and the producer repeats it again",
    )
    ordered_delivery_stock_producers_silence_ms: int = declared(
        INT,
        1_000,
        Between(0, 60_000),
        doc="how long a doubling waits for a producer that placed records by the old count and has sent nothing since",
    )
    ordered_delivery_stock_consumers: str = declared(STRING, "accept", STOCK_CONSUMERS, CLUSTER)
    ordered_delivery_stock_consumers_max_withhold_ms: int = declared(LONG, 300_000, POSITIVE, CLUSTER)
    stock_consumer_lease_ms: int = declared(
        INT,
        3_000,
        Between(500, 60_000),
        doc="leaders serve consumers from which they withhold only while the coordinators' answers are not older "
        "than this. A new group waits at least this time before it begins. All brokers need the same value",
    )

    # logs
    log_dir: str = declared(STRING, "/tmp/kafka-logs", NotEmpty(), doc="directory of the logs if log.dirs is not set")
    log_dirs: list[str] | None = declared(LIST, None, doc="directories of the logs; default: log.dir")
    log_flush: str = declared(
        STRING,
        "os",
        OneOf(("os", "ack")),
        doc="os: the operating system decides when it writes to disk; ack: records are on disk before a produce "
        "request is answered",
    )
    log_cleanup_policy: list[str] = declared(LIST, ["delete"], CLEANUP_POLICIES, CLUSTER)
    log_segment_bytes: int = declared(INT, 1 << 30, Between(MIN_SEGMENT_BYTES, INT_MAX), CLUSTER)
    log_roll_ms: int | None = declared(LONG, None, POSITIVE, CLUSTER)
    log_roll_hours: int = declared(INT, 168, POSITIVE)
    log_roll_jitter_ms: int | None = declared(LONG, None, NATURAL, CLUSTER)
    log_roll_jitter_hours: int = declared(INT, 0, NATURAL)
    log_retention_ms: int | None = declared(LONG, None, UNLIMITED, CLUSTER)
    log_retention_minutes: int | None = declared(INT, None, UNLIMITED)
    log_retention_hours: int = declared(INT, 168, UNLIMITED)
    log_retention_bytes: int = declared(LONG, -1, None, CLUSTER)
    log_retention_check_interval_ms: int = declared(LONG, 300_000, POSITIVE, doc="time between two checks of retention")
    ordered_delivery_retention_waits_lease_ms: int = declared(
        LONG,
        180_000,
        NATURAL,
        doc="with ordered.delivery.retention.waits: how long a leader keeps all records in a new leader epoch if the "
        "controller names nothing to retain; set it longer than the controllers' retention.warning.interval.ms "
        "and than a fail-over",
    )
    log_dir_room_bytes: int = declared(
        LONG,
        64 << 20,
        NATURAL,
        doc="a full log dir is used again when it has this many free bytes, or a twentieth of its file system if that "
        "is less",
    )
    log_sealed_segments_open_max: int = declared(
        INT,
        128,
        POSITIVE,
        doc="how many segments, over all partitions, may stay open for readers after their last append",
    )
    log_segment_delete_delay_ms: int = declared(LONG, 60_000, NATURAL, CLUSTER)
    log_index_size_max_bytes: int = declared(INT, 10 << 20, Between(4), CLUSTER)
    log_index_interval_bytes: int = declared(INT, 4096, NATURAL, CLUSTER)
    log_flush_interval_messages: int = declared(LONG, LONG_MAX, POSITIVE, CLUSTER)
    log_flush_interval_ms: int | None = declared(LONG, None, NATURAL, CLUSTER)
    log_flush_scheduler_interval_ms: int = declared(LONG, LONG_MAX, POSITIVE, doc="time between two checks for flushes")
    log_flush_offset_checkpoint_interval_ms: int = declared(
        INT, 60_000, NATURAL, doc="how often recovery points are saved"
    )
    log_flush_start_offset_checkpoint_interval_ms: int = declared(
        INT, 60_000, NATURAL, doc="how often log starts are saved"
    )
    log_message_timestamp_type: str = declared(STRING, "CreateTime", TIMESTAMP_TYPES, CLUSTER)
    log_message_timestamp_difference_max_ms: int = declared(LONG, LONG_MAX, NATURAL, CLUSTER)
    log_message_timestamp_before_max_ms: int = declared(LONG, LONG_MAX, NATURAL, CLUSTER)
    log_message_timestamp_after_max_ms: int = declared(LONG, MS_PER_HOUR, NATURAL, CLUSTER)
    log_cleaner_enable: bool = declared(BOOLEAN, True, doc="whether compaction runs")
    log_cleaner_backoff_ms: int = declared(LONG, 15_000, NATURAL, CLUSTER, doc="pause when no log has to be compacted")
    log_cleaner_dedupe_buffer_size: int = declared(
        LONG, 128 << 20, Between(1 << 20), CLUSTER, doc="bytes for keys in a compaction"
    )
    log_cleaner_io_max_bytes_per_second: float = declared(
        DOUBLE, float(LONG_MAX), Between(0.0), CLUSTER, doc="the most bytes/s that compaction reads and writes"
    )
    log_cleaner_delete_retention_ms: int = declared(LONG, MS_PER_DAY, NATURAL, CLUSTER)
    log_cleaner_min_cleanable_ratio: float = declared(DOUBLE, 0.5, RATIO, CLUSTER)
    log_cleaner_min_compaction_lag_ms: int = declared(LONG, 0, NATURAL, CLUSTER)
    log_cleaner_max_compaction_lag_ms: int = declared(LONG, LONG_MAX, POSITIVE, CLUSTER)

    # groups, fetches and producers
    offset_metadata_max_bytes: int = declared(INT, 4096, NATURAL, doc="the longest metadata of a committed offset")
    offsets_topic_num_partitions: int = declared(INT, 50, POSITIVE, doc="partitions of __consumer_offsets")
    offsets_topic_replication_factor: int = declared(SHORT, 3, POSITIVE, doc="replicas of __consumer_offsets")
    offsets_topic_segment_bytes: int = declared(INT, 100 << 20, POSITIVE, doc="segment size of __consumer_offsets")
    offsets_topic_compression_codec: int = declared(
        INT, 0, Between(0, 4), doc="0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd"
    )
    offsets_load_buffer_size: int = declared(
        INT,
        5 << 20,
        POSITIVE,
        doc="bytes read at a time when offsets are loaded; at most 1 MiB are read, whatever the value",
    )
    offsets_retention_minutes: int = declared(
        INT,
        10_080,
        POSITIVE,
        doc="how long committed offsets stay after their group became empty; if no member subscribes to the topic, "
        "how long they stay after the commit",
    )
    offsets_retention_check_interval_ms: int = declared(
        LONG, 600_000, POSITIVE, doc="time between two checks for expired offsets"
    )
    offsets_commit_timeout_ms: int = declared(INT, 5_000, POSITIVE, doc="the longest that a commit waits for replicas")
    group_min_session_timeout_ms: int = declared(INT, 6_000, NATURAL, doc="the shortest session timeout of a member")
    group_max_session_timeout_ms: int = declared(INT, 1_800_000, NATURAL, doc="the longest session timeout of a member")
    group_initial_rebalance_delay_ms: int = declared(
        INT, 3_000, NATURAL, doc="how long a new group waits for more members"
    )
    group_max_size: int = declared(INT, INT_MAX, POSITIVE, doc="the most members of a group")
    group_max_protocols: int = declared(INT, 1_000, POSITIVE, doc="the most assignors that a member may offer")
    group_members_max_bytes: int = declared(
        LONG,
        128 << 20,
        UNLIMITED,
        doc="the memory of all groups with members that a broker coordinates, most of it the metadata and assignments "
        "of their members; beyond it, a JoinGroup or SyncGroup that needs more is answered COORDINATOR_NOT_AVAILABLE. "
        "A quarter is for those that need 10,000 bytes or less; 0: no group gets a member; -1: no limit",
    )
    fetch_max_bytes: int = declared(INT, 55 << 20, Between(1024), doc="the largest answer to a fetch of a consumer")
    fetch_error_delay_ms: int = declared(
        INT,
        50,
        Between(0, 10_000),
        doc="least delay of the answer to a consumer's fetch with only errors, if its fetch before had only errors too;"
        " the delay is random up to twice this time, and at most the fetch's max_wait_ms",
    )
    max_incremental_fetch_session_cache_slots: int = declared(INT, 1_000, NATURAL, doc="the most fetch sessions")
    max_incremental_fetch_session_cache_partitions: int = declared(
        INT,
        500_000,
        NATURAL,
        doc="the most partitions in all fetch sessions together; a fetch that finds no room has no session",
    )
    waiting_fetches_max_bytes: int = declared(
        LONG,
        32 << 20,
        UNLIMITED,
        doc="the memory of all waiting fetches without a session; beyond it, the connection that keeps the most gets "
        "an early answer to its oldest one; -1: no limit",
    )
    producer_id_expiration_ms: int = declared(
        INT, MS_PER_DAY, POSITIVE, CLUSTER, doc="idle time before a producer expires"
    )
    producer_repeated_batch_max_age_ms: int = declared(
        INT,
        300_000,
        NATURAL,
        CLUSTER,
        doc="how long after its last append to a partition a producer may send batches again in a higher epoch without "
        "having them written twice; at least the delivery timeout of idempotent producers",
    )
    producer_id_expiration_check_interval_ms: int = declared(
        INT, 600_000, POSITIVE, doc="time between two checks for expired producers"
    )

    # replication
    replica_lag_time_max_ms: int = declared(LONG, 30_000, POSITIVE, doc="a replica that lags for longer leaves the ISR")
    replica_fetch_max_bytes: int = declared(INT, 1 << 20, NATURAL, doc="bytes that a follower requests per partition")
    replica_fetch_min_bytes: int = declared(INT, 1, NATURAL, doc="the bytes for which a follower's fetch waits")
    replica_fetch_response_max_bytes: int = declared(
        INT, 10 << 20, NATURAL, doc="bytes that a follower requests at a time"
    )
    replica_fetch_wait_max_ms: int = declared(INT, 500, NATURAL, doc="the longest that a follower's fetch waits")
    replica_fetch_backoff_ms: int = declared(INT, 1_000, NATURAL, doc="the longest pause after a failed fetch")
    replica_socket_timeout_ms: int = declared(INT, 30_000, POSITIVE, doc="how long a follower waits for an answer")
    leader_replication_throttled_rate: int = declared(
        LONG,
        LONG_MAX,
        POSITIVE,
        CLUSTER,
        doc="the most bytes/s that this broker sends to throttled replicas that are not in sync",
    )
    follower_replication_throttled_rate: int = declared(
        LONG, LONG_MAX, POSITIVE, CLUSTER, doc="the most bytes/s that this broker fetches for throttled replicas"
    )
    replica_high_watermark_checkpoint_interval_ms: int = declared(
        LONG, 5_000, POSITIVE, doc="how often watermarks are saved"
    )


BROKER_CONFIGS = ConfigDef("broker", BrokerKeys.all_keys())
