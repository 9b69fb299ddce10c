"""The exceptions that the client raises. All but misuse derive from ``KafkaError`` and carry Kafka's code."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.protocol.errors import (
    CoordinatorMovedError,
    ErrorCode,
    InvalidMetadataError,
    KafkaError,
    RetriableError,
    error_for,
)
from anabranch.protocol.plurals import counted
from anabranch.protocol.types import TopicPartition

__all__ = [
    "BufferExhaustedError",
    "ClientClosedError",
    "ClientFailedError",
    "CommitFailedError",
    "CoordinatorMovedError",
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
    "error_for",
]


class IllegalStateError(RuntimeError):
    """A call that does not fit the state of the client. The caller is at fault, so a retry never helps."""


class ClientClosedError(IllegalStateError):
    """The client was closed, or was not entered with ``async with``."""


class _WithoutCode:
    """For an error of the client itself: no code of Kafka fits it, so its text begins with no code."""

    message: str

    def __str__(self) -> str:
        return self.message


class ClientFailedError(_WithoutCode, KafkaError, ClientClosedError):
    """A background task of the client ended by an error that nobody expected, which is the cause (``__cause__``).

    The records that were not acknowledged have failed, and the client cannot be used any more.
    """

    def __init__(self, client: str, cause: Exception) -> None:
        self.client = client
        self.cause = cause
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, f"a task of this {client} ended by an error: {cause!r}")
        self.__cause__ = cause


class ForkedClientError(_WithoutCode, KafkaError, IllegalStateError):
    """A child process of ``fork`` used a client that its parent process has started.

    The client's connections and its event loop belong to the parent. A client that is made or started in the child
    works.
    """

    def __init__(self, client: str) -> None:
        super().__init__(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"this {client} was started before the process forked, and belongs to the parent process: make one in "
            f"each process",
        )


class WakeupError(Exception):
    """Another thread called ``wakeup`` of the blocking consumer. No record is lost, and the consumer can be used."""

    def __init__(self) -> None:
        super().__init__("wakeup() was called")


class UnassignedParentError(IllegalStateError):
    """An assigned partition must wait for an unassigned partition without a known reader.

    Its keys came from the unassigned partition, or are merged with the unassigned partition's keys. The error is raised
    with ``ordered_delivery_unassigned_parent="fail"`` only.
    """

    def __init__(self, partition: TopicPartition, parent: TopicPartition) -> None:
        self.partition = partition
        self.parent = parent
        super().__init__(
            f"{partition} must wait for {parent}, which is not assigned to this consumer: assign both, commit the "
            f'group\'s offset of {parent}, or give up the order with ordered_delivery_unassigned_parent="ignore"'
        )


class KafkaTimeoutError(RetriableError):
    """A deadline of the client passed: ``delivery_timeout_ms``, ``max_block_ms``, ``default_api_timeout_ms``."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class BufferExhaustedError(KafkaTimeoutError):
    """``buffer_memory`` stayed full for ``max_block_ms``."""


class CommitFailedError(KafkaError):
    """The group has rebalanced without this member. The commit was refused, because another may own its partitions."""


class OutcomeUnknownError(KafkaError):
    """It is unknown whether the records were written: a response was lost, and their batch cannot be sent again.

    Since the response was lost, the partition was removed or created again, or the batch became too large for the
    topic. The records are not sent in other batches, because they might then be written twice.
    """

    def __init__(self, tp: TopicPartition, count: int, code: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) -> None:
        since = (
            "the batch has become larger than the topic allows since"
            if code is ErrorCode.MESSAGE_TOO_LARGE
            else "the partition has been removed or created again since"
        )
        super().__init__(
            code,
            f"{counted(count, 'record')} for {tp} may or may not have been written: a response was lost, and {since}",
        )


class RefusedWithBatchError(KafkaError):
    """The record was not written because other records of its batch are at fault.

    This record may be sent again. ``code`` is the error code of the records at fault.
    """


class PartitionMarkedError(KafkaError):
    """The record's partition takes no records, because a resize merges it into another.

    The caller, or the caller's partitioner, chose the partition. Placement by key never chooses such a partition.
    """

    def __init__(self, tp: TopicPartition, undeleted_partition_count: int) -> None:
        super().__init__(
            ErrorCode.POLICY_VIOLATION,
            f"{tp} takes no records: a resize to {counted(undeleted_partition_count, 'partition')} merges it into "
            f"another; send without a partition, so that the key decides, or choose one below "
            f"{undeleted_partition_count}",
        )


class NoOffsetForPartitionError(KafkaError):
    """No committed offset and ``auto_offset_reset="none"``."""

    def __init__(self, partitions: list[TopicPartition]) -> None:
        self.partitions = partitions
        names = ", ".join(str(tp) for tp in partitions)
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE, f'no committed offset for {names} and auto_offset_reset is "none"'
        )


class OffsetOutOfRangeError(KafkaError):
    """The position is outside of the partition's log, and ``auto_offset_reset="none"``."""

    def __init__(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.offsets = dict(offsets)
        where = ", ".join(f"offset {offset} of {tp}" for tp, offset in offsets.items())
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{where}: outside of the log, and no auto_offset_reset applies"
        )


class LogTruncationError(KafkaError):
    """Records that this consumer has read were truncated by an unclean election, and ``auto_offset_reset="none"``.

    ``divergent`` has an offset for each partition: the log still has the records read before this offset.
    """

    def __init__(self, divergent: Mapping[TopicPartition, int]) -> None:
        self.divergent = dict(divergent)
        where = ", ".join(f"{tp} from offset {offset} on" for tp, offset in divergent.items())
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, f"records that were read have been truncated: {where}")


class RecordDeserializationError(KafkaError):
    """A deserializer raised for the record at ``offset``. The position is already after the records of this call.

    To read these records again, seek back to them.
    """

    def __init__(self, partition: TopicPartition, offset: int, cause: Exception) -> None:
        self.partition = partition
        self.offset = offset
        super().__init__(ErrorCode.INVALID_RECORD, f"{partition} offset {offset} cannot be deserialized: {cause!r}")
