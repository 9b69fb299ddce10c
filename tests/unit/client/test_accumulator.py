"""Batches, sequences and outcomes of a producer, decided without a broker."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import trio
import trio.testing

from anabranch.client.cluster import PartitionInfo, TopicInfo
from anabranch.client.config import ProducerConfig
from anabranch.client.errors import ErrorCode, KafkaTimeoutError
from anabranch.client.producer.accumulator import Accumulator
from anabranch.client.producer.outcome import BatchOutcome, decide
from anabranch.client.producer.partition_queue import PartitionQueue
from anabranch.client.producer.partitioner import StickyPartitioner
from anabranch.client.producer.producer_batch import BatchResult, ProducerBatch
from anabranch.client.producer.sent_record import Judge
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import ZERO_UUID, TopicPartition

T0 = TopicPartition("t", 0)


def accumulator(*, sticky: StickyPartitioner | None = None, **changes: int) -> Accumulator:
    settings = {"batch_size": 120, "linger_ms": 10, "buffer_memory": 10_000, "delivery_timeout_ms": 1000} | changes
    acc = Accumulator(**settings, compression=CompressionType.NONE, max_in_flight=5, idempotent=True, sticky=sticky)
    acc.placement(TopicInfo("t", ZERO_UUID, {0: PartitionInfo(0, 1, 0)}))
    return acc


def send(acc: Accumulator, value: bytes, now_ms: float = 0) -> None:
    if acc.append("t", 0, None, value, (), 0) is None:
        acc.append_to_new_batch("t", 0, None, value, (), 0, now_ms)


def queue_with(acc: Accumulator, batches: int) -> PartitionQueue:
    """Return a partition's queue with ``batches`` full batches of two records, ready to be sent by producer id 7."""
    for number in range(2 * batches):
        send(acc, b"%020d" % number)
    queue = acc.queues[T0]
    assert len(queue.waiting) == batches
    queue.adopt(7, 0)
    return queue


def take(acc: Accumulator, queue: PartitionQueue, count: int) -> list[ProducerBatch]:
    return [acc.take(queue) for _ in range(count)]


def test_a_batch_is_ready_after_linger_ms_when_full_or_on_a_flush() -> None:
    acc = accumulator()
    send(acc, b"x")
    queue = acc.queues[T0]
    assert acc.sendable(queue, 4, memory_short=False) == (False, 6)
    assert acc.sendable(queue, 10, memory_short=False)[0]
    assert acc.sendable(queue, 4, memory_short=True)[0]
    acc.flushing = 1
    assert acc.sendable(queue, 4, memory_short=False)[0]
    acc.flushing = 0
    send(acc, b"y" * 60)
    assert len(queue.waiting) == 2
    assert acc.sendable(queue, 4, memory_short=False)[0]


def test_a_handle_is_awaited_at_any_time_and_calls_back() -> None:
    called: list[tuple[object, int]] = []

    async def use() -> None:
        acc = accumulator()
        handle = acc.append_to_new_batch("t", 0, None, b"v", (), 3, 0)
        handle.call_on_delivery(lambda error, place: called.append((error, place.offset)))
        with trio.move_on_after(0) as waited:
            await handle
        assert waited.cancelled_caught and not handle.done()
        queue = acc.queues[T0]
        queue.adopt(7, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handle.wait)
            await trio.testing.wait_all_tasks_blocked()
            acc.complete(acc.take(queue), BatchResult(5))
        assert ((await handle).offset, handle.result().partition) == (5, 0)
        acc.callbacks.run()

    trio.run(use)
    assert called == [(None, 5)]


def test_the_arguments_of_a_sent_record_are_judged_and_serialized() -> None:
    config = ProducerConfig.parse({"value_serializer": str.encode, "batch_size": 100})
    judge = Judge(config, lambda: 77)
    assert judge.judged("t", "v", None, None, {"h": None}, None) == ("t", None, b"v", None, [("h", None)], 77, 77, 1)
    assert judge.judged("t", "", bytearray(b"k"), 2**31 - 1, None, 5)[1:6] == (b"k", b"", 2**31 - 1, (), 5)
    for partition, timestamp in ((2**31, None), (-1, None), (1.5, None), (None, 2**63), (None, True)):
        with pytest.raises((TypeError, ValueError), match=r"partition|timestamp_ms"):
            judge.judged("t", "v", None, partition, None, timestamp)


def test_only_a_usual_record_goes_to_an_open_batch_at_once() -> None:
    """The topic and the partition take records, a batch of the partition is open, and there is room for the record."""
    acc = accumulator(buffer_memory=1000, batch_size=900, sticky=StickyPartitioner(random.Random(1)))
    placement = acc.topics["t"]
    placement.watches_keys = False
    acc.gives_way_at_ms = 50

    def accepts(key: bytes | None = None, partition: int | None = None, topic: str = "t", size: int = 10) -> bool:
        before, value = acc.buffered_bytes, bytes(size)
        taken = acc.accept(topic, key, value, partition, (), 0, 10, size) is not None
        assert (acc.buffered_bytes > before) is taken
        return taken

    assert not accepts(), "no batch is open"
    send(acc, b"x")
    assert accepts() and accepts(b"k") and accepts(None, 0)
    assert acc.queues[T0].waiting[0].pinned == {3}
    assert not accepts(None, 1) and not accepts(topic="u")
    placement.watches_keys = True
    assert not accepts(b"k") and accepts()
    marked = PartitionInfo(1, 1, 0)
    placement.info = replace(
        placement.info,
        partitions={0: PartitionInfo(0, 1, 0), 1: marked},
        initial_partition_count=1,
        undeleted_partition_count=1,
    )
    acc.append_to_new_batch("t", 1, None, b"x", (), 0, 0)
    assert not accepts(None, 1), "the partition is marked for deletion"
    assert not accepts(size=850), "no room in the buffer"
    full = acc.queues[T0].waiting[0]
    acc.buffer_memory = 10_000
    assert not accepts(size=850) and full.full, "no room in the batch"
    send(acc, b"x")
    placement.watches_keys = False
    placement.info = TopicInfo("t", ZERO_UUID, {})
    assert not accepts() and not accepts(b"k") and not accepts(None, 0), "the topic was removed"


def test_a_loop_of_sends_lets_the_sender_run_after_a_time() -> None:
    acc = accumulator(sticky=StickyPartitioner(random.Random(1)))
    send(acc, b"x")
    acc.gives_way_at_ms = 50
    for now_ms, gives_way in ((49, False), (50, True)):
        assert acc.accept("t", None, b"y", None, (), 0, now_ms, 1) is not None
        assert acc.gives_way is gives_way
    assert acc.gives_way_at_ms == 52


def test_sequences_are_consecutive_and_a_retry_keeps_its_bytes() -> None:
    acc = accumulator()
    queue = queue_with(acc, 3)
    first, second = take(acc, queue, 2)
    assert (first.base_sequence, second.base_sequence) == (0, 2)
    before = first.encode()
    acc.retry(first, 50)
    assert acc.sendable(queue, 0, memory_short=False) == (False, 50)
    assert acc.sendable(queue, 50, memory_short=False)[0]
    assert acc.take(queue) is first
    assert first.encode() is before


def test_at_most_five_batches_are_outstanding() -> None:
    acc = accumulator()
    queue = queue_with(acc, 7)
    batches = take(acc, queue, 5)
    assert not acc.sendable(queue, 1000, memory_short=False)[0]
    acc.complete(batches[0], BatchResult(0))
    assert acc.sendable(queue, 0, memory_short=False)[0]


def test_a_batch_answered_before_an_older_one_counts_until_all_are_answered() -> None:
    """A leader recognizes a duplicate only among a producer's last five batches, so later batches wait.

    The older batch's leader did not respond, and the next leader has acknowledged the newer batch.
    """
    acc = accumulator()
    queue = queue_with(acc, 7)
    queue.is_established = True
    oldest, *newer = take(acc, queue, 5)
    acc.complete(newer[0], BatchResult(3))
    assert not acc.sendable(queue, 10, memory_short=False)[0]
    for batch in (*newer[1:], oldest):
        acc.complete(batch, BatchResult(3))
    take(acc, queue, 1)
    assert acc.sendable(queue, 10, memory_short=False)[0], "the next five batches start a new count"


def test_an_early_answered_batch_stops_counting_when_the_queue_is_placed_again() -> None:
    """The new layout starts with one batch at a time.

    If the answered batch still counted, no batch could be sent.
    """
    acc = accumulator()
    queue = queue_with(acc, 2)
    queue.is_established = True
    oldest, newer = take(acc, queue, 2)
    acc.complete(newer, BatchResult(3))
    oldest.is_unwritten = True
    queue.drain()
    send(acc, b"x")
    assert acc.sendable(queue, 10, memory_short=False)[0]


def test_a_new_epoch_waits_until_the_outcome_of_every_batch_is_known() -> None:
    """The first batch failed for good. The second may have been written, so the second must keep its sequence."""
    acc = accumulator()
    queue = queue_with(acc, 3)
    first, second = take(acc, queue, 2)
    acc.fail(first, KafkaTimeoutError("too late"))
    assert queue.bump_needed
    assert not queue.may_adopt
    acc.retry(second, 0)
    assert not queue.may_adopt
    assert acc.take(queue) is second, "the batch is repeated under its old sequence"
    assert decide(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, second, queue, retries=9) is BatchOutcome.RENUMBER
    acc.renumber(second, 0)
    assert queue.may_adopt
    assert queue.candidate() is None, "no batch is sent before the new epoch"
    queue.adopt(7, 1)
    assert acc.take(queue) is second
    header = RecordBatch(second.encode())
    assert (header.producer_epoch, header.base_sequence) == (1, 0)
    assert acc.take(queue).base_sequence == 2


@pytest.mark.parametrize(
    ("error", "case", "outcome"),
    [
        (ErrorCode.NONE, "", BatchOutcome.COMPLETE),
        (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "", BatchOutcome.COMPLETE),
        (ErrorCode.MESSAGE_TOO_LARGE, "", BatchOutcome.SPLIT),
        (ErrorCode.MESSAGE_TOO_LARGE, "an answer was lost", BatchOutcome.GIVE_UP),
        (ErrorCode.UNKNOWN_PRODUCER_ID, "", BatchOutcome.RENUMBER),
        (ErrorCode.INVALID_PRODUCER_EPOCH, "", BatchOutcome.RENUMBER),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "behind an unanswered batch", BatchOutcome.RETRY),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, "", BatchOutcome.RETRY),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, "no retries left", BatchOutcome.FAIL),
        (ErrorCode.NETWORK_EXCEPTION, "", BatchOutcome.RETRY),
        (ErrorCode.POLICY_VIOLATION, "", BatchOutcome.FAIL),
        (ErrorCode.INVALID_RECORD, "", BatchOutcome.FAIL),
    ],
)
def test_the_error_code_decides_the_outcome_of_a_batch(error: ErrorCode, case: str, outcome: BatchOutcome) -> None:
    acc = accumulator()
    queue = queue_with(acc, 2)
    batch = take(acc, queue, 2 if case == "behind an unanswered batch" else 1)[-1]
    batch.lost = case == "an answer was lost"
    assert decide(error, batch, queue, retries=0 if case == "no retries left" else 9) is outcome


def test_waiting_and_sent_batches_expire_at_the_delivery_timeout() -> None:
    acc = accumulator()
    queue = queue_with(acc, 2)
    (sent,) = take(acc, queue, 1)
    waiting = queue.waiting[0]
    assert acc.expire(999) == []
    assert acc.expire(1000) == [sent, waiting]
    assert isinstance(sent.error, KafkaTimeoutError)
    assert queue.outstanding == [sent], "its response may still come"
    assert acc.oldest_deadline_ms() == float("inf"), "a passed deadline would make the sender spin"
    assert queue.bump_needed
    acc.settle_expired(sent)
    assert queue.may_adopt
    assert acc.buffered_bytes == 0


def test_buffer_memory_is_freed_when_a_batch_completes() -> None:
    acc = accumulator(buffer_memory=100)
    assert acc.has_room(1000), "one record larger than the buffer is sent alone"
    send(acc, b"x" * 50)
    assert not acc.has_room(50)
    queue = acc.queues[T0]
    acc.complete(acc.take(queue), BatchResult(0))
    assert acc.buffered_bytes == 0


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_half_that_is_split_again_stays_before_the_other_half(idempotent: bool) -> None:
    """The other half was never sent, so it does not count as a batch of unknown outcome, which would be sent first."""
    acc = accumulator(batch_size=10_000)
    acc.idempotent = idempotent
    acc.append_to_new_batch("t", 0, None, b"0", (), 0, 0)
    for number in (1, 2, 3):
        acc.append("t", 0, None, b"%d" % number, (), 0)
    queue = acc.queues[T0]
    queue.adopt(7, 0)
    for epoch in (1, 2):
        acc.split(acc.take(queue), 0)
        if idempotent:
            assert queue.candidate() is None, "no batch is sent before the new epoch"
            queue.adopt(7, epoch)
    values: list[bytes | None] = []
    for _ in range(3):
        batch = acc.take(queue)
        assert queue.candidate() is None, "the next half waits, because this one may be split again"
        values += [record.value for record in RecordBatch(batch.encode())]
        acc.complete(batch, BatchResult(0))
    assert values == [b"0", b"1", b"2", b"3"]


def test_a_half_remembers_the_incarnation_to_which_it_is_sent() -> None:
    acc = accumulator()
    queue = queue_with(acc, 1)
    queue.topic.info = replace(queue.topic.info, partitions={0: PartitionInfo(0, 1, 0, incarnation=5)})
    acc.split(acc.take(queue), 0)
    queue.adopt(7, 1)
    half = acc.take(queue)
    acc.retry(half, 0)
    assert half.incarnation == 5
