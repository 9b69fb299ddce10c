"""What the answer to a batch means for it, decided without IO."""

from __future__ import annotations

import enum

from anabranch.client.errors import ErrorCode
from anabranch.client.producer.partition_queue import PartitionQueue
from anabranch.client.producer.producer_batch import ProducerBatch
from anabranch.protocol.types import NO_SEQUENCE


class Outcome(enum.Enum):
    """What the producer does with the answer to a batch (Kafka's ``Sender.completeBatch``)."""

    COMPLETE = "complete"
    RETRY = "retry"
    SPLIT = "split"
    RENUMBER = "renumber"
    """The broker has lost or never had this producer's state: retry under a new epoch."""
    REPLACE = "replace"
    """The broker has another layout of the topic than the batch was placed by."""
    FAIL = "fail"


def decide(error: ErrorCode, batch: ProducerBatch, queue: PartitionQueue, *, retries: int) -> Outcome:
    """The ``Outcome`` for ``error`` in the answer to ``batch``; ``retries`` is the producer's setting."""
    if error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        return Outcome.COMPLETE
    if error is ErrorCode.MESSAGE_TOO_LARGE:
        return Outcome.SPLIT if batch.count > 1 else Outcome.FAIL
    if error is ErrorCode.INVALID_PARTITION_METADATA:
        return Outcome.REPLACE  # not one of ``retries``: what is sent next time is another batch
    if batch.attempts > retries:
        return Outcome.FAIL
    if batch.base_sequence != NO_SEQUENCE:
        if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # Behind a batch whose fate is unknown the gap is expected, and closes when that one is resent.
            unknown = next((b for b in queue.outstanding if not b.refused), batch)
            return Outcome.RENUMBER if unknown is batch else Outcome.RETRY
        if error in (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH):
            return Outcome.RENUMBER
    return Outcome.RETRY if error.retriable else Outcome.FAIL


def may_have_written(error: ErrorCode) -> bool:
    """Whether a broker that answers ``error`` may have the batch all the same, or get it yet.

    UNKNOWN_TOPIC_OR_PARTITION can come after an append only while the partition still exists somewhere: before a
    resize removes one it takes no records any more, and all that is in it is acknowledged.
    """
    return error not in _NOT_WRITTEN


_NOT_WRITTEN = frozenset(
    {
        ErrorCode.INVALID_PARTITION_METADATA,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
