"""The controller's configuration: its own keys, and Kafka's broker keys that concern a controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from anabranch.protocol.message_limits import RequestLimits
from anabranch.runtime.http_limits import HttpLimits
from anabranch.zk_schemas.broker_registration import VersionRange
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS, FIRST_CONTROLLER_ID
from anabranch.zk_schemas.features import SUPPORTED, supported_by

__all__ = ["CONTROLLER_CONFIGS", "FIRST_CONTROLLER_ID", "ControllerConfig"]


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """A controller's values. Attribute names are the keys with underscores. Times are in milliseconds."""

    controller_id: int
    host: str
    port: int
    zookeeper_connect: str
    zookeeper_session_timeout_ms: int = 18_000
    zookeeper_connection_timeout_ms: int = 18_000
    jute_maxbuffer: int = 0xFFFFF
    inter_broker_listener_name: str | None = None
    controller_socket_timeout_ms: int = 30_000
    num_partitions: int = 1
    default_replication_factor: int = 1
    max_partitions: int = 20_000
    delete_topic_enable: bool = True
    unclean_leader_election_enable: bool = False
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    leader_imbalance_per_broker_percentage: int = 10
    request_limits: RequestLimits = field(default_factory=RequestLimits)
    socket_response_max_bytes: int = 64 << 20
    socket_keepalive_timeout_ms: int = 30_000
    connections_max_idle_ms: int = 600_000
    partition_drain_check_interval_ms: int = 1_000
    autoscale_check_interval_ms: int = 5_000
    retention_warning_ms: int = 600_000
    retention_warning_interval_ms: int = 60_000
    partition_state_max_bytes: int = 262_144
    stock_producer_grace_ms: int = 6_000
    stock_producer_window_ms: int = 600_000
    metrics_listener: str | None = None
    metrics_http: HttpLimits = field(default_factory=HttpLimits)
    metrics_max_topics: int = 1000
    metrics_max_partitions: int = 1000
    health_loop_lag_ms: int = 2_000
    logging_levels: tuple[str, ...] = ("INFO",)
    logging_format: str = "console"
    supported_features: Mapping[str, VersionRange] = field(default_factory=lambda: SUPPORTED)

    @classmethod
    def parse(cls, given: Mapping[str, object]) -> ControllerConfig:
        """Parse keys given as text or Python values. Raises ``ConfigError``."""
        values: dict[str, Any] = CONTROLLER_CONFIGS.parse(given)
        host, port = _address(values["controller.listener"])
        session_timeout_ms = values["zookeeper.session.timeout.ms"]
        return cls(
            controller_id=values["controller.id"],
            host=host,
            port=port,
            zookeeper_connect=values["zookeeper.connect"],
            zookeeper_session_timeout_ms=session_timeout_ms,
            zookeeper_connection_timeout_ms=values["zookeeper.connection.timeout.ms"] or session_timeout_ms,
            jute_maxbuffer=values["jute.maxbuffer"],
            inter_broker_listener_name=values["inter.broker.listener.name"],
            controller_socket_timeout_ms=values["controller.socket.timeout.ms"],
            num_partitions=values["num.partitions"],
            default_replication_factor=values["default.replication.factor"],
            max_partitions=values["max.partitions"],
            delete_topic_enable=values["delete.topic.enable"],
            unclean_leader_election_enable=values["unclean.leader.election.enable"],
            auto_leader_rebalance_enable=values["auto.leader.rebalance.enable"],
            leader_imbalance_check_interval_seconds=values["leader.imbalance.check.interval.seconds"],
            leader_imbalance_per_broker_percentage=values["leader.imbalance.per.broker.percentage"],
            request_limits=RequestLimits(
                max_bytes=values["socket.request.max.bytes"],
                max_small_bytes=values["small.request.max.bytes"],
                max_admin_bytes=values["admin.request.max.bytes"],
                max_elements=values["request.max.elements"],
                max_admin_elements=values["admin.request.max.elements"],
                max_decoded_bytes=values["decoded.requests.max.bytes"],
                bulk_apis=frozenset(),
            ),
            socket_response_max_bytes=values["socket.response.max.bytes"],
            socket_keepalive_timeout_ms=values["socket.keepalive.timeout.ms"],
            connections_max_idle_ms=values["connections.max.idle.ms"],
            partition_drain_check_interval_ms=values["partition.drain.check.interval.ms"],
            autoscale_check_interval_ms=values["autoscale.check.interval.ms"],
            retention_warning_ms=values["retention.warning.ms"],
            retention_warning_interval_ms=values["retention.warning.interval.ms"],
            partition_state_max_bytes=values["partition.state.max.bytes"],
            stock_producer_grace_ms=values["stock.producer.grace.ms"],
            stock_producer_window_ms=values["stock.producer.window.ms"],
            metrics_listener=values["metrics.listener"],
            metrics_http=HttpLimits(
                connections=values["metrics.http.max.connections"],
                head_bytes=values["metrics.http.max.head.bytes"],
                requests=values["metrics.http.max.requests"],
                timeout_s=values["metrics.http.timeout.ms"] / 1000,
                idle_timeout_s=values["metrics.http.idle.timeout.ms"] / 1000,
            ),
            metrics_max_topics=values["metrics.max.topics"],
            metrics_max_partitions=values["metrics.max.partitions"],
            health_loop_lag_ms=values["health.loop.lag.ms"],
            logging_levels=tuple(values["logging.levels"]),
            logging_format=values["logging.format"],
            supported_features=supported_by(values["supported.features"]),
        )


def _address(listener: str) -> tuple[str, int]:
    try:
        split = urlsplit(listener)
        host, port = split.hostname, split.port
    except ValueError as error:
        raise ConfigError("controller.listener", f"{listener!r}: {error}") from None
    if split.scheme.upper() != "PLAINTEXT" or not host or port is None:
        raise ConfigError("controller.listener", f"{listener!r} is not PLAINTEXT://host:port")
    return host, port
