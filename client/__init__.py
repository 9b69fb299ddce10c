"""Producer, Consumer and Admin on AnyIO."""

from anabranch.client.admin import Admin
from anabranch.client.admin_types import (
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
from anabranch.client.consumer import Consumer
from anabranch.client.coordinator_link import OffsetAndMetadata
from anabranch.client.fetched import ConsumerRecord, Records
from anabranch.client.offsets import OffsetAndTimestamp
from anabranch.client.ordered_delivery.explain import BlockedPartition, WaitsFor
from anabranch.client.producer import Producer
from anabranch.client.producer_batch import RecordHandle, RecordMetadata
from anabranch.zk_schemas.config_def import ConfigError

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
