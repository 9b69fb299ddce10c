"""Recognises a batch that its producer sends again: with the same numbers, or in a higher epoch. Pure. See ADR 50.

A batch has the same numbers if its epoch and its sequences are those of a kept batch, or are before all kept batches.

A higher epoch (librdkafka, franz-go, Java): after some errors a producer raises its own epoch and counts its sequences
from 0 again. Its batches whose outcome it does not know are sent again with new numbers and the same records. The *run*
is the part of the kept batches that may be sent again: the last ones, from the first one whose success the producer may
not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from anabranch.protocol.batch_layout import COUNT_AT, LOG_APPEND_TIME
from anabranch.protocol.records import RecordBatch, increment_sequence
from anabranch.protocol.sentinels import NO_OFFSET, NO_SEQUENCE, NO_TIMESTAMP

HALF_OF_ALL_SEQUENCES = 2**30
MAX_IN_FLIGHT = 5
"""The most requests that an idempotent producer has in flight on a connection: a broker keeps so many batches."""


class BatchMetadata(NamedTuple):
    """A batch that a producer wrote. ``first_offset`` is -1 if ``last_offset`` is only an upper bound."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        return increment_sequence(self.last_sequence, -self.offset_delta)


class ProducerConnection:
    """A connection with a producer; ``requests`` is the number of Produce requests that have arrived on it."""

    __slots__ = ("renumbers", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.renumbers = True
        """Whether the producer may send a batch of unknown outcome under other numbers. Our own client never does."""


class Answer(NamedTuple):
    """A success that this broker answered: to the request number ``request`` of a connection."""

    last_offset: int
    connection: ProducerConnection
    request: int

    def has_arrived(self, connection: ProducerConnection | None) -> bool:
        """Whether a producer that now uses ``connection`` has certainly got the answer.

        Otherwise the answer was sent on another connection, and may have been lost with it.
        """
        return self.connection is connection or self.connection.requests - self.request >= MAX_IN_FLIGHT


class KnownProducer(Protocol):
    """The state of a producer that this module reads."""

    epoch: int
    first_sequence: int

    @property
    def batches(self) -> Sequence[BatchMetadata]: ...

    @property
    def earlier(self) -> Sequence[BatchMetadata]: ...

    @property
    def answers(self) -> Iterable[Answer] | None: ...

    @property
    def next_sequence(self) -> int: ...

    @property
    def last_offset(self) -> int: ...


def find_duplicate(producer: KnownProducer, batch: RecordBatch) -> BatchMetadata | None:
    """The kept batch with the same epoch and sequences. For an older batch, only an upper bound of its offset."""
    if batch.producer_epoch != producer.epoch:
        return None
    last_sequence, delta = batch.last_sequence, batch.last_offset_delta
    for known in producer.batches:
        if known.last_sequence == last_sequence and known.offset_delta == delta:
            return known
    if producer.batches and _is_behind(producer, batch.base_sequence, last_sequence):
        last_offset = producer.last_offset
        return BatchMetadata(last_sequence, last_offset, last_offset - NO_OFFSET, NO_TIMESTAMP)
    return None


def _is_behind(producer: KnownProducer, first: int, last: int) -> bool:
    """Whether these sequences were written before the kept batches; False if they wrap, or if that is not known."""
    kept = producer.batches[0].first_sequence
    return NO_SEQUENCE < producer.first_sequence <= first <= last < kept and kept - first < HALF_OF_ALL_SEQUENCES


def may_repeat(producer: KnownProducer, sequence: int) -> bool:
    """Whether a batch of the known epoch that begins with ``sequence`` may repeat one of an earlier epoch."""
    earlier, batches = producer.earlier, producer.batches
    if not earlier:
        return False
    return not batches or earlier[-1].last_offset > batches[-1].last_offset or sequence != producer.next_sequence


def repetitions(
    producer: KnownProducer, batch: RecordBatch, connection: ProducerConnection | None, led_from: int
) -> Iterator[BatchMetadata]:
    """The batches that ``batch`` may repeat under other numbers, the most probable first. The log's bytes decide.

    ``led_from``: the log end when this broker began to lead. An earlier leader may have taken the epoch from its first
    sequence on, so a later sequence may follow batches from before.
    """
    first = batch.base_sequence
    if batch.producer_epoch > producer.epoch:
        run = run_of(producer, connection)
        if first == 0:
            found: Sequence[BatchMetadata] = run
        else:
            found = [run[index] for index in range(1, len(run)) if _ends_with(run[:index], first, led_from)]
    elif first == producer.next_sequence:
        found = unrepeated(producer)[:1]
    else:
        found = [*_before_known(producer, first), *after_known(producer, first, led_from)]
    for known in found:
        if _may_equal(batch, known):
            yield known


def _before_known(producer: KnownProducer, sequence: int) -> Iterator[BatchMetadata]:
    """The batch with this sequence, if another leader took the sequences before a batch of the known epoch."""
    previous = NO_OFFSET
    for numbered in producer.batches:
        gap = [known for known in producer.earlier if previous < known.last_offset < numbered.last_offset]
        for index in range(len(gap)):
            if _total(gap[index:]) == numbered.first_sequence - sequence:
                yield gap[index]
        previous = numbered.last_offset


def after_known(producer: KnownProducer, sequence: int, led_from: int) -> Iterator[BatchMetadata]:
    """The batch with this sequence, if an earlier leader took the sequences after those that are known."""
    rest = unrepeated(producer)
    for index in range(1, len(rest)):
        if _is_earlier(rest[:index], led_from) and _total(rest[:index]) == sequence - producer.next_sequence:
            yield rest[index]


def follows_run(producer: KnownProducer, batch: RecordBatch, led_from: int) -> bool:
    """Whether a new batch may follow a run that an earlier leader took into the batch's epoch, up to its end."""
    if batch.producer_epoch > producer.epoch:
        return _ends_with(run_of(producer, None), batch.base_sequence, led_from)
    rest = unrepeated(producer)
    return _is_earlier(rest, led_from) and _total(rest) == batch.base_sequence - producer.next_sequence


def may_have_gone_on(producer: KnownProducer, led_from: int) -> bool:
    """Whether an earlier leader may have taken more sequences of the known epoch than this one knows."""
    return _is_earlier(unrepeated(producer)[:1], led_from)


def unrepeated(producer: KnownProducer) -> Sequence[BatchMetadata]:
    """The batches of earlier epochs that the producer is to repeat next, because it has repeated one before them."""
    if not producer.earlier or not producer.batches:
        return ()
    reached = producer.batches[-1].last_offset
    return [known for known in producer.earlier if known.last_offset > reached]


def run_of(producer: KnownProducer, connection: ProducerConnection | None) -> list[BatchMetadata]:
    """The last batches whose success the producer may not know. It knows a batch's success if it knows a later one."""
    arrived = [answer.last_offset for answer in producer.answers or () if answer.has_arrived(connection)]
    known_until = max(arrived, default=-1)
    written = {known.last_offset: known for known in (*producer.earlier, *producer.batches)}
    return [written[offset] for offset in sorted(written)[-MAX_IN_FLIGHT:] if offset > known_until]


def is_same_batch(batch: RecordBatch, stored: RecordBatch) -> bool:
    """Whether two batches of one producer have the same records and timestamps, whatever their epochs and sequences."""
    return (
        batch.attributes == stored.attributes
        and batch.producer_id == stored.producer_id
        and batch.length == stored.length
        and batch.last_offset_delta == stored.last_offset_delta
        and batch.base_timestamp == stored.base_timestamp
        and (batch.timestamp_type == LOG_APPEND_TIME or batch.max_timestamp == stored.max_timestamp)
        and bytes(batch.buffer[COUNT_AT:]) == bytes(stored.buffer[COUNT_AT:])
    )


def _may_equal(batch: RecordBatch, known: BatchMetadata) -> bool:
    same_time = batch.timestamp_type == LOG_APPEND_TIME or batch.max_timestamp == known.timestamp
    return same_time and batch.last_offset_delta == known.offset_delta


def _ends_with(run: Sequence[BatchMetadata], count: int, led_from: int) -> bool:
    """Whether some last batches of ``run``, which were written before this broker led, have ``count`` records."""
    return _is_earlier(run, led_from) and any(_total(run[index:]) == count for index in range(len(run)))


def _is_earlier(run: Sequence[BatchMetadata], led_from: int) -> bool:
    return bool(run) and run[-1].last_offset < led_from


def _total(run: Sequence[BatchMetadata]) -> int:
    return sum(known.offset_delta + 1 for known in run)
