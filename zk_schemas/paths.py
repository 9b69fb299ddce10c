"""The paths of znodes, as in Kafka."""

from __future__ import annotations

BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CONTROLLERS = "/controllers"
"""Has a child for each running controller, active or standby."""
CLUSTER_ID = "/cluster/id"
FEATURES = "/features"
REGISTRATIONS = "/brokers/registrations"
"""Set by each broker registration and by each write of ``/features``. Its zkVersion orders them."""
FIRST_LEADER_EPOCH = "/first_leader_epoch"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
DELETE_TOPICS = "/admin/delete_topics"
CONFIG = "/config"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = f"{CONFIG_CHANGES}/config_change_"
LOG_DIR_EVENTS = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX = f"{LOG_DIR_EVENTS}/log_dir_event_"
DEFAULT_BROKER = "<default>"
"""The name under ``BROKER_CONFIGS`` whose keys apply to every broker."""

PERSISTENT = (
    BROKER_IDS,
    TOPICS,
    "/cluster",
    DELETE_TOPICS,
    TOPIC_CONFIGS,
    BROKER_CONFIGS,
    CONFIG_CHANGES,
    LOG_DIR_EVENTS,
    REGISTRATIONS,
    CONTROLLERS,
)
"""Paths that are created, if missing, before a process uses ZooKeeper."""


def broker_id(broker: int) -> str:
    return f"{BROKER_IDS}/{broker}"


def controller_id(controller: int) -> str:
    return f"{CONTROLLERS}/{controller}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}"


def partition_state(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}/state"


def topic_config(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{name}"


def broker_config(broker: int | None) -> str:
    """The path of a broker's overrides; for ``None`` the path of the default for all brokers."""
    return f"{BROKER_CONFIGS}/{DEFAULT_BROKER if broker is None else broker}"


def delete_topic(name: str) -> str:
    return f"{DELETE_TOPICS}/{name}"
