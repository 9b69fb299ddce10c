"""The config keys of a controller: its own keys, and keys of Kafka's brokers that this project's controller uses."""

from __future__ import annotations

from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.config_def import REQUIRED, Between, ConfigDef, ConfigKey, ConfigType, NotEmpty

FIRST_CONTROLLER_ID = 1000
"""Controller ids start here, so that they differ from broker ids."""

SHARED_KEYS = (
    "zookeeper.connect",
    "zookeeper.session.timeout.ms",
    "zookeeper.connection.timeout.ms",
    "jute.maxbuffer",
    "inter.broker.listener.name",
    "num.partitions",
    "default.replication.factor",
    "unclean.leader.election.enable",
    "socket.request.max.bytes",
    "small.request.max.bytes",
    "admin.request.max.bytes",
    "request.max.elements",
    "admin.request.max.elements",
    "decoded.requests.max.bytes",
    "socket.response.max.bytes",
    "socket.keepalive.timeout.ms",
    "connections.max.idle.ms",
    "metrics.listener",
    "metrics.http.max.connections",
    "metrics.http.max.head.bytes",
    "metrics.http.max.requests",
    "metrics.http.timeout.ms",
    "metrics.http.idle.timeout.ms",
    "metrics.max.topics",
    "metrics.max.partitions",
    "health.loop.lag.ms",
    "logging.levels",
    "logging.format",
    "supported.features",
)
"""Broker keys that a controller also takes. Each process uses its own file."""

CONTROLLER_CONFIGS = ConfigDef(
    "controller",
    [
        ConfigKey("controller.id", ConfigType.INT, REQUIRED, Between(FIRST_CONTROLLER_ID), doc="this controller's id"),
        ConfigKey(
            "controller.listener",
            ConfigType.STRING,
            "PLAINTEXT://localhost:9090",
            NotEmpty(),
            doc="the address that brokers connect to; port 0: any free port",
        ),
        ConfigKey(
            "partition.drain.check.interval.ms",
            ConfigType.LONG,
            1_000,
            Between(1),
            doc="time between two checks whether partitions marked for deletion are empty, or read by every group",
        ),
        ConfigKey(
            "autoscale.check.interval.ms",
            ConfigType.LONG,
            5_000,
            Between(1),
            doc="time between two requests to brokers for the bytes appended to topics with autoscale.enable",
        ),
        ConfigKey(
            "retention.warning.ms",
            ConfigType.LONG,
            600_000,
            Between(0),
            doc="the controller warns this long before retention removes records of a resized topic that a group has "
            "not read",
        ),
        ConfigKey(
            "retention.warning.interval.ms",
            ConfigType.LONG,
            60_000,
            Between(1),
            doc="time between two checks for retention.warning.ms",
        ),
        ConfigKey(
            "partition.state.max.bytes",
            ConfigType.INT,
            262_144,
            Between(1024, 2**20),
            doc="the largest state znode of a partition that gains keys, with its lineage; the controller refuses a "
            "resize that would exceed it",
        ),
        ConfigKey(
            "stock.producer.grace.ms",
            ConfigType.INT,
            6_000,
            Between(0),
            doc="the longest time that a split waits until stock producers use the new count; it does not wait for "
            "producers that cannot follow the split; 0: no wait",
        ),
        ConfigKey(
            "stock.producer.window.ms",
            ConfigType.LONG,
            600_000,
            Between(0),
            doc="a stock producer counts for a resize of a topic if it wrote to the topic within this time",
        ),
        ConfigKey(
            "controller.socket.timeout.ms",
            ConfigType.INT,
            30_000,
            Between(1),
            doc="how long the controller waits for a broker's answer before it sends the request again",
        ),
        ConfigKey(
            "max.partitions",
            ConfigType.INT,
            20_000,
            Between(1),
            doc="the most partitions of the cluster; each counts once, however many replicas it has (KIP-578). A "
            "request for more is refused, except for internal topics",
        ),
        ConfigKey("delete.topic.enable", ConfigType.BOOLEAN, True, doc="whether topics can be deleted"),
        ConfigKey(
            "auto.leader.rebalance.enable",
            ConfigType.BOOLEAN,
            True,
            doc="whether the controller makes preferred replicas leaders again",
        ),
        ConfigKey(
            "leader.imbalance.check.interval.seconds",
            ConfigType.LONG,
            300,
            Between(1),
            doc="time between two checks for auto.leader.rebalance.enable",
        ),
        ConfigKey(
            "leader.imbalance.per.broker.percentage",
            ConfigType.INT,
            10,
            Between(0),
            doc="the percentage of a broker's preferred replicas that may have another leader before the "
            "controller acts",
        ),
        *(BROKER_CONFIGS[name] for name in SHARED_KEYS),
    ],
)
