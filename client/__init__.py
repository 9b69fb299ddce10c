"""Producer, Consumer and Admin on AnyIO.

Names are imported on first use, so that a program that only reads a log loads no producer and no admin client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.client.admin.admin import Admin
    from anabranch.client.admin.types import (
        ClusterDescription,
        ConfigEntry,
        ConfigOp,
        FeatureMetadata,
        FeatureUpdate,
        GroupDescription,
        GroupListing,
        LogDirDescription,
        NewTopic,
        PartitionReassignment,
        TopicDescription,
        TopicListing,
    )
    from anabranch.client.cluster import Cluster
    from anabranch.client.consumer.consumer import Consumer
    from anabranch.client.group.coordinator_link import OffsetAndMetadata
    from anabranch.client.net.offsets import OffsetAndTimestamp
    from anabranch.client.ordered_delivery.blocked_partition import BlockedPartition, WaitsFor
    from anabranch.client.producer.message_batch import AppendedRecord, MessageBatch
    from anabranch.client.producer.producer import Producer
    from anabranch.client.producer.producer_batch import RecordHandle, RecordMetadata
    from anabranch.client.subscription.fetched_batch import ConsumerRecord, Records
    from anabranch.protocol.request_kinds import ElectionType, UpgradeType
    from anabranch.zk_schemas.config_def import ConfigError

__all__ = [
    "Admin",
    "AppendedRecord",
    "BlockedPartition",
    "Cluster",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigError",
    "ConfigOp",
    "Consumer",
    "ConsumerRecord",
    "ElectionType",
    "FeatureMetadata",
    "FeatureUpdate",
    "GroupDescription",
    "GroupListing",
    "LogDirDescription",
    "MessageBatch",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionReassignment",
    "Producer",
    "RecordHandle",
    "RecordMetadata",
    "Records",
    "TopicDescription",
    "TopicListing",
    "UpgradeType",
    "WaitsFor",
]

_MODULES = {
    "admin.admin": ("Admin",),
    "admin.types": (
        "ClusterDescription",
        "ConfigEntry",
        "ConfigOp",
        "FeatureMetadata",
        "FeatureUpdate",
        "GroupDescription",
        "GroupListing",
        "LogDirDescription",
        "NewTopic",
        "PartitionReassignment",
        "TopicDescription",
        "TopicListing",
    ),
    "cluster": ("Cluster",),
    "config": ("ConfigError",),
    "consumer.consumer": ("Consumer",),
    "group.coordinator_link": ("OffsetAndMetadata",),
    "subscription.fetched_batch": ("ConsumerRecord", "Records"),
    "net.offsets": ("OffsetAndTimestamp",),
    "ordered_delivery.blocked_partition": ("BlockedPartition", "WaitsFor"),
    "producer.message_batch": ("AppendedRecord", "MessageBatch"),
    "producer.producer": ("Producer",),
    "producer.producer_batch": ("RecordHandle", "RecordMetadata"),
}
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
_MODULE_OF |= dict.fromkeys(("ElectionType", "UpgradeType"), "anabranch.protocol.request_kinds")


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
