"""Batches that a stock idempotent producer had in flight are written in order.

The broker refuses such batches to make the producer refresh its metadata.
"""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker.log.log_state import Examined
from anabranch.broker.log.producer_state import AppendOrigin, ProducerState
from anabranch.broker.metadata_cache import CachedTopic
from anabranch.broker.replication.layout_admission import DeliveryRules
from anabranch.broker.stock.client_session import IN_FLIGHT_S, ClientSession
from anabranch.broker.stock.order_with_idempotence import SentBatch
from anabranch.broker.stock.order_without_idempotence import GIVE_UP_S
from anabranch.broker.stock.producers import REFRESH_AGAIN_S, StockProducers, Write
from anabranch.ordered_resize.layout import Layout
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.key_placement import positive_hash
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition

SILENCE_S = 1.0
MAX_RETRIED = 3
REFUSED, MISSED = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
MOVING, STAYING = (
    next(key for key in (b"%d" % n for n in range(1000)) if positive_hash(key) % 8 == home) for home in (5, 1)
)


class Leader:
    """The leader of partition 1, and one connection to the leader. The topic announces 8 partitions and still has 4."""

    def __init__(self) -> None:
        self.now = 0.0
        self.key = MOVING
        self._clock: Any = SimpleNamespace(monotonic=lambda: self.now, now_ms=lambda: 1000)
        self.info = CachedTopic(uuid.uuid4(), announced_partition_count=8, refreshes_stock_producers=True)
        metadata: Any = SimpleNamespace(topics={"t": self.info})
        self._producers = StockProducers(self._clock, SILENCE_S, metadata)
        self.session = ClientSession(MAX_RETRIED)
        self.state = ProducerState()
        self._partition: Any = SimpleNamespace(
            key=TopicPartition("t", 1),
            layout=Layout(4, 0, 4),
            delivery=DeliveryRules(),
            log=SimpleNamespace(producers=self.state),
        )
        self._end = 0

    def send(self, number: int, now: float, *, producer: int = 7, epoch: int = 0) -> ErrorCode:
        """Handle a batch as Produce and ``PartitionLog.append_as_leader`` do."""
        self.now = now
        record = (self.key, b"%d" % number, (), 1000)
        sequence = -1 if producer < 0 else number
        batch = RecordBatch(build_batch([record], producer_id=producer, producer_epoch=epoch, base_sequence=sequence))
        self._producers.note_write(self.session, self._partition.key, self._clock.monotonic())
        decision = self._producers.admit(self.session, self._partition, Examined(batch, 1000))
        key, connection = self._partition.key, self.session.connection
        sent = SentBatch.of(self.session.awaited, connection, self._clock, key, batch)
        try:
            if not isinstance(decision, Write):
                raise decision.error
            if producer >= 0:
                self.state.check(batch, AppendOrigin.CLIENT)
                self.state.record(batch, self._end, 1000)
        except KafkaError as error:
            if sent is not None:
                sent.refused(error.code)
            return error.code
        if sent is not None:
            sent.written()
        self._end += 1
        return ErrorCode.NONE

    def is_waited_for(self, now: float) -> bool:
        """Whether a split waits for the producer."""
        self.now = now
        (report,) = self._producers.report(["t"], {"t": self.info})
        return report.misplaced_ms_ago == 0


@pytest.fixture
def leader() -> Leader:
    return Leader()


def test_a_log_without_a_batch_of_the_producer_takes_the_refused_one_first(leader: Leader) -> None:
    late = 2 * IN_FLIGHT_S
    assert [leader.send(0, 0.0), leader.send(1, late), leader.send(2, late)] == [REFUSED] * 3
    assert [leader.send(n, 2 * late) for n in range(3)] == [ErrorCode.NONE] * 3


def test_a_batch_refused_after_one_of_another_producer_is_awaited_too(leader: Leader) -> None:
    assert leader.send(0, 0.0, producer=6) == REFUSED
    assert leader.send(0, IN_FLIGHT_S / 2) == REFUSED
    assert leader.send(1, 2 * IN_FLIGHT_S) == REFUSED
    assert [leader.send(n, 3 * IN_FLIGHT_S) for n in range(2)] == [ErrorCode.NONE] * 2


def test_a_log_that_knows_the_producer_checks_the_order_itself(leader: Leader) -> None:
    leader.info.refreshes_stock_producers = False
    assert leader.send(0, 0.0) == ErrorCode.NONE
    leader.info.refreshes_stock_producers = True
    assert [leader.send(1, 1.0), leader.send(2, 1.0 + 2 * IN_FLIGHT_S)] == [REFUSED, MISSED]
    assert leader.send(1, 2.0) == ErrorCode.NONE


def test_a_split_waits_until_every_batch_in_flight_was_repeated(leader: Leader) -> None:
    """The producer repeats each batch after a separate pause."""
    assert leader.send(0, 0.0) == REFUSED
    late = 2 * IN_FLIGHT_S
    assert [leader.send(0, late), leader.send(2, late), leader.send(3, late)] == [ErrorCode.NONE, MISSED, MISSED]
    assert leader.send(1, 0.5) == ErrorCode.NONE
    assert leader.is_waited_for(0.5 + 2 * SILENCE_S)
    assert leader.send(2, 4.0) == ErrorCode.NONE
    assert leader.is_waited_for(4.0 + 2 * SILENCE_S)
    assert leader.send(3, 8.0) == ErrorCode.NONE
    assert not leader.is_waited_for(8.0 + 2 * SILENCE_S)


def test_after_a_misplaced_record_a_split_waits_for_more_misplaced_records(leader: Leader) -> None:
    """A split waits while the producer may still write records that it partitioned by the old count.

    Even a slow producer writes all records that it partitioned by the old count before the first one of the new count.
    """
    assert [leader.send(0, 0.0), leader.send(0, 0.2)] == [REFUSED, ErrorCode.NONE]
    assert leader.is_waited_for(0.2 + SILENCE_S / 2)
    assert leader.send(1, 0.7) == ErrorCode.NONE
    assert leader.is_waited_for(0.7 + SILENCE_S / 2)
    assert not leader.is_waited_for(0.7 + SILENCE_S * 1.1)
    leader.key = STAYING
    assert leader.send(2, 1.0) == ErrorCode.NONE
    assert not leader.is_waited_for(1.0 + SILENCE_S / 2)


def test_a_split_waits_a_bounded_time_for_a_busy_producer(leader: Leader) -> None:
    """The producer may be about to write records that it partitioned by the old count."""
    leader.key = STAYING
    leader.info.refreshes_stock_producers = False
    assert leader.send(0, 0.0) == ErrorCode.NONE
    assert not leader.is_waited_for(0.1)
    leader.info.refreshes_stock_producers = True
    assert leader.is_waited_for(0.2)
    assert leader.is_waited_for(0.1 + SILENCE_S)
    assert not leader.is_waited_for(0.3 + SILENCE_S)


def test_the_next_batch_of_a_busy_producer_ends_the_wait_for_it(leader: Leader) -> None:
    leader.key = STAYING
    leader.info.refreshes_stock_producers = False
    assert leader.send(0, 0.0) == ErrorCode.NONE
    leader.info.refreshes_stock_producers = True
    assert leader.is_waited_for(0.1)
    assert leader.send(1, 0.2) == ErrorCode.NONE
    assert not leader.is_waited_for(0.2)


def test_a_split_does_not_wait_for_an_idle_producer(leader: Leader) -> None:
    leader.key = STAYING
    leader.info.refreshes_stock_producers = False
    assert leader.send(0, 0.0) == ErrorCode.NONE
    leader.info.refreshes_stock_producers = True
    assert not leader.is_waited_for(SILENCE_S + 0.1)


def test_a_batch_that_is_not_repeated_does_not_block_its_producer_for_ever(leader: Leader) -> None:
    assert leader.send(0, 0.0) == REFUSED
    assert leader.send(0, 1.0, epoch=1) == ErrorCode.NONE
    other = Leader()
    assert [other.send(0, 0.0), other.send(1, GIVE_UP_S + 1)] == [REFUSED, MISSED]
    assert other.send(0, GIVE_UP_S + 2, epoch=1) == ErrorCode.NONE


def test_a_topic_created_again_makes_a_connection_refresh_its_metadata_again(leader: Leader) -> None:
    assert [leader.send(0, 0.0), leader.send(0, 1.0)] == [REFUSED, ErrorCode.NONE]
    leader.info.topic_id = uuid.uuid4()
    assert leader.send(1, 100.0) == REFUSED


def test_a_finished_retry_order_is_not_kept(leader: Leader) -> None:
    """Every later record of the connection is compared with each kept order, which takes time."""
    assert [leader.send(0, 0.0, producer=-1), leader.send(0, 1.0, producer=-1)] == [REFUSED, ErrorCode.NONE]
    assert leader.send(1, 2.0, producer=-1) == ErrorCode.NONE
    assert not leader.session.retry_orders


def test_a_library_that_seldom_refreshes_metadata_gets_timeouts_instead_of_leader_errors(leader: Leader) -> None:
    """After a leader error franz-go sends nothing to a partition until new metadata arrives, up to 5 s later."""
    leader.session.software_name = "kgo"
    late = ErrorCode.REQUEST_TIMED_OUT
    assert [leader.send(0, 0.0), leader.send(0, 0.3), leader.send(1, 0.4)] == [late, ErrorCode.NONE, ErrorCode.NONE]
    again = REFRESH_AGAIN_S + 0.1
    assert [leader.send(2, again), leader.send(2, again + 0.3)] == [late, ErrorCode.NONE]


def test_a_connection_remembers_a_bounded_number_of_topics_and_producers() -> None:
    """A forgotten entry causes one more refusal, or a wait that ends early."""
    session, topic_id, now = ClientSession(MAX_RETRIED), uuid.uuid4(), 0.0
    topics = [f"t{number}" for number in range(MAX_RETRIED + 1)]
    assert all(session.refresh(topic, topic_id, 1, now) for topic in topics)
    assert [session.refresh(topic, topic_id, 1, now) for topic in (*topics[1:], topics[0])] == [False] * 3 + [True]

    tp = TopicPartition("t", 0)

    def batch(producer_id: int, sequence: int) -> RecordBatch:
        records = [(b"k", b"v", (), 0)]
        return RecordBatch(build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence))

    for producer_id in (0, 1, 2, 0, 3):
        assert session.is_furthest(tp, batch(producer_id, 5)), "producer 1 has been silent for longest"
        session.note_furthest(tp, batch(producer_id, 5))
    assert [session.is_furthest(tp, batch(producer_id, 4)) for producer_id in (0, 2, 3, 1)] == [False] * 3 + [True]


@pytest.mark.parametrize(("name", "renumbers"), [("librdkafka", True), ("", True), ("anabranch", False)])
def test_only_stock_clients_send_batches_of_unknown_outcome_under_other_sequences(name: str, renumbers: bool) -> None:
    session = ClientSession(MAX_RETRIED)
    session.introduce(name)
    assert session.connection.renumbers is renumbers
