"""A broker as operators see it: its metrics and its health, on ``metrics.listener``."""

from __future__ import annotations

from anabranch.broker.link.progress_reader import progress_reader
from anabranch.broker.metrics.table import BROKER_METRICS
from anabranch.broker.net.server import Server
from anabranch.broker.node import Node
from anabranch.broker.observed.group_lag import GroupLag
from anabranch.broker.observed.state_metrics import (
    GroupMetrics,
    PartitionMetrics,
    SeriesLimits,
    log_metrics,
    network_metrics,
)
from anabranch.runtime.health import Problem
from anabranch.runtime.http_limits import HttpLimits
from anabranch.runtime.metrics import Gauge, Histogram, ShownTopics
from anabranch.runtime.observed import Observed

_IDLE = (
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    "kafka_network_socketserver_networkprocessoravgidle_percent",
)
"""Kafka's gauges for its two thread pools. Here the event loop does the work of both pools."""


async def offer_metrics(node: Node, server: Server, zk_latency: Histogram | None) -> None:
    """Serve metrics and health in the node's nursery, if ``metrics.listener`` is set. Raises ``OSError``."""
    values = node.config.values
    address = values.metrics_listener
    if address is None:
        return
    metrics = node.metrics
    metrics.shown_topics = ShownTopics(values.metrics_max_topics, lambda: node.metadata.topics)
    metrics.most_series = values.metrics_max_partitions
    limits = SeriesLimits(values.metrics_max_partitions, values.metrics_max_groups)
    lag = GroupLag(
        node.env.clock,
        node.groups,
        node.metadata,
        node.replicas,
        progress_reader(node.env, node.metadata, node.config, "lag", values.request_timeout_ms / 1000),
        interval_s=values.metrics_lag_interval_ms / 1000,
        most=limits.partitions,
    )
    metrics.sources += [
        PartitionMetrics(node, metrics.shown_topics, limits),
        GroupMetrics(node, lag, metrics.shown_topics, limits),
        log_metrics(node.logs, node.env.clock.monotonic),
        network_metrics(node, server),
    ]
    observed = Observed("broker", node.config.broker_id, node.env, metrics, node.background, node.link.zk, zk_latency)
    metrics.gauges += [Gauge(BROKER_METRICS[name], observed.idle_share) for name in _IDLE]
    observed.health.checks += [lambda: _registration(node), lambda: _controller(node)]
    observed.check_loop(values.health_loop_lag_ms / 1000)
    await observed.listen(address, HttpLimits.of(values))
    node.nursery.start_soon(observed.run)
    node.nursery.start_soon(node.background.keep, "group-lag", lag.run)


def _registration(node: Node) -> list[Problem]:
    """The problem, if the broker is not registered or is not in the controller's metadata."""
    broker_id = node.config.broker_id
    if not node.link.registered.is_set():
        return [Problem("registration", f"broker {broker_id} is starting and is not registered yet", is_fatal=True)]
    if broker_id not in node.metadata.brokers:
        known = sorted(node.metadata.brokers)
        what = f"broker {broker_id} is registered, but the controller's metadata names only brokers {known}"
        return [Problem("registration", what, is_fatal=True)]
    return []


def _controller(node: Node) -> list[Problem]:
    """The problem, if no controller answers. It is not fatal: the broker still serves the partitions that it leads."""
    silence = node.link.controller.silence()
    return [] if silence is None else [Problem("controller", f"{silence}: no leader or ISR can change")]
