"""Placing records again, batch by batch: which records move, which stay, and which properties they keep."""

from __future__ import annotations

import random

import pytest

from anabranch.client.errors import ErrorCode, KafkaError, PartitionMarkedError
from anabranch.client.net.cluster import TopicInfo
from anabranch.client.producer.partitioner import StickyPartitioner
from anabranch.client.producer.producer_batch import ProducerBatch
from anabranch.client.producer.replacement import Place
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.records import Record, RecordBatch
from tests.unit.client.resize_model import ProducerModel
from tests.unit.client.test_resize_model import exchange, key_in


def resized(world: ProducerModel, undeleted: int) -> None:
    """Resize the topic and let the producer place its records again, without sending any."""
    world.finish_resize(undeleted)
    world.read_metadata()
    while world.topic.next is not None:
        world.sender._place_again(world.topic)


def records_of(world: ProducerModel) -> dict[int, list[Record]]:
    """Return the waiting records by partition, in order."""
    return {
        queue.tp.partition: [record for batch in queue.waiting for record in RecordBatch(batch.encode())]
        for queue in world.accumulator.queues_of(world.topic)
        if queue.waiting
    }


def wait_in_the_buffer(place_again: Place | None = None, **config: int) -> ProducerModel:
    """Return a producer that sends nothing by itself for a minute."""
    return ProducerModel(random.Random(1), place_again=place_again, linger_ms=60_000, batch_size=100_000, **config)


def test_records_keep_key_value_headers_and_timestamp() -> None:
    world = wait_in_the_buffer()
    key = key_in(2, 4)
    args = ("t", 0, key, None, [("h", b"1"), ("n", None)], 4321)
    handle = world.accumulator.append_to_new_batch(*args, 0.0)
    resized(world, 4)
    [record] = records_of(world)[2]
    assert (record.key, record.value, record.headers, record.timestamp) == (key, None, [("h", b"1"), ("n", None)], 4321)
    assert (handle.partition, handle.done()) == (2, False)


@pytest.mark.parametrize("counts", [(4,), (3, 7), (4, 2), (7, 3), (5, 2)])
def test_keys_are_placed_by_the_layout_in_order_and_the_memory_is_counted(counts: tuple[int, ...]) -> None:
    world = wait_in_the_buffer()
    for number in range(200):
        world.send(b"%d" % (number % 17))
    for count in counts:
        resized(world, count)
    found = records_of(world)
    for partition, records in found.items():
        numbers: dict[bytes, int] = {}
        for record in records:
            assert record.key is not None
            assert record.value is not None
            assert place(positive_hash(record.key), 2, counts[-1]) == partition
            assert numbers.get(record.key, -1) < int(record.value)
            numbers[record.key] = int(record.value)
    assert sum(map(len, found.values())) == 200
    held = [batch for queue in world.accumulator.queues_of(world.topic) for batch in queue.waiting]
    assert world.accumulator.buffered_bytes == sum(batch.builder.size_bytes for batch in held)
    world.accumulator.flushing = 1
    world.settle()
    world.check()


def test_a_partition_that_loses_no_key_keeps_its_batches() -> None:
    """2 -> 3 takes keys only from partition 0."""
    world = wait_in_the_buffer()
    for partition in (0, 1):
        for _ in range(3):
            world.send(key_in(partition, 2))
    kept = world.accumulator.queue("t", 1).waiting[0]
    resized(world, 3)
    assert list(world.accumulator.queue("t", 1).waiting) == [kept]
    assert kept.layout == (3, 1)


def test_the_sequence_of_a_refused_batch_is_used_again() -> None:
    """A refused batch uses no sequence, so the next batch to its partition gets the sequence."""
    world = ProducerModel(random.Random(1))
    stays, goes = key_in(0, 4), key_in(2, 4)
    world.send(stays)
    exchange(world, 0)
    world.send(goes)
    world.pump()
    world.finish_resize(4)
    world.arrive(0)
    world.answer(0)
    world.read_metadata()
    world.send(stays)
    world.settle()
    world.check()
    sent = [
        (data.index, RecordBatch(bytes(data.records or b"")).base_sequence)
        for request in world.requests
        for topic in request.topic_data
        for data in topic.partition_data
    ]
    assert sent == [(0, 0), (0, 1), (0, 1), (2, 0)] or sent == [(0, 0), (0, 1), (2, 0), (0, 1)]
    assert world.epoch == 0, "no new producer epoch was needed"


def test_a_refusal_behind_a_batch_with_an_unknown_outcome_needs_a_new_epoch() -> None:
    world = ProducerModel(random.Random(1))
    queue = world.accumulator.queue("t", 0)
    world.send(key_in(0, 4))
    world.pump()
    world.arrive(0)
    world.answer(0)
    for _ in range(2):
        world.send(key_in(0, 4))
        queue.waiting[-1].full = True
    world.pump()
    lost, refused = queue.outstanding
    lost.lost = True
    queue.requeue(lost)
    world.accumulator.refuse(refused, 0.0, lambda attempt: 0.0)
    assert queue.bump_needed
    assert queue.candidate() is lost


def test_records_placed_again_keep_the_deadline_of_their_send() -> None:
    world = wait_in_the_buffer(delivery_timeout_ms=120_000)
    early = world.send(key_in(2, 4))
    world.now_s = 50.0
    late = world.send(key_in(3, 4))
    resized(world, 4)
    assert [early._locate()[0].created_ms, late._locate()[0].created_ms] == [0.0, 50_000.0]
    assert world.accumulator.oldest_deadline_ms() == 120_000


def test_records_sent_long_after_each_other_are_placed_in_separate_batches() -> None:
    world = wait_in_the_buffer()
    for now_s in (0.0, 0.5, 30.0):
        world.now_s = now_s
        world.send(key_in(2, 4))
        world.accumulator.queue("t", 0).waiting[-1].full = True
    resized(world, 4)
    assert [(b.created_ms, b.count) for b in world.accumulator.queue("t", 2).waiting] == [(0.0, 2), (30_000.0, 1)]


def test_a_chosen_partition_is_kept_or_the_record_fails() -> None:
    world = wait_in_the_buffer()
    resized(world, 4)
    key = key_in(3, 4)
    stays, fails, moves = world.send(key, partition=0), world.send(key, partition=3), world.send(key)
    resized(world, 2)
    assert (stays.partition, stays.done()) == (0, False)
    assert (moves.partition, moves.done()) == (1, False)
    assert fails.done()
    error = fails._locate()[0].error
    assert isinstance(error, PartitionMarkedError)
    assert "2 partitions" in str(error)


def test_records_without_a_key_stay_unless_their_partition_is_marked() -> None:
    world = wait_in_the_buffer()
    resized(world, 4)
    for partition in (1, 3):
        world.accumulator.append_to_new_batch("t", partition, None, b"0", (), 0, 0.0)
    resized(world, 2)
    found = records_of(world)
    assert len(found[1]) >= 1
    assert sum(map(len, found.values())) == 2
    assert max(found) < 2


def test_a_partitioner_that_raises_fails_only_its_record() -> None:
    def refuse_odd(info: object, key: bytes | None) -> int:
        if key == b"bad":
            raise LookupError("no such customer")
        return 2 if key == b"marked" else 0

    world = wait_in_the_buffer(place_again=refuse_odd)
    resized(world, 4)
    handles = [world.send(key) for key in (b"bad", b"good", b"marked")]
    resized(world, 2)
    batches: list[ProducerBatch] = [handle._locate()[0] for handle in handles]
    bad, good, marked = (batch.error for batch in batches)
    assert isinstance(bad, KafkaError)
    assert isinstance(bad.__cause__, LookupError)
    assert good is None
    assert isinstance(marked, PartitionMarkedError)


def test_the_pauses_for_newer_metadata_grow_from_5_to_100_ms() -> None:
    """After error 25310 without newer metadata, refused batches of a topic are repeated after growing pauses."""
    world = ProducerModel(random.Random(1))
    queue = world.accumulator.queue("t", 0)
    world.send(key_in(0, 4))
    world.pump()
    [batch] = queue.outstanding
    pauses: list[float] = []
    for _ in range(7):
        world.accumulator.refuse(batch, world.topic.retry_at_ms, lambda attempt: min(5.0 * 2 ** (attempt - 1), 100.0))
        pauses.append(batch.retry_at_ms)
        world.accumulator.take(queue)
    assert [later - earlier for earlier, later in zip([0.0, *pauses], pauses, strict=False)] == [
        5.0,
        10.0,
        20.0,
        40.0,
        80.0,
        100.0,
        100.0,
    ]


# ---------------------------------------------------------------- in steps


def begun(records: int) -> ProducerModel:
    """Begin a resize of a topic with waiting records; the first step is done, and more steps follow."""
    world = wait_in_the_buffer()
    for number in range(records):
        world.send(b"%d" % (number % 17))
    world.finish_resize(4)
    world.read_metadata()
    world.sender._place_again(world.topic)
    assert world.topic.replacement is not None
    return world


def finish(world: ProducerModel) -> int:
    """Let the sender finish the placement by itself, and return the number of its rounds."""
    rounds = 0
    while world.topic.replacement is not None:
        wait_ms = world.sender._send_ready(world.now_s * 1000)
        while world._started:  # requests a producer id
            world._resume(world._started.pop(0), None)
        is_over = world.topic.replacement is None
        assert is_over or wait_ms <= 0.1, "the sender continues as soon as other tasks had their turn"
        rounds += 1
    return rounds


def test_a_step_places_a_bounded_number_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = 0
    for_key = StickyPartitioner.for_key

    def counted(self: StickyPartitioner, info: TopicInfo, key: bytes) -> int:
        nonlocal placed
        placed += 1
        return for_key(self, info, key)

    monkeypatch.setattr(StickyPartitioner, "for_key", counted)
    world = begun(700)
    rounds = 0
    while world.topic.replacement is not None:
        before = placed
        world.sender._place_again(world.topic)
        rounds += 1
        assert placed - before <= 7
    assert placed == 2 * 700, "each record is placed when it is sent, and once again"
    assert rounds >= 100


def test_records_sent_between_steps_follow_those_sent_before() -> None:
    world = begun(200)
    for number in range(200):
        if world.topic.replacement is not None:
            world.send(b"%d" % (number % 17))
            world.sender._place_again(world.topic)
    assert len(world.handles) > 250, "some records came while steps were left"
    finish(world)
    assert sum(map(len, records_of(world).values())) == len(world.handles)
    for partition, records in records_of(world).items():
        numbers: dict[bytes, int] = {}
        for record in records:
            assert record.key is not None and record.value is not None
            assert place(positive_hash(record.key), 2, 4) == partition
            assert numbers.get(record.key, -1) < int(record.value)
            numbers[record.key] = int(record.value)
    held = [batch for queue in world.accumulator.queues_of(world.topic) for batch in queue.waiting]
    assert world.accumulator.buffered_bytes == sum(batch.builder.size_bytes for batch in held)
    world.accumulator.flushing = 1
    world.settle()
    world.check()


def test_no_request_for_the_topic_is_sent_between_steps() -> None:
    world = begun(100)
    world.accumulator.flushing = 1
    while world.topic.replacement is not None:
        world.send(b"5")
        world.pump()
        assert world.topic.replacement is None or not world.requests
    world.settle()
    world.check()


def test_a_flush_between_steps_waits_for_batches_that_are_taken_apart() -> None:
    world = begun(100)
    waiting_for = world.accumulator.unresolved()
    finish(world)
    sources = [batch for batch in waiting_for if batch.moved is not None]
    assert sources, "a flush continues with the batches that have the records now"
    known = {id(batch) for batch in waiting_for} | {id(part) for batch in sources for part, _ in batch.moved or ()}
    assert {id(batch) for queue in world.accumulator.queues_of(world.topic) for batch in queue.waiting} <= known


def test_an_abort_between_steps_fails_every_record() -> None:
    world = begun(100)
    world.accumulator.abort(KafkaError(ErrorCode.NETWORK_EXCEPTION, "closed"))
    assert all(handle.failed for _, _, handle in world.handles)
    assert world.accumulator.buffered_bytes == 0
    world.pump()
    assert not world.requests


def test_a_newer_layout_between_steps_is_applied_next() -> None:
    world = begun(200)
    world.finish_resize(7)
    world.read_metadata()
    finish(world)
    assert world.topic.layout.undeleted_partition_count in (4, 7)
    while world.topic.next is not None:
        world.sender._place_again(world.topic)
    assert world.topic.layout.undeleted_partition_count == 7
    for partition, records in records_of(world).items():
        assert all(place(positive_hash(record.key or b""), 2, 7) == partition for record in records)
    world.accumulator.flushing = 1
    world.settle()
    world.check()


def test_newer_metadata_of_the_same_layout_is_used_at_the_end() -> None:
    world = begun(100)
    world.publish()
    world.read_metadata()
    newest = world.topic.next
    finish(world)
    assert world.topic.next is None
    assert world.topic.info is newest
