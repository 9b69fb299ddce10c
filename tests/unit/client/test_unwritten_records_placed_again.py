"""Placing records again, batch by batch: which records change their partition, and which properties records keep."""

from __future__ import annotations

import random

import pytest

from anabranch.client.cluster import TopicInfo
from anabranch.client.errors import ErrorCode, KafkaError, PartitionMarkedError
from anabranch.client.producer.partitioner import Partitioner, StickyPartitioner
from anabranch.client.producer.producer_batch import ProducerBatch
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.records import Record, RecordBatch
from tests.unit.client.resize_model import ProducerModel
from tests.unit.client.test_resize_model import exchange, key_in


def resized(model: ProducerModel, undeleted: int) -> None:
    """Resize the topic, and let the producer choose its records' partitions again without sending a record."""
    model.finish_resize(undeleted)
    model.read_metadata()
    while model.topic.next is not None:
        model.sender._place_again(model.topic)


def records_of(model: ProducerModel) -> dict[int, list[Record]]:
    """Return the waiting records by partition, in order."""
    return {
        queue.tp.partition: [record for batch in queue.waiting for record in RecordBatch(batch.encode())]
        for queue in model.accumulator.queues_of(model.topic)
        if queue.waiting
    }


def check_placed(model: ProducerModel, undeleted: int) -> None:
    """Check that every record waits, in order, where its key belongs, and is written in the end."""
    found = records_of(model)
    for partition, records in found.items():
        numbers: dict[bytes, int] = {}
        for record in records:
            assert record.key is not None and record.value is not None
            assert place(positive_hash(record.key), 2, undeleted) == partition
            assert numbers.get(record.key, -1) < int(record.value)
            numbers[record.key] = int(record.value)
    assert sum(map(len, found.values())) == len(model.handles)
    held = [batch for queue in model.accumulator.queues_of(model.topic) for batch in queue.waiting]
    assert model.accumulator.buffered_bytes == sum(batch.builder.size_bytes for batch in held)
    model.accumulator.flushing = 1
    model.settle()
    model.check()


def wait_in_the_buffer(place_again: Partitioner | None = None, **config: int) -> ProducerModel:
    """Return a producer that sends nothing by itself for a minute."""
    return ProducerModel(random.Random(1), place_again=place_again, linger_ms=60_000, batch_size=100_000, **config)


def test_records_keep_key_value_headers_and_timestamp() -> None:
    model = wait_in_the_buffer()
    key = key_in(2, 4)
    args = ("t", 0, key, None, [("h", b"1"), ("n", None)], 4321)
    handle = model.accumulator.append_to_new_batch(*args, 0.0)
    resized(model, 4)
    [record] = records_of(model)[2]
    assert (record.key, record.value, record.headers, record.timestamp) == (key, None, [("h", b"1"), ("n", None)], 4321)
    assert (handle.partition, handle.done()) == (2, False)


@pytest.mark.parametrize("counts", [(4,), (3, 7), (4, 2), (7, 3), (5, 2)])
def test_keys_are_placed_by_the_layout_in_order_and_the_memory_is_counted(counts: tuple[int, ...]) -> None:
    model = wait_in_the_buffer()
    for number in range(200):
        model.send(b"%d" % (number % 17))
    for count in counts:
        resized(model, count)
    check_placed(model, counts[-1])


def test_a_partition_that_loses_no_key_keeps_its_batches() -> None:
    """2 -> 3 takes keys only from partition 0."""
    model = wait_in_the_buffer()
    for partition in (0, 1):
        for _ in range(3):
            model.send(key_in(partition, 2))
    kept = model.accumulator.queue("t", 1).waiting[0]
    resized(model, 3)
    assert list(model.accumulator.queue("t", 1).waiting) == [kept]
    assert kept.layout == (3, 1)


def test_the_sequence_of_a_refused_batch_is_used_again() -> None:
    """A refused batch uses no sequence, so the next batch to the same partition gets the sequence."""
    model = ProducerModel(random.Random(1))
    stays, goes = key_in(0, 4), key_in(2, 4)
    model.send(stays)
    exchange(model, 0)
    model.send(goes)
    model.pump()
    model.finish_resize(4)
    model.arrive(0)
    model.answer(0)
    model.read_metadata()
    model.send(stays)
    model.settle()
    model.check()
    sent = [
        (data.index, RecordBatch(bytes(data.records or b"")).base_sequence)
        for request in model.requests
        for topic in request.topic_data
        for data in topic.partition_data
    ]
    assert sent == [(0, 0), (0, 1), (0, 1), (2, 0)] or sent == [(0, 0), (0, 1), (2, 0), (0, 1)]
    assert model.epoch == 0, "no new producer epoch was needed"


def test_a_refusal_behind_a_batch_with_an_unknown_outcome_needs_a_new_epoch() -> None:
    model = ProducerModel(random.Random(1))
    queue = model.accumulator.queue("t", 0)
    model.send(key_in(0, 4))
    model.pump()
    model.arrive(0)
    model.answer(0)
    for _ in range(2):
        model.send(key_in(0, 4))
        queue.waiting[-1].full = True
    model.pump()
    lost, refused = queue.outstanding
    lost.lost = True
    queue.requeue(lost)
    model.accumulator.refuse(refused, 0.0, lambda attempt: 0.0)
    assert queue.bump_needed
    assert queue.candidate() is lost


def test_records_placed_again_keep_the_deadline_of_their_send() -> None:
    model = wait_in_the_buffer(delivery_timeout_ms=120_000)
    early = model.send(key_in(2, 4))
    model.now_s = 50.0
    late = model.send(key_in(3, 4))
    resized(model, 4)
    assert [early._locate()[0].created_ms, late._locate()[0].created_ms] == [0.0, 50_000.0]
    assert model.accumulator.oldest_deadline_ms() == 120_000


def test_records_sent_long_after_each_other_are_placed_in_separate_batches() -> None:
    model = wait_in_the_buffer()
    for now_s in (0.0, 0.5, 30.0):
        model.now_s = now_s
        model.send(key_in(2, 4))
        model.accumulator.queue("t", 0).waiting[-1].full = True
    resized(model, 4)
    assert [(b.created_ms, b.count) for b in model.accumulator.queue("t", 2).waiting] == [(0.0, 2), (30_000.0, 1)]


def test_a_chosen_partition_is_kept_or_the_record_fails() -> None:
    model = wait_in_the_buffer()
    resized(model, 4)
    key = key_in(3, 4)
    stays, fails, moves = model.send(key, partition=0), model.send(key, partition=3), model.send(key)
    resized(model, 2)
    assert (stays.partition, stays.done()) == (0, False)
    assert (moves.partition, moves.done()) == (1, False)
    assert fails.done()
    error = fails._locate()[0].error
    assert isinstance(error, PartitionMarkedError)
    assert "2 partitions" in str(error)


def test_records_without_a_key_stay_unless_their_partition_is_marked() -> None:
    model = wait_in_the_buffer()
    resized(model, 4)
    for partition in (1, 3):
        model.accumulator.append_to_new_batch("t", partition, None, b"0", (), 0, 0.0)
    resized(model, 2)
    found = records_of(model)
    assert len(found[1]) >= 1
    assert sum(map(len, found.values())) == 2
    assert max(found) < 2


def test_a_partitioner_that_raises_fails_only_its_record() -> None:
    def refuse_odd(info: object, key: bytes | None) -> int:
        if key == b"bad":
            raise LookupError("no such customer")
        return 2 if key == b"marked" else 0

    model = wait_in_the_buffer(place_again=refuse_odd)
    resized(model, 4)
    handles = [model.send(key) for key in (b"bad", b"good", b"marked")]
    resized(model, 2)
    batches: list[ProducerBatch] = [handle._locate()[0] for handle in handles]
    bad, good, marked = (batch.error for batch in batches)
    assert isinstance(bad, KafkaError)
    assert isinstance(bad.__cause__, LookupError)
    assert good is None
    assert isinstance(marked, PartitionMarkedError)


def test_the_pauses_for_newer_metadata_grow_from_5_to_100_ms() -> None:
    """After error 25310 without newer metadata, refused batches of a topic are repeated after growing pauses."""
    model = ProducerModel(random.Random(1))
    queue = model.accumulator.queue("t", 0)
    model.send(key_in(0, 4))
    model.pump()
    [batch] = queue.outstanding
    pauses: list[float] = []
    for _ in range(7):
        model.accumulator.refuse(batch, model.topic.retry_at_ms, lambda attempt: min(5.0 * 2 ** (attempt - 1), 100.0))
        pauses.append(batch.retry_at_ms)
        model.accumulator.take(queue)
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
    model = wait_in_the_buffer()
    for number in range(records):
        model.send(b"%d" % (number % 17))
    model.finish_resize(4)
    model.read_metadata()
    model.sender._place_again(model.topic)
    assert model.topic.replacement is not None
    return model


def finish(model: ProducerModel) -> int:
    """Let the sender finish the placement by itself, and return the number of its rounds."""
    rounds = 0
    while model.topic.replacement is not None:
        wait_ms = model.sender._send_ready(model.now_s * 1000)
        while model._started:  # requests a producer id
            model._resume(model._started.pop(0), None)
        is_over = model.topic.replacement is None
        assert is_over or wait_ms <= 0.1, "the sender continues as soon as other tasks had their turn"
        rounds += 1
    return rounds


def test_a_step_places_a_bounded_number_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = 0
    original = StickyPartitioner.place

    def counted(self: StickyPartitioner, info: TopicInfo, key: bytes | None) -> int:
        nonlocal placed
        placed += 1
        return original(self, info, key)

    monkeypatch.setattr(StickyPartitioner, "place", counted)
    model = begun(700)
    rounds = 0
    while model.topic.replacement is not None:
        before = placed
        model.sender._place_again(model.topic)
        rounds += 1
        assert placed - before <= 7
    assert placed == 2 * 700, "each record is placed when it is sent, and once again"
    assert rounds >= 100


def test_records_sent_between_steps_follow_those_sent_before() -> None:
    model = begun(200)
    for number in range(200):
        if model.topic.replacement is not None:
            model.send(b"%d" % (number % 17))
            model.sender._place_again(model.topic)
    assert len(model.handles) > 250, "some records came while steps were left"
    finish(model)
    check_placed(model, 4)


def test_no_request_for_the_topic_is_sent_between_steps() -> None:
    model = begun(100)
    model.accumulator.flushing = 1
    while model.topic.replacement is not None:
        model.send(b"5")
        model.pump()
        assert model.topic.replacement is None or not model.requests
    model.settle()
    model.check()


def test_a_flush_between_steps_waits_for_batches_that_are_taken_apart() -> None:
    model = begun(100)
    waiting_for = model.accumulator.unresolved()
    finish(model)
    sources = [batch for batch in waiting_for if batch.moved is not None]
    assert sources, "a flush continues with the batches that have the records now"
    known = {id(batch) for batch in waiting_for} | {id(part) for batch in sources for part, _ in batch.moved or ()}
    assert {id(batch) for queue in model.accumulator.queues_of(model.topic) for batch in queue.waiting} <= known


def test_an_abort_between_steps_fails_every_record() -> None:
    model = begun(100)
    model.accumulator.abort(KafkaError(ErrorCode.NETWORK_EXCEPTION, "closed"))
    assert all(handle.failed for _, _, handle in model.handles)
    assert model.accumulator.buffered_bytes == 0
    model.pump()
    assert not model.requests


def test_a_newer_layout_between_steps_is_applied_next() -> None:
    model = begun(200)
    model.finish_resize(7)
    model.read_metadata()
    finish(model)
    assert model.topic.layout.undeleted_partition_count in (4, 7)
    while model.topic.next is not None:
        model.sender._place_again(model.topic)
    assert model.topic.layout.undeleted_partition_count == 7
    check_placed(model, 7)


def test_newer_metadata_of_the_same_layout_is_used_at_the_end() -> None:
    model = begun(100)
    model.publish()
    model.read_metadata()
    newest = model.topic.next
    finish(model)
    assert model.topic.next is None
    assert model.topic.info is newest
