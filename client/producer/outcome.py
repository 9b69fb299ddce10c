"""Decides the outcome of a batch from its response. No IO."""

from __future__ import annotations

import enum

from anabranch.client.errors import ErrorCode
from anabranch.client.producer.partition_queue import PartitionQueue
from anabranch.client.producer.producer_batch import ProducerBatch
from anabranch.protocol.sentinels import NO_SEQUENCE


class BatchOutcome(enum.Enum):
    """The producer's reaction to the response to a batch (Kafka's ``Sender.completeBatch``)."""

    COMPLETE = "complete"
    RETRY = "retry"
    SPLIT = "split"
    RENUMBER = "renumber"
    """The broker has lost or never had this producer's state: retry under a new epoch."""
    REPLACE = "replace"
    """The broker's layout of the topic differs from the layout by which the batch was placed."""
    FAIL = "fail"
    GIVE_UP = "give up"
    """The batch may have been written, and cannot be sent again unchanged."""


def decide(error: ErrorCode, batch: ProducerBatch, queue: PartitionQueue, *, retries: int) -> BatchOutcome:
    """The ``BatchOutcome`` for ``error`` in the response to ``batch``; ``retries`` is the producer's setting."""
    if error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        return BatchOutcome.COMPLETE
    if error is ErrorCode.MESSAGE_TOO_LARGE:
        if batch.lost and batch.base_sequence != NO_SEQUENCE:
            return (
                BatchOutcome.GIVE_UP
            )  # a broker checks the size first, so this is no answer to whether it has the batch
        return BatchOutcome.SPLIT if batch.count > 1 else BatchOutcome.FAIL
    if error is ErrorCode.INVALID_PARTITION_METADATA:
        return BatchOutcome.REPLACE  # does not count as a retry: the next send is another batch
    if batch.attempts > retries:
        return BatchOutcome.FAIL
    if batch.base_sequence != NO_SEQUENCE:
        if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # After a batch of unknown outcome a gap is expected. The gap closes when that batch is sent again.
            unknown = next((b for b in queue.outstanding if not b.is_unwritten), batch)
            return BatchOutcome.RENUMBER if unknown is batch else BatchOutcome.RETRY
        if error in (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH):
            return BatchOutcome.RENUMBER
    return BatchOutcome.RETRY if error.retriable else BatchOutcome.FAIL


def may_have_written(error: ErrorCode) -> bool:
    """Whether this attempt may have written the batch, or may write it later, although the broker answered ``error``.

    UNKNOWN_TOPIC_OR_PARTITION can follow an append only while the partition still exists on some broker. Before a
    resize removes a partition, the partition takes no records any more, and all its records are acknowledged.
    """
    return error not in _NOT_WRITTEN


_NOT_WRITTEN = frozenset(
    {
        ErrorCode.INVALID_PARTITION_METADATA,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
