"""Producer, Consumer and Admin on AnyIO."""

from client.admin import Admin
from client.admin_types import (
    ClusterDescription,
    ConfigEntry,
    ConfigOp,
    ElectionType,
    FeatureMetadata,
    FeatureUpdate,
    GroupDescription,
    GroupListing,
    LogDirDescription,
    NewTopic,
    PartitionReassignment,
    TopicDescription,
    UpgradeType,
)
from client.consumer import Consumer
from client.coordinator_link import OffsetAndMetadata
from client.fetched import ConsumerRecord, Records
from client.offsets import OffsetAndTimestamp
from client.ordered_delivery.explain import BlockedPartition, WaitsFor
from client.producer import Producer
from client.producer_batch import RecordHandle, RecordMetadata
from zk_schemas.config_def import ConfigError

__all__ = [
    "Admin",
    "BlockedPartition",
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
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionReassignment",
    "Producer",
    "RecordHandle",
    "RecordMetadata",
    "Records",
    "TopicDescription",
    "UpgradeType",
    "WaitsFor",
]
