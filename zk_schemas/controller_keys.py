"""The config keys of a controller: its own, and those of Kafka's brokers that the controller of a cluster acts by."""

from __future__ import annotations

from anabranch.zk_schemas.config_def import REQUIRED, Between, ConfigDef, ConfigKey, ConfigType, NotEmpty
from anabranch.zk_schemas.config_keys import BROKER_CONFIGS

FIRST_CONTROLLER_ID = 1000
"""Controller ids start here, apart from broker ids."""

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
    "admin.request.max.bytes",
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
"""Keys of brokers that a controller takes too. Each process goes by its own file."""

CONTROLLER_CONFIGS = ConfigDef(
    "controller",
    [
        ConfigKey("controller.id", ConfigType.INT, REQUIRED, Between(FIRST_CONTROLLER_ID), doc="this controller's id"),
        ConfigKey(
            "controller.listener",
            ConfigType.STRING,
            "PLAINTEXT://localhost:9090",
            NotEmpty(),
            doc="where brokers reach this controller; port 0: any free one",
        ),
        ConfigKey(
            "partition.drain.check.interval.ms",
            ConfigType.LONG,
            1_000,
            Between(1),
            doc="how often partitions marked for deletion are looked at, whether they are empty or read by every group",
        ),
        ConfigKey(
            "autoscale.check.interval.ms",
            ConfigType.LONG,
            5_000,
            Between(1),
            doc="how often brokers are asked for the bytes appended to topics with autoscale.enable",
        ),
        ConfigKey(
            "retention.warning.ms",
            ConfigType.LONG,
            600_000,
            Between(0),
            doc="how long before retention removes what a group has not read of a resized topic that is warned of",
        ),
        ConfigKey(
            "retention.warning.interval.ms",
            ConfigType.LONG,
            60_000,
            Between(1),
            doc="how often it is looked for",
        ),
        ConfigKey(
            "partition.state.max.bytes",
            ConfigType.INT,
            262_144,
            Between(1024, 2**20),
            doc="how large the state znode of a partition that gains keys may get by its lineage; a resize that would"
            " pass it is refused",
        ),
        ConfigKey(
            "stock.producer.grace.ms",
            ConfigType.INT,
            6_000,
            Between(0),
            doc="how long at most a split that stock producers can follow waits until they have; 0: not at all",
        ),
        ConfigKey(
            "stock.producer.window.ms",
            ConfigType.LONG,
            600_000,
            Between(0),
            doc="a stock producer that wrote within this time is counted with when its topic is resized",
        ),
        ConfigKey(
            "controller.socket.timeout.ms",
            ConfigType.INT,
            30_000,
            Between(1),
            doc="how long a request to a broker waits for its answer before it is sent again",
        ),
        ConfigKey(
            "max.partitions",
            ConfigType.INT,
            20_000,
            Between(1),
            doc="how many partitions the cluster may have, each counted once (KIP-578); a request for more is refused",
        ),
        ConfigKey("delete.topic.enable", ConfigType.BOOLEAN, True, doc="whether topics can be deleted"),
        ConfigKey(
            "auto.leader.rebalance.enable",
            ConfigType.BOOLEAN,
            True,
            doc="the controller gives leaders back to first replicas",
        ),
        ConfigKey(
            "leader.imbalance.check.interval.seconds",
            ConfigType.LONG,
            300,
            Between(1),
            doc="how often it looks for that",
        ),
        ConfigKey(
            "leader.imbalance.per.broker.percentage",
            ConfigType.INT,
            10,
            Between(0),
            doc="the part of a broker's first replicas that others may lead before it acts",
        ),
        *(BROKER_CONFIGS[name] for name in SHARED_KEYS),
    ],
)
