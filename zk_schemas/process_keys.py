"""The config keys that both brokers and controllers take. Each process reads its own file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.protocol.message_limits import DEFAULT_LIMITS, RequestLimits
from anabranch.zk_schemas.broker_registration import VersionRange
from anabranch.zk_schemas.config_def import (
    REQUIRED,
    Between,
    ConfigValues,
    Matches,
    NotEmpty,
    OneOf,
    UpdateMode,
    declared,
)
from anabranch.zk_schemas.features import FeatureRanges, supported_by
from anabranch.zk_schemas.key_rules import (
    ADDRESS,
    BOOLEAN,
    INT,
    LIST,
    LOG_LEVELS,
    LONG,
    NATURAL,
    POSITIVE,
    STRING,
    UNLIMITED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKeys(ConfigValues):
    """The keys of every process."""

    zookeeper_connect: str = declared(
        STRING, REQUIRED, NotEmpty(), doc="the ZooKeeper servers, as host:port,host:port/chroot"
    )
    zookeeper_session_timeout_ms: int = declared(INT, 18_000, POSITIVE, doc="the timeout of the ZooKeeper session")
    zookeeper_connection_timeout_ms: int | None = declared(
        INT,
        None,
        POSITIVE,
        doc="how long a starting process waits for the connection to ZooKeeper; default: zookeeper.session.timeout.ms",
    )
    jute_maxbuffer: int = declared(
        INT,
        0xFFFFF,
        Between(0xFFFFF),
        doc="the longest request that the ZooKeeper servers accept: their own jute.maxbuffer, or less",
    )
    inter_broker_listener_name: str | None = declared(
        STRING,
        None,
        doc="the listener of a broker that the controllers and other brokers connect to; default: its first listener",
    )
    metrics_listener: str | None = declared(
        STRING,
        None,
        ADDRESS,
        doc="host:port that serves /metrics, /health/live and /health/ready over HTTP; default: none",
    )
    metrics_http_max_connections: int = declared(
        INT,
        16,
        POSITIVE,
        doc="the most connections to metrics.listener; one more closes the connection that has been idle longest, or "
        "is closed itself if none is idle",
    )
    metrics_http_max_head_bytes: int = declared(
        INT,
        8192,
        Between(1024, 1 << 20),
        doc="the most bytes of the first line and the headers of a request to metrics.listener; with more the answer "
        "is 431",
    )
    metrics_http_max_requests: int = declared(
        INT,
        1000,
        POSITIVE,
        doc="the most requests on one connection to metrics.listener; then the connection is closed",
    )
    metrics_http_timeout_ms: int = declared(
        INT,
        5_000,
        POSITIVE,
        doc="how long a client of metrics.listener may take to send a request, and to read the answer",
    )
    metrics_http_idle_timeout_ms: int = declared(
        INT, 75_000, POSITIVE, doc="how long a connection to metrics.listener may be idle between two requests"
    )
    metrics_max_topics: int = declared(INT, 1000, NATURAL, doc="topics with their own metrics; the others are summed")
    metrics_max_partitions: int = declared(
        INT, 1000, NATURAL, doc="partitions, group offsets and waits with their own metrics; the others are summed"
    )
    health_loop_lag_ms: int = declared(
        INT,
        2_000,
        POSITIVE,
        doc="a process is not ready if its event loop was blocked for longer than this within the last minute",
    )
    logging_levels: list[str] = declared(
        LIST,
        ["INFO"],
        Matches(
            rf"(?i:([\w.]+\s*=\s*)?({'|'.join(LOG_LEVELS)}))", f"LEVEL or LOGGER=LEVEL with {', '.join(LOG_LEVELS)}"
        ),
        doc="LEVEL for all loggers, LOGGER=LEVEL for one logger and its children, such as anabranch.broker=DEBUG",
    )
    logging_format: str = declared(STRING, "console", OneOf(("console", "json")), doc="the format of a log line")
    supported_features: list[str] | None = declared(
        LIST,
        None,
        FeatureRanges(),
        doc="FEATURE:MIN-MAX, ...: a part of the features and levels of this release, to rehearse a downgrade; "
        "default: all of them",
    )
    socket_request_max_bytes: int = declared(
        INT,
        DEFAULT_LIMITS.max_bytes,
        POSITIVE,
        doc="the largest request: of Produce, and of the controller to a broker",
    )
    small_request_max_bytes: int = declared(
        INT,
        DEFAULT_LIMITS.max_small_bytes,
        POSITIVE,
        doc="the largest request of any other kind, if socket.request.max.bytes is not less",
    )
    admin_request_max_bytes: int = declared(
        INT,
        DEFAULT_LIMITS.max_admin_bytes,
        POSITIVE,
        doc="the largest request that creates, changes or deletes topics, configs, partitions or replicas",
    )
    request_max_elements: int = declared(
        INT,
        DEFAULT_LIMITS.max_elements,
        POSITIVE,
        doc="the most elements of a request: the items of all its arrays, where a batch of records is one",
    )
    admin_request_max_elements: int = declared(
        INT,
        DEFAULT_LIMITS.max_admin_elements,
        POSITIVE,
        doc="the same for a request that admin.request.max.bytes is for",
    )
    decoded_requests_max_bytes: int = declared(
        LONG,
        DEFAULT_LIMITS.max_decoded_bytes,
        UNLIMITED,
        doc="a request of many parts waits, before it is decoded, while such requests of all connections take half of "
        "this memory; the other half is for Produce, Fetch and the requests between brokers and controllers; one "
        "request of any size may exceed it; -1: no limit",
    )
    socket_response_max_bytes: int = declared(
        INT,
        64 << 20,
        POSITIVE,
        doc="the largest response, without the records of a fetch (fetch.max.bytes); instead of a larger one, "
        "the connection is closed",
    )
    socket_keepalive_timeout_ms: int = declared(
        INT,
        30_000,
        Between(1_000),
        doc="TCP ends a connection that this process made, to a broker, a controller or ZooKeeper, if the other side "
        "has acknowledged nothing for this long, also while the connection is idle",
    )
    connections_max_idle_ms: int = declared(
        LONG, 600_000, UNLIMITED, doc="idle time after which a connection closes; -1: no limit"
    )
    unclean_leader_election_enable: bool = declared(BOOLEAN, False, None, UpdateMode.ALL_BROKERS)
    num_partitions: int = declared(INT, 1, POSITIVE, doc="partitions of a topic that is created without a count")
    default_replication_factor: int = declared(
        INT, 1, POSITIVE, doc="replicas of a topic that is created without a factor"
    )

    @property
    def zookeeper_start_timeout_ms(self) -> int:
        """How long a starting process waits for the connection to ZooKeeper."""
        return self.zookeeper_connection_timeout_ms or self.zookeeper_session_timeout_ms

    @property
    def features(self) -> Mapping[str, VersionRange]:
        """The feature levels that this process takes part in."""
        return supported_by(self.supported_features)

    @property
    def request_limits(self) -> RequestLimits:
        """The sizes of a request, before it is decoded."""
        return RequestLimits(
            max_bytes=self.socket_request_max_bytes,
            max_small_bytes=self.small_request_max_bytes,
            max_admin_bytes=self.admin_request_max_bytes,
            max_elements=self.request_max_elements,
            max_admin_elements=self.admin_request_max_elements,
            max_decoded_bytes=self.decoded_requests_max_bytes,
        )
