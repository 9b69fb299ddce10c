"""Anabranch: a message log that speaks the Kafka protocol.

    from anabranch import Producer, Consumer, Admin, TopicPartition

Names are imported when they are first used, so that ``import anabranch`` is cheap and needs no event loop library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.client import (
        AppendedRecord,
        BlockedPartition,
        Cluster,
        ClusterDescription,
        ConfigEntry,
        ConfigError,
        ConfigOp,
        ConsumerRecord,
        ElectionType,
        FeatureMetadata,
        FeatureUpdate,
        GroupDescription,
        GroupListing,
        LogDirDescription,
        MessageBatch,
        NewTopic,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        PartitionReassignment,
        RecordHandle,
        RecordMetadata,
        Records,
        TopicDescription,
        TopicListing,
        UpgradeType,
        WaitsFor,
    )
    from anabranch.client.errors import (
        BufferExhaustedError,
        ClientClosedError,
        ClientFailedError,
        CommitFailedError,
        ErrorCode,
        ForkedClientError,
        IllegalStateError,
        InvalidMetadataError,
        KafkaError,
        KafkaTimeoutError,
        LogTruncationError,
        NoOffsetForPartitionError,
        OffsetOutOfRangeError,
        OutcomeUnknownError,
        PartitionMarkedError,
        RecordDeserializationError,
        RefusedWithBatchError,
        RetriableError,
        UnassignedParentError,
        WakeupError,
    )
    from anabranch.protocol.types import TopicPartition
    from anabranch.real.admin import Admin
    from anabranch.real.consumer import Consumer
    from anabranch.real.producer import Producer

__all__ = [
    "Admin",
    "AppendedRecord",
    "BlockedPartition",
    "BufferExhaustedError",
    "ClientClosedError",
    "ClientFailedError",
    "Cluster",
    "ClusterDescription",
    "CommitFailedError",
    "ConfigEntry",
    "ConfigError",
    "ConfigOp",
    "Consumer",
    "ConsumerRecord",
    "ElectionType",
    "ErrorCode",
    "FeatureMetadata",
    "FeatureUpdate",
    "ForkedClientError",
    "GroupDescription",
    "GroupListing",
    "IllegalStateError",
    "InvalidMetadataError",
    "KafkaError",
    "KafkaTimeoutError",
    "LogDirDescription",
    "LogTruncationError",
    "MessageBatch",
    "NewTopic",
    "NoOffsetForPartitionError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "OutcomeUnknownError",
    "PartitionMarkedError",
    "PartitionReassignment",
    "Producer",
    "RecordDeserializationError",
    "RecordHandle",
    "RecordMetadata",
    "Records",
    "RefusedWithBatchError",
    "RetriableError",
    "TopicDescription",
    "TopicListing",
    "TopicPartition",
    "UnassignedParentError",
    "UpgradeType",
    "WaitsFor",
    "WakeupError",
]

_ERRORS = frozenset(
    {
        "BufferExhaustedError",
        "ClientClosedError",
        "ClientFailedError",
        "CommitFailedError",
        "ErrorCode",
        "ForkedClientError",
        "IllegalStateError",
        "InvalidMetadataError",
        "KafkaError",
        "KafkaTimeoutError",
        "LogTruncationError",
        "NoOffsetForPartitionError",
        "OffsetOutOfRangeError",
        "OutcomeUnknownError",
        "PartitionMarkedError",
        "RecordDeserializationError",
        "RefusedWithBatchError",
        "RetriableError",
        "UnassignedParentError",
        "WakeupError",
    }
)

_CLIENTS = {
    "Admin": "anabranch.real.admin",
    "Consumer": "anabranch.real.consumer",
    "Producer": "anabranch.real.producer",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise importlib.import_module("anabranch.client.other_libraries").missing_in_module(__name__, name)
    if name == "TopicPartition":
        module = "anabranch.protocol.types"
    elif name in _CLIENTS:
        module = _CLIENTS[name]
    else:
        module = "anabranch.client.errors" if name in _ERRORS else "anabranch.client"
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
