"""The config keys of a controller: its own keys, and keys of Kafka's brokers that this project's controller uses."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.zk_schemas.config_def import REQUIRED, Between, ConfigDef, NotEmpty, declared
from anabranch.zk_schemas.key_rules import BOOLEAN, INT, LONG, STRING
from anabranch.zk_schemas.process_keys import ProcessKeys

FIRST_CONTROLLER_ID = 1000
"""Controller ids start here, so that they differ from broker ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerKeys(ProcessKeys):
    """The keys of a controller."""

    controller_id: int = declared(INT, REQUIRED, Between(FIRST_CONTROLLER_ID), doc="this controller's id")
    controller_listener: str = declared(
        STRING,
        "PLAINTEXT://localhost:9090",
        NotEmpty(),
        doc="the address that brokers connect to; port 0: any free port",
    )
    partition_drain_check_interval_ms: int = declared(
        LONG,
        1_000,
        Between(1),
        doc="time between two checks whether partitions marked for deletion are empty, or read by every group",
    )
    autoscale_check_interval_ms: int = declared(
        LONG,
        5_000,
        Between(1),
        doc="time between two requests to brokers for the bytes appended to topics with autoscale.enable",
    )
    retention_warning_ms: int = declared(
        LONG,
        600_000,
        Between(0),
        doc="the controller warns this long before retention removes records of a resized topic that a group has "
        "not read",
    )
    retention_warning_interval_ms: int = declared(
        LONG, 60_000, Between(1), doc="time between two checks for retention.warning.ms"
    )
    partition_state_max_bytes: int = declared(
        INT,
        262_144,
        Between(1024, 2**20),
        doc="the largest state znode of a partition that gains keys, with its lineage; the controller refuses a "
        "resize that would exceed it",
    )
    stock_producer_grace_ms: int = declared(
        INT,
        6_000,
        Between(0),
        doc="the longest time that a split waits until stock producers use the new count; it does not wait for "
        "producers that cannot follow the split; 0: no wait",
    )
    stock_producer_window_ms: int = declared(
        LONG,
        600_000,
        Between(0),
        doc="a stock producer counts for a resize of a topic if it wrote to the topic within this time",
    )
    stock_admin_check_timeout_ms: int = declared(
        INT,
        5_000,
        Between(1),
        doc="the longest wait for leaders when a stock client asks for a count that stock producers cannot follow; "
        "if it is not known by then whether the topic has records, the request is refused",
    )
    controller_socket_timeout_ms: int = declared(
        INT,
        30_000,
        Between(1),
        doc="how long the controller waits for a broker's answer before it sends the request again",
    )
    max_partitions: int = declared(
        INT,
        20_000,
        Between(1),
        doc="the most partitions of the cluster; each counts once, however many replicas it has (KIP-578). A "
        "request for more is refused, except for internal topics",
    )
    delete_topic_enable: bool = declared(BOOLEAN, True, doc="whether topics can be deleted")
    auto_leader_rebalance_enable: bool = declared(
        BOOLEAN, True, doc="whether the controller makes preferred replicas leaders again"
    )
    leader_imbalance_check_interval_seconds: int = declared(
        LONG, 300, Between(1), doc="time between two checks for auto.leader.rebalance.enable"
    )
    leader_imbalance_per_broker_percentage: int = declared(
        INT,
        10,
        Between(0),
        doc="the percentage of a broker's preferred replicas that may have another leader before the controller acts",
    )


CONTROLLER_CONFIGS = ConfigDef("controller", ControllerKeys.all_keys())
