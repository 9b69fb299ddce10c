"""A batch that its producer sends again in a higher epoch is recognised, and only such a batch (ADR 50)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.producer_state import ProducerExpiration, ProducerState
from anabranch.broker.log.repeated_batches import MAX_IN_FLIGHT, Answer, ProducerConnection
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.records import RecordBatch
from tests.support.log.log_fixture import START_MS, LogFixture, batch, values

MAX_AGE_MS = ProducerExpiration().repeated_max_age_ms


def send(
    log: PartitionLog,
    value: bytes,
    epoch: int,
    sequence: int,
    *,
    count: int = 1,
    connection: ProducerConnection | None = None,
    **fields: Any,
) -> tuple[int, bool]:
    """Send a batch of ``count`` equal records; returns the answered offset, and whether the batch was known."""
    numbers = {"producer_id": 9, "producer_epoch": epoch, "base_sequence": sequence}
    done = log.append_as_leader(batch(*[value] * count, **numbers, **fields), 0, connection=connection)
    return done.base_offset, done.duplicate


def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call(*args, **kwargs)
    return caught.value.code


def written(log: PartitionLog) -> list[bytes | None]:
    return [value for _, _, value in values(log)]


def test_the_last_batch_sent_again_in_a_higher_epoch_is_answered_with_its_offset(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    send(log, b"a", 0, 0)
    assert send(log, b"b", 0, 1, count=2) == (1, False)
    assert send(log, b"b", 3, 0, count=2) == (1, True)
    assert send(log, b"b", 3, 0, count=2) == (1, True), "its answer is lost too"
    assert refused(send, log, b"c", 3, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(send, log, b"c", 2, 0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(log, b"c", 3, 2) == (3, False)
    assert written(log) == [b"a", b"b", b"b", b"c"]


def test_a_run_is_recognised_in_order_and_ends_with_the_first_other_batch(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    for sequence, value in enumerate((b"a", b"b", b"c", b"d")):
        send(log, value, 0, sequence)
    assert [send(log, b"b", 1, 0), send(log, b"c", 1, 1)] == [(1, True), (2, True)]
    assert send(log, b"c", 2, 0) == (2, True), "another epoch, before the run is over"
    assert send(log, b"e", 2, 1) == (4, False)
    assert send(log, b"d", 2, 2) == (5, False), "the producer has given up the first d, and this is another one"


def test_batches_written_in_several_epochs_are_one_run(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    send(log, b"a", 0, 0)
    assert [send(log, b"a", 1, 0), send(log, b"b", 1, 1)] == [(0, True), (1, False)]
    assert [send(log, b"a", 2, 0), send(log, b"b", 2, 1), send(log, b"c", 2, 2)] == [(0, True), (1, True), (2, False)]


@pytest.mark.parametrize(
    "other",
    [{"value": b"b"}, {"count": 1}, {"timestamp": START_MS + 1}, {"key": b"j"}, {"compression": CompressionType.GZIP}],
    ids=["value", "count", "timestamp", "key", "compression"],
)
def test_another_batch_is_written(log_fixture: LogFixture, other: dict[str, Any]) -> None:
    log = log_fixture.create()
    value = b"a" * 100
    send(log, value, 0, 0, count=2)
    fields: dict[str, Any] = {"value": value, "count": 2} | other
    assert send(log, fields.pop("value"), 1, 0, **fields) == (2, False)


def test_only_the_largest_timestamp_differs(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    first = batch(b"a", b"a", producer_id=9, producer_epoch=0, base_sequence=0)
    log.append_as_leader(first, 0)
    again = batch(b"a", b"a", timestamp=START_MS + 5, producer_id=9, producer_epoch=1, base_sequence=0)
    assert log.append_as_leader(again, 0).duplicate is False


def test_a_batch_that_is_not_in_the_log_any_more_is_written(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    send(log, b"a", 0, 0)
    log.advance_high_watermark(1)
    log.delete_records_before(1)
    assert send(log, b"a", 1, 0) == (1, False)


@pytest.mark.parametrize(("age_ms", "is_known"), [(MAX_AGE_MS, True), (MAX_AGE_MS + 1, False)])
def test_a_batch_is_recognised_for_a_limited_time(log_fixture: LogFixture, age_ms: int, is_known: bool) -> None:
    log = log_fixture.create()
    send(log, b"a", 0, 0, timestamp=1)
    log_fixture.clock.ms += age_ms
    assert send(log, b"a", 1, 0, timestamp=1)[1] is is_known


@pytest.mark.parametrize(
    ("same_connection", "later_requests", "is_known"),
    [(True, 0, False), (False, MAX_IN_FLIGHT, False), (False, MAX_IN_FLIGHT - 1, True)],
)
def test_an_equal_batch_is_another_one_once_the_producer_has_the_answer(
    log_fixture: LogFixture, same_connection: bool, later_requests: int, is_known: bool
) -> None:
    """Two records of one millisecond may be equal. If the producer knows of the first, this is the second."""
    log = log_fixture.create()
    answered, other = ProducerConnection(), ProducerConnection()
    send(log, b"a", 0, 0, connection=answered)
    log.producers.record_answer(9, Answer(0, answered, answered.requests))
    answered.requests += later_requests
    assert send(log, b"a", 1, 0, connection=answered if same_connection else other)[1] is is_known


def test_an_equal_batch_of_a_client_that_never_renumbers_is_another_one(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    ours = ProducerConnection()
    ours.renumbers = False
    send(log, b"a", 0, 0, connection=ours)
    assert send(log, b"a", 1, 0, connection=ours) == (1, False)
    assert send(log, b"a", 1, 0, connection=ours) == (1, True), "the same numbers are a repetition"


def test_a_batch_whose_later_one_is_known_to_the_producer_is_known_too(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    connection = ProducerConnection()
    for sequence, value in enumerate((b"a", b"b", b"c")):
        send(log, value, 0, sequence, connection=connection)
    log.producers.record_answer(9, Answer(1, connection, 0))
    assert send(log, b"c", 1, 0, connection=connection) == (2, True)
    assert send(log, b"a", 2, 0, connection=connection) == (3, False)


@pytest.mark.parametrize("config", [{"message_timestamp_type": "LogAppendTime"}, {"compression_type": "gzip"}])
def test_batches_that_the_broker_changes_are_recognised(log_fixture: LogFixture, config: dict[str, Any]) -> None:
    log = log_fixture.create(**config)
    send(log, b"a", 0, 0)
    log_fixture.clock.ms += 100
    assert send(log, b"a", 1, 0) == (0, True)
    assert send(log, b"b", 1, 1) == (1, False)


def test_with_log_append_time_the_producers_timestamps_are_compared(log_fixture: LogFixture) -> None:
    log = log_fixture.create(message_timestamp_type="LogAppendTime")
    send(log, b"a", 0, 0)
    assert send(log, b"a", 1, 0, timestamp=START_MS + 1) == (1, False)


def test_batches_of_transactions_are_not_compared(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    send(log, b"a", 0, 0, is_transactional=True)
    assert send(log, b"a", 1, 0, is_transactional=True) == (1, False)


# ---------------------------------------------------------------- another leader


def followed(log_fixture: LogFixture) -> PartitionLog:
    """A new leader's log, with a, b, c of epoch 0. Its predecessor may have taken an epoch that it does not know."""
    log = log_fixture.create()
    for sequence, value in enumerate((b"a", b"b", b"c")):
        send(log, value, 0, sequence)
    log.begin_to_lead()
    return log


def test_a_new_leader_goes_on_with_a_run_that_its_predecessor_began(log_fixture: LogFixture) -> None:
    log = followed(log_fixture)  # the predecessor answered b as sequence 0 of epoch 2
    assert send(log, b"c", 2, 1) == (2, True)
    assert send(log, b"d", 2, 2) == (3, False)
    assert send(log, b"b", 2, 0) == (1, True), "the answer of the predecessor was lost"


def test_a_new_leader_goes_on_after_a_run_that_its_predecessor_finished(log_fixture: LogFixture) -> None:
    log = followed(log_fixture)
    assert refused(send, log, b"d", 2, 4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, b"d", 2, 2) == (3, False)
    assert refused(send, log, b"x", 2, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "c has this sequence"
    assert [send(log, b"b", 2, 0), send(log, b"c", 2, 1), send(log, b"e", 2, 3)] == [(1, True), (2, True), (4, False)]


def test_a_producer_that_was_idle_for_long_goes_on_after_a_run_that_a_predecessor_finished(
    log_fixture: LogFixture,
) -> None:
    """OUT_OF_ORDER_SEQUENCE_NUMBER would be fatal to librdkafka, and nothing is lost or taken for a repetition here."""
    log = followed(log_fixture)
    log_fixture.clock.ms += MAX_AGE_MS + 1
    assert refused(send, log, b"c", 2, 4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, b"d", 2, 3) == (3, False)


def test_a_late_copy_of_a_request_is_recognised_after_a_run_that_a_predecessor_finished(
    log_fixture: LogFixture,
) -> None:
    log = followed(log_fixture)
    assert send(log, b"d", 0, 3) == (3, False), "the network held this copy back; d is sequence 1 of epoch 2 by now"
    assert [send(log, b"d", 2, 1), send(log, b"e", 2, 2)] == [(3, True), (4, False)]


def test_a_late_copy_of_what_a_predecessor_took_does_not_end_its_run(log_fixture: LogFixture) -> None:
    log = followed(log_fixture)  # the predecessor answered b and c as sequences 0 and 1 of epoch 2
    assert send(log, b"b", 2, 0) == (1, True), "the network held this copy back"
    assert refused(send, log, b"d", 2, 3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, b"d", 2, 2) == (3, False)
    assert refused(send, log, b"x", 2, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "c has this sequence"
    assert [send(log, b"c", 2, 1), send(log, b"b", 2, 0), send(log, b"e", 2, 3)] == [(2, True), (1, True), (4, False)]


def test_a_repetition_is_recognised_after_a_late_copy_of_an_earlier_one(log_fixture: LogFixture) -> None:
    log = followed(log_fixture)  # the predecessor answered a and b as sequences 0 and 1 of epoch 2, and took c
    assert send(log, b"a", 2, 0) == (0, True), "the network held this copy back"
    assert refused(send, log, b"x", 2, 2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [send(log, b"c", 2, 2), send(log, b"b", 2, 1), send(log, b"d", 2, 3)] == [(2, True), (1, True), (3, False)]


def test_after_a_late_copy_a_predecessor_took_nothing_that_it_had_not(log_fixture: LogFixture) -> None:
    log = followed(log_fixture)
    assert [send(log, b"d", 0, 3), send(log, b"e", 0, 4)] == [(3, False), (4, False)], "copies that were held back"
    assert send(log, b"c", 2, 0) == (2, True)
    assert refused(send, log, b"e", 2, 2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "d is not repeated yet"
    assert refused(send, log, b"f", 2, 3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [send(log, b"d", 2, 1), send(log, b"e", 2, 2), send(log, b"f", 2, 3)] == [(3, True), (4, True), (5, False)]


def test_a_leader_that_leads_again_goes_on_after_a_run_that_another_one_finished(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    for sequence, value in enumerate((b"a", b"b", b"c")):
        send(log, value, 0, sequence)
    assert send(log, b"b", 2, 0) == (1, True)
    assert refused(send, log, b"d", 2, 2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "no other one has led since"
    log.begin_to_lead()  # another one led, and took c
    assert send(log, b"d", 2, 2) == (3, False)


def test_a_follower_keeps_what_it_took_and_recognises_what_the_next_leader_took(log_fixture: LogFixture) -> None:
    log = followed(log_fixture)
    assert send(log, b"b", 2, 0) == (1, True)
    numbers = {"producer_id": 9, "producer_epoch": 2, "base_sequence": 2}
    log.append_as_follower(batch(b"d", base_offset=3, **numbers))  # the next leader took c as sequence 1
    log.begin_to_lead()
    assert [send(log, b"c", 2, 1), send(log, b"b", 2, 0), send(log, b"e", 2, 3)] == [(2, True), (1, True), (4, False)]


def test_a_leader_knows_the_epochs_of_its_own_term(log_fixture: LogFixture) -> None:
    log = followed(log_fixture)
    for sequence, value in enumerate((b"d", b"e"), 3):
        send(log, value, 0, sequence)
    assert refused(send, log, b"f", 2, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(send, log, b"e", 2, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_nothing_is_inferred_while_an_earlier_batch_is_to_be_repeated(log_fixture: LogFixture) -> None:
    """The batch is examined and not written then."""
    log = followed(log_fixture)
    examined = log.examine(batch(b"c", producer_id=9, producer_epoch=2, base_sequence=1))
    assert examined.known is not None and examined.is_renumbered
    assert log.producers.producers[9].epoch == 0
    assert log.write(examined, 0).duplicate
    assert log.producers.producers[9].epoch == 2


# ---------------------------------------------------------------- the file


async def restarted(log_fixture: LogFixture, log: PartitionLog) -> PartitionLog:
    await log.close()
    log_fixture.clock.ms += 1000
    again = await log_fixture.reopen(clean=True)
    again.begin_to_lead()
    return again


@pytest.mark.trio
async def test_a_run_and_the_time_of_the_append_survive_a_restart(log_fixture: LogFixture) -> None:
    """The records are older than ``producer.id.expiration.ms``."""
    log = log_fixture.create()
    for sequence, value in enumerate((b"a", b"b", b"c")):
        send(log, value, 0, sequence, timestamp=1)
    send(log, b"b", 1, 0, timestamp=1)
    log = await restarted(log_fixture, log)
    assert log.producers.producers[9].appended_ms == START_MS
    assert [send(log, b"b", 1, 0, timestamp=1), send(log, b"c", 1, 1, timestamp=1)] == [(1, True), (2, True)]
    assert send(log, b"d", 1, 2, timestamp=1) == (3, False)


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.trio
async def test_a_run_that_a_predecessor_finished_is_known_after_a_restart(
    log_fixture: LogFixture, crashes: bool
) -> None:
    log = followed(log_fixture)
    assert [send(log, b"b", 2, 0), send(log, b"d", 2, 2)] == [(1, True), (3, False)]
    if crashes:
        log.close_files()
        log = await log_fixture.reopen()
        log.begin_to_lead()
    else:
        log = await restarted(log_fixture, log)
    assert [send(log, b"c", 2, 1), send(log, b"b", 2, 0), send(log, b"e", 2, 3)] == [(2, True), (1, True), (4, False)]


@pytest.mark.trio
async def test_a_producer_of_old_records_is_known_after_a_crash(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    send(log, b"a", 0, 0, timestamp=1)
    log.close_files()
    log_fixture.clock.ms += 1000
    again = await log_fixture.reopen()
    assert again.producers.producers[9].appended_ms == START_MS + 1000
    assert send(again, b"a", 0, 0, timestamp=1) == (0, True)


@pytest.mark.parametrize(
    ("damage", "event"),
    [
        (lambda _data: None, "log.producers_missing"),
        (lambda data: data[:-1], "log.producers_malformed"),
        (lambda data: data[:3], "log.producers_malformed"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "log.producers_malformed"),
        (lambda data: b"\x00\x02" + data[2:], "log.producers_malformed"),
    ],
    ids=["missing", "cut off", "cut within the header", "byte changed", "another version"],
)
@pytest.mark.trio
async def test_without_the_file_a_producer_is_as_old_as_its_records(
    log_fixture: LogFixture, damage: Callable[[bytes], bytes | None], event: str
) -> None:
    log = log_fixture.create()
    for sequence, value in enumerate((b"a", b"b")):
        send(log, value, 0, sequence, timestamp=START_MS - 5)
    send(log, b"a", 1, 0, timestamp=START_MS - 5)
    await log.close()
    (name,) = log_fixture.names(".producers")
    changed = damage(log_fixture.file(name).read_bytes())
    if changed is None:
        log_fixture.file(name).unlink()
    else:
        log_fixture.file(name).write_bytes(changed)
    with capture_logs() as logged:
        again = await log_fixture.reopen(clean=True)
    assert [entry["event"] for entry in logged] == [event]
    assert again.producers.producers[9].appended_ms == START_MS - 5
    assert send(again, b"a", 1, 0, timestamp=START_MS - 5) == (0, True)
    assert send(again, b"c", 1, 1) == (2, False)


@pytest.mark.trio
async def test_the_file_of_another_snapshot_is_not_used(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    send(log, b"a", 0, 0, timestamp=START_MS - 5)
    await log.close()
    (name,) = log_fixture.names(".producers")
    other = ProducerState()
    other.record(RecordBatch(batch(b"x", producer_id=9, producer_epoch=7, base_sequence=0)), 0, START_MS)
    log_fixture.file(name).write_bytes(other.files().kept)
    with capture_logs() as logged:
        again = await log_fixture.reopen(clean=True)
    assert [entry["event"] for entry in logged] == ["log.producers_malformed"]
    assert again.producers.producers[9].appended_ms == START_MS - 5


@pytest.mark.trio
async def test_a_file_without_its_snapshot_is_removed(log_fixture: LogFixture) -> None:
    """A crash between the two files."""
    log = log_fixture.create()
    send(log, b"a", 0, 0)
    await log.close()
    (name,) = log_fixture.names(".snapshot")
    log_fixture.file(name).unlink()
    again = await log_fixture.reopen(clean=True)
    assert not log_fixture.names(".producers")
    assert send(again, b"a", 0, 0) == (0, True)


def test_truncation_removes_both_files_and_keeps_what_the_log_has(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    send(log, b"a", 0, 0, timestamp=1)
    send(log, b"b", 0, 1, timestamp=1)
    log.roll()
    log.truncate_to(1)
    assert not log_fixture.names(".producers") and not log_fixture.names(".snapshot")
    assert send(log, b"a", 1, 0, timestamp=1) == (0, True)
    assert send(log, b"b", 1, 1, timestamp=1) == (1, False)


def test_a_replica_that_begins_above_deleted_records_gets_both_files(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    send(log, b"a", 0, 0, timestamp=1)
    log.advance_high_watermark(1)
    log.delete_records_before(1)
    files = log.producers.below(1)
    log_fixture.clock.ms += 1000
    log.truncate_fully_and_start_at(40, files)
    assert log.producers.producers[9].appended_ms == START_MS
    assert log_fixture.names(".producers") == ["00000000000000000040.producers"]
