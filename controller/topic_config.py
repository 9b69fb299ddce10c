"""Topic configs from the image, for the controller's decisions."""

from __future__ import annotations

from typing import Any

from anabranch.controller.image import ClusterImage
from anabranch.controller.stored_config import StoredConfig
from anabranch.protocol.topic_names import INTERNAL_TOPICS
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.topic_keys import AUTOSCALE_KEY, topic_defaults

ORDERED_KEY = "enable.ordered.delivery"


def of_topic(image: ClusterImage, name: str) -> StoredConfig:
    """The overrides of a topic."""
    return image.config(paths.topic_config(name))


def unclean_election_allowed(image: ClusterImage, name: str, default: bool) -> bool:
    """Whether the topic may have a leader that was not in sync.

    The first of these values that is set counts: the topic's value, the brokers' default, ``default``.
    """
    for path in (paths.topic_config(name), paths.broker_config(None)):
        if (allowed := image.config(path).unclean) is not None:
            return allowed
    return default


def is_autoscaled(image: ClusterImage, name: str) -> bool:
    """Whether the topic has ``autoscale.enable``."""
    return bool(of_topic(image, name).values.get(AUTOSCALE_KEY)) and name not in INTERNAL_TOPICS


def topic_values(image: ClusterImage, name: str) -> dict[str, Any]:
    """Every topic key with its value in force according to ZooKeeper. Defaults in brokers' files are not known here.

    A config znode that cannot be used counts as empty.
    """
    return topic_defaults(image.config(paths.broker_config(None)).values) | dict(of_topic(image, name).values)
