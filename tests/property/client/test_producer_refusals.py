"""The producer under refusals, lost answers and broken connections, in every order that hypothesis finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.client.errors import ErrorCode
from anabranch.protocol.records import RecordBatch
from tests.unit.client.resize_model import INITIAL, ModelPartition, ProducerModel
from tests.unit.client.test_resize_model import wander

BATCH_SIZE = 5_000
SIZES = (1, 200, 1_400)
"""Bytes of a value: a batch of ``BATCH_SIZE`` holds from three such values to dozens."""
MAX_BYTES = (400, 1_600, 10_000)
"""Size limits of the partitions: one refuses some single records, one refuses two large values, one refuses nothing."""

ABOUT_SEQUENCES = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
BEFORE_OR_AFTER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT)
"""Errors that a leader answers before it appends the batch, or afterwards."""
FAULTS = (
    *((code, written) for code in BEFORE_OR_AFTER for written in (False, True)),
    *((code, False) for code in ABOUT_SEQUENCES),
    (ErrorCode.MESSAGE_TOO_LARGE, False),
    (ErrorCode.NOT_ENOUGH_REPLICAS, False),
    (ErrorCode.INVALID_PARTITION_METADATA, False),
)
"""Errors, each with whether the batch is written all the same."""


class RefusingPartition(ModelPartition):
    """A partition whose leader refuses batches by its size limit, and by the ``fault`` of a test.

    As in Kafka, the size and the ISR are checked before a repeated batch is recognized, and the sequence afterwards.
    """

    def __init__(self, part: ModelPartition, max_bytes: int, may_come_late: Callable[[RecordBatch], bool]) -> None:
        super().__init__(part.index, part.incarnation, part.layout, max_bytes)
        self.may_come_late = may_come_late
        self.fault: tuple[ErrorCode, bool] | None = None
        """The fault of the next batch."""

    def produce(self, batch: RecordBatch, layout: tuple[int, int], *, check_layout_first: bool) -> ErrorCode:
        fault, written = self.fault or (ErrorCode.NONE, True)
        self.fault = None
        if fault in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NOT_ENOUGH_REPLICAS):
            return fault
        if fault in BEFORE_OR_AFTER:
            if written:
                super().produce(batch, layout, check_layout_first=check_layout_first)
            return fault
        if fault and not self._is_repeated(batch) and not (fault in ABOUT_SEQUENCES and self._knows_sequence(batch)):
            return fault
        return super().produce(batch, layout, check_layout_first=check_layout_first)

    def _is_repeated(self, batch: RecordBatch) -> bool:
        known = self.remembered.get(batch.producer_id, ())
        return (batch.producer_epoch, batch.base_sequence, batch.count) in known

    def _knows_sequence(self, batch: RecordBatch) -> bool:
        """Whether the leader cannot refuse the sequence: there is none, or a late copy of the batch would be taken."""
        return batch.producer_id < 0 or self.may_come_late(batch)


class RefusedProducer(ProducerModel):
    """One producer, and partitions that refuse its batches."""

    def __init__(self, *, max_bytes: int, enable_idempotence: bool, **config: Any) -> None:
        super().__init__(random.Random(0), batch_size=BATCH_SIZE, enable_idempotence=enable_idempotence, **config)
        self.is_idempotent = enable_idempotence
        self.refusing = {
            p: RefusingPartition(part, max_bytes, self.may_come_late) for p, part in self.partitions.items()
        }
        self.partitions.update(self.refusing)

    def may_come_late(self, batch: RecordBatch) -> bool:
        """Whether a copy of the batch is still on its way from a broken connection."""
        copies = [bytes(data.records or b"") for ghost in self.ghosts for data in ghost.topic_data[0].partition_data]
        return bytes(batch.buffer) in copies

    def settle(self) -> None:
        for part in self.refusing.values():
            part.fault = None
        super().settle()

    def check(self) -> None:
        """Check the order of the sends in each partition, and that each record has one outcome, which is true."""
        for part in self.partitions.values():
            numbers = [number for _, number, _ in part.log]
            first, last = list(dict.fromkeys(numbers)), list(dict.fromkeys(reversed(numbers)))[::-1]
            assert first == sorted(first), f"partition {part.index} is out of order: {numbers}"
            assert last == sorted(last), f"partition {part.index} repeats records out of order: {numbers}"
            assert numbers == first or not self.is_idempotent, f"partition {part.index} has records twice: {numbers}"
        for _, number, handle in self.handles:
            batch = self.batch_of(handle)
            assert batch.resolved, f"{number} has no outcome"
            homes = [p for p, part in self.partitions.items() if any(number == n for _, n, _ in part.log)]
            assert batch.error is not None or homes == [handle.partition], f"{number} is acknowledged and not written"
        assert self.accumulator.buffered_bytes == 0


at_partition = st.sampled_from([*[0] * 3, *range(INITIAL)])
"""Mostly the same partition, so that many faults meet in its queue. Partition p is led by node p."""
faults = st.one_of(st.none(), st.sampled_from(FAULTS))
STEPS = st.one_of(
    st.tuples(st.just("send"), at_partition, st.lists(st.sampled_from(SIZES), min_size=1, max_size=6)),
    st.tuples(st.just("arrive"), at_partition, faults),
    st.tuples(st.just("answer"), at_partition),
    st.tuples(st.just("exchange"), at_partition, faults),
    st.tuples(st.just("cut"), at_partition, st.booleans()),
    st.tuples(st.just("late copy")),
    st.tuples(st.just("pass"), st.sampled_from([0.01, 0.5, 31.0])),
)


def take_step(model: RefusedProducer, step: tuple[Any, ...]) -> None:
    """Take one step, after which the sender sends all that it may send."""
    match step:
        case ("send", partition, sizes):
            for size in sizes:
                model.send(b"k", partition=partition, size=size)
        case ("arrive", partition, fault):
            model.refusing[partition].fault = fault
            model.arrive(partition)
        case ("answer", partition):
            model.answer(partition)
        case ("exchange", partition, fault):
            model.refusing[partition].fault = fault
            model.arrive(partition)
            model.answer(partition)
            model.now_s += 0.5  # longer than the first pauses between the attempts
        case ("cut", partition, copies_come_late):
            # Without idempotence, a copy that comes late is written again behind newer records.
            model.cut(partition, ghosts=copies_come_late and model.is_idempotent)
        case ("late copy",):
            model.haunt()
        case ("pass", seconds):
            model.now_s += seconds
    model.pump()


TOO_LARGE_TWICE = [("send", 0, [1_400, 1_400, 1, 1])]
"""The batch is refused, and the first half of it is refused again."""
TOO_LARGE_AFTER_A_LOST_ANSWER = [
    ("send", 0, [1, 1]),
    ("exchange", 0, (ErrorCode.REQUEST_TIMED_OUT, True)),
    ("exchange", 0, (ErrorCode.MESSAGE_TOO_LARGE, False)),
]


@settings(max_examples=600, derandomize=True)
@example(TOO_LARGE_TWICE, 1, True, True, 1_600)
@example(TOO_LARGE_AFTER_A_LOST_ANSWER, 5, True, False, 10_000)
@given(
    steps=st.lists(STEPS, max_size=80),
    in_flight=st.integers(1, 5),
    is_idempotent=st.booleans(),
    new_ids=st.booleans(),
    max_bytes=st.sampled_from(MAX_BYTES),
)
def test_refusals_in_any_order_keep_the_order_of_sends_and_write_no_record_twice(
    steps: list[tuple[Any, ...]], in_flight: int, is_idempotent: bool, new_ids: bool, max_bytes: int
) -> None:
    model = RefusedProducer(
        max_bytes=max_bytes,
        enable_idempotence=is_idempotent,
        new_ids=new_ids,
        max_in_flight_requests_per_connection=in_flight if is_idempotent else 1,
    )
    for step in steps:
        take_step(model, step)
    model.settle()
    model.check()


@settings(max_examples=200, derandomize=True)
@given(seed=st.integers(0, 2**32), steps=st.integers(20, 250))
def test_split_batches_keep_the_order_of_keys_across_resizes(seed: int, steps: int) -> None:
    """Many batches are too large for the topic, and no single record is."""
    rng = random.Random(seed)
    model = ProducerModel(rng, max_bytes=220, batch_size=600, linger_ms=20)
    wander(model, rng, steps, sizes=(1, 40, 100))
    model.check()
    model.check_routing()
