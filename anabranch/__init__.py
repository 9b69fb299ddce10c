"""Anabranch: a message log that speaks the Kafka protocol.

    from anabranch import Producer, Consumer, Admin, TopicPartition

Names are imported when they are first used, so that ``import anabranch`` is cheap and needs no event loop library.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from client import (
        Admin,
        BlockedPartition,
        ClusterDescription,
        ConfigEntry,
        ConfigError,
        ConfigOp,
        Consumer,
        ConsumerRecord,
        ElectionType,
        FeatureMetadata,
        FeatureUpdate,
        GroupDescription,
        GroupListing,
        LogDirDescription,
        NewTopic,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        PartitionReassignment,
        Producer,
        RecordHandle,
        RecordMetadata,
        Records,
        TopicDescription,
        UpgradeType,
        WaitsFor,
    )
    from client.errors import (
        BufferExhaustedError,
        ClientClosedError,
        CommitFailedError,
        ErrorCode,
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
    )
    from protocol.types import TopicPartition

__all__ = [
    "Admin",
    "BlockedPartition",
    "BufferExhaustedError",
    "ClientClosedError",
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
    "GroupDescription",
    "GroupListing",
    "IllegalStateError",
    "InvalidMetadataError",
    "KafkaError",
    "KafkaTimeoutError",
    "LogDirDescription",
    "LogTruncationError",
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
    "TopicPartition",
    "UnassignedParentError",
    "UpgradeType",
    "WaitsFor",
]

_ERRORS = frozenset(
    {
        "BufferExhaustedError",
        "ClientClosedError",
        "CommitFailedError",
        "ErrorCode",
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
    }
)
_SIBLINGS = ("audit", "broker", "client", "controller", "ordered_resize", "protocol", "runtime", "zk_schemas")


def check_siblings(siblings: tuple[str, ...] = _SIBLINGS) -> None:
    """Raise ImportError when a package of Anabranch's is missing or comes from another distribution.

    Their names are plain words, and another distribution may install one of them over ours.
    """
    ours = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for name in siblings:
        spec = importlib.util.find_spec(name)
        found = os.path.realpath(spec.origin) if spec is not None and spec.origin is not None else None
        expected = os.path.join(ours, name)
        if found is None or os.path.dirname(found) != expected:
            where = f"from {found}" if found is not None else "nowhere to be found"
            raise ImportError(
                f"the package {name!r} that Python finds is {where}, not Anabranch's in {expected}: another installed "
                f"distribution has a package of that name; uninstall it or use a virtual environment of its own",
                name=name,
            )


check_siblings()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "TopicPartition":
        module = "protocol.types"
    else:
        module = "client.errors" if name in _ERRORS else "client"
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
