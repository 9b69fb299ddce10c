"""The plan of a local cluster: ports, directories and the properties of each process. No IO."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.protocol.addresses import join_address, split_address
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS, FIRST_CONTROLLER_ID
from anabranch.zk_schemas.static_keys import for_broker

HOST = "127.0.0.1"
SESSION_TIMEOUT_MS = 6_000
START_TIMEOUT_MS = 90_000
REPLICATION_FACTOR = 3
"""The replication factor of topics, also of ``__consumer_offsets``, if there are enough brokers."""

_OF_ONE_PROCESS = frozenset({"metrics.listener", "zookeeper.connect", "controller.id", "controller.listener"})
"""Keys that are not passed unchanged from the overrides to a controller.

``metrics.listener`` gets a port of its own for each process. The plan itself sets the other three keys.
"""


@dataclass(frozen=True, slots=True)
class LocalClusterConfig:
    """Size and place of a local cluster.

    ``port`` is the first broker's; the other brokers take the next ports. With 0, free ports are taken. ``overrides``
    are config keys: each process gets those that it uses. ``console_port`` is the console's port: 0 takes a free one,
    None means that there is no console.
    """

    directory: str
    brokers: int = 3
    controllers: int = 1
    port: int = 0
    overrides: Mapping[str, str] = field(default_factory=dict)
    console_port: int | None = None
    ready_file: Path | None = None
    """Written when the cluster serves. It does not exist before, nor after the end."""
    start_timeout_ms: int = START_TIMEOUT_MS
    """The limit of the start of ZooKeeper, and then of the other processes."""


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process: its name, the properties file it reads and the text of that file."""

    name: str
    role: str
    node_id: int
    port: int
    metrics_port: int
    config_path: str
    properties: Mapping[str, str]

    def properties_text(self) -> str:
        return "".join(f"{key}={value}\n" for key, value in self.properties.items())


def parse_overrides(settings: list[str]) -> dict[str, str]:
    """Parse ``key=value`` pairs of brokers or controllers. A prefix ``broker.`` that is not part of the key is removed.

    Raises ``ConfigError`` for a pair without ``=``, an unknown key (naming the nearest) or a value out of range.
    """
    overrides = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator:
            raise ConfigError(setting, "--set takes key=value")
        short = key.removeprefix("broker.")
        if key not in BROKER_CONFIGS and short in BROKER_CONFIGS:
            key = short
        overrides[key] = value
    CONTROLLER_CONFIGS.parse_given({key: value for key, value in overrides.items() if key in CONTROLLER_CONFIGS})
    BROKER_CONFIGS.parse_given({key: value for key, value in overrides.items() if key not in CONTROLLER_CONFIGS})
    return overrides


def metrics_address(config: LocalClusterConfig) -> tuple[str, int]:
    """Host and first port of ``metrics.listener``: the brokers take the first ports, then the controllers.

    Port 0 takes free ports.
    """
    host, port = split_address(config.overrides.get("metrics.listener", f"{HOST}:0"))
    return host or "0.0.0.0", port


def _for_broker(overrides: Mapping[str, str]) -> dict[str, str]:
    given = {key: value for key, value in overrides.items() if key in BROKER_CONFIGS and key != "metrics.listener"}
    return for_broker(given)[0]


def _metrics_listener(config: LocalClusterConfig, port: int) -> str:
    host = metrics_address(config)[0]
    return join_address(host, port)


def _for_controller(overrides: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in overrides.items() if key in CONTROLLER_CONFIGS and key not in _OF_ONE_PROCESS}


def _replicas(config: LocalClusterConfig) -> str:
    return str(min(REPLICATION_FACTOR, config.brokers))


def log_dir(directory: str, broker_id: int) -> str:
    return f"{directory}/broker-{broker_id}"


def plan_brokers(
    config: LocalClusterConfig, zookeeper: str, ports: list[int], metrics_ports: list[int]
) -> list[ProcessPlan]:
    """One plan per broker; ids start at 1."""
    plans = []
    for broker_id, (port, metrics_port) in enumerate(zip(ports, metrics_ports, strict=True), 1):
        properties = {
            "broker.id": str(broker_id),
            "zookeeper.connect": zookeeper,
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "listeners": f"PLAINTEXT://{HOST}:{port}",
            "log.dirs": log_dir(config.directory, broker_id),
            "offsets.topic.replication.factor": _replicas(config),
            "default.replication.factor": _replicas(config),
            "metrics.listener": _metrics_listener(config, metrics_port),
            "group.initial.rebalance.delay.ms": "500",
            "controlled.shutdown.retry.backoff.ms": "500",
            **_for_broker(config.overrides),
        }
        name = f"broker-{broker_id}"
        path = f"{config.directory}/{name}.properties"
        plans.append(ProcessPlan(name, "broker", broker_id, port, metrics_port, path, properties))
    return plans


def plan_controllers(
    config: LocalClusterConfig, zookeeper: str, ports: list[int], metrics_ports: list[int]
) -> list[ProcessPlan]:
    """One plan per controller; ids start at 1000."""
    plans = []
    for controller_id, (port, metrics_port) in enumerate(zip(ports, metrics_ports, strict=True), FIRST_CONTROLLER_ID):
        properties = {
            "controller.id": str(controller_id),
            "zookeeper.connect": zookeeper,
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "controller.listener": f"PLAINTEXT://{HOST}:{port}",
            "default.replication.factor": _replicas(config),
            "metrics.listener": _metrics_listener(config, metrics_port),
            **_for_controller(config.overrides),
        }
        name = f"controller-{controller_id}"
        path = f"{config.directory}/{name}.properties"
        plans.append(ProcessPlan(name, "controller", controller_id, port, metrics_port, path, properties))
    return plans


def validate(config: LocalClusterConfig) -> None:
    """Raise ``ConfigError`` for invalid sizes or an invalid port."""
    if config.brokers < 1:
        raise ConfigError("--brokers", f"{config.brokers} is below 1")
    if config.controllers < 1:
        raise ConfigError("--controllers", f"{config.controllers} is below 1")
    if config.start_timeout_ms < 1:
        raise ConfigError("--start-timeout-ms", f"{config.start_timeout_ms} is below 1")
    last = config.port + config.brokers - 1
    if config.port < 0:
        raise ConfigError("--port", f"{config.port} is below 0")
    if last > 65535:
        raise ConfigError("--port", f"{config.port} would need ports up to {last}; the highest is 65535")


def restart_delay_s(quick_deaths: int) -> float:
    """The delay before a dead child is restarted: 1 s, doubled up to 30 s if the child dies soon after each start."""
    return min(30.0, math.ldexp(1.0, min(quick_deaths, 5)))
