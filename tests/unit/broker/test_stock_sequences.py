"""What an idempotent stock producer had in flight when it was sent for metadata is written in its order."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from broker.log.producer_state import AppendOrigin, ProducerState
from broker.metadata_cache import TopicInfo
from broker.replication.layout import LegacyProducers, PartitionLayout
from broker.request_context import IN_FLIGHT_S, ClientSession
from broker.retry_order import GIVE_UP_S
from broker.stock_producers import StockProducers
from protocol.batch_builder import build_batch
from protocol.errors import ErrorCode, KafkaError
from protocol.key_placement import positive_hash
from protocol.records import RecordBatch
from protocol.types import TopicPartition

REFUSED, MISSED = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
MOVING = next(key for key in (b"%d" % n for n in range(1000)) if positive_hash(key) % 8 == 5)


class Leader:
    """Partition 1 of a topic for which 8 instead of 4 partitions are announced, and one connection to its leader."""

    def __init__(self) -> None:
        self._now = 0.0
        self._producers = StockProducers(SimpleNamespace(monotonic=lambda: self._now))
        self.session = ClientSession()
        self.state = ProducerState()
        self.info = TopicInfo(uuid.uuid4(), announced_partition_count=8, refreshes_stock_producers=True)
        self._partition: Any = SimpleNamespace(
            key=TopicPartition("t", 1),
            layout=PartitionLayout(4, 4, 0),
            delivery=SimpleNamespace(legacy=LegacyProducers.VERIFY),
            log=SimpleNamespace(producers=self.state),
        )
        self._end = 0

    def send(self, number: int, now: float, *, producer: int = 7, epoch: int = 0) -> ErrorCode:
        """As ``PartitionLog.append_as_leader`` does."""
        self._now = now
        record = (MOVING, b"%d" % number, (), 1000)
        sequence = -1 if producer < 0 else number
        batch = RecordBatch(build_batch([record], producer_id=producer, producer_epoch=epoch, base_sequence=sequence))
        admission = self._producers.admission(self.session, self._partition, self.info, None)
        try:
            if admission is not None:
                admission(batch)
            if producer >= 0:
                self.state.check(batch, AppendOrigin.CLIENT)
                self.state.record(batch, self._end)
        except KafkaError as error:
            return error.code
        self._end += 1
        return ErrorCode.NONE


@pytest.fixture
def leader() -> Leader:
    return Leader()


def test_a_log_without_a_batch_of_the_producer_begins_with_the_refused_one(leader: Leader) -> None:
    late = 2 * IN_FLIGHT_S
    assert [leader.send(0, 0.0), leader.send(1, late), leader.send(2, late)] == [REFUSED] * 3
    assert [leader.send(n, 2 * late) for n in range(3)] == [ErrorCode.NONE] * 3


def test_a_batch_refused_behind_another_is_waited_for_too(leader: Leader) -> None:
    assert leader.send(0, 0.0, producer=6) == REFUSED
    assert leader.send(0, IN_FLIGHT_S / 2) == REFUSED
    assert leader.send(1, 2 * IN_FLIGHT_S) == REFUSED
    assert [leader.send(n, 3 * IN_FLIGHT_S) for n in range(2)] == [ErrorCode.NONE] * 2


def test_the_log_itself_sees_to_the_order_of_a_producer_it_knows(leader: Leader) -> None:
    leader.info.refreshes_stock_producers = False
    assert leader.send(0, 0.0) == ErrorCode.NONE
    leader.info.refreshes_stock_producers = True
    assert [leader.send(1, 1.0), leader.send(2, 1.0 + 2 * IN_FLIGHT_S)] == [REFUSED, MISSED]
    assert leader.send(1, 2.0) == ErrorCode.NONE


def test_a_batch_that_does_not_come_again_holds_up_nothing_for_good(leader: Leader) -> None:
    assert leader.send(0, 0.0) == REFUSED
    assert leader.send(0, 1.0, epoch=1) == ErrorCode.NONE
    other = Leader()
    assert [other.send(0, 0.0), other.send(1, GIVE_UP_S + 1)] == [REFUSED, ErrorCode.NONE]


def test_a_topic_created_again_sends_the_same_connection_for_metadata_again(leader: Leader) -> None:
    assert [leader.send(0, 0.0), leader.send(0, 1.0)] == [REFUSED, ErrorCode.NONE]
    leader.info.topic_id = uuid.uuid4()
    assert leader.send(1, 100.0) == REFUSED


def test_an_order_that_is_over_is_not_kept(leader: Leader) -> None:
    """What is kept is compared with every record that the connection writes from then on."""
    assert [leader.send(0, 0.0, producer=-1), leader.send(0, 1.0, producer=-1)] == [REFUSED, ErrorCode.NONE]
    assert leader.send(1, 2.0, producer=-1) == ErrorCode.NONE
    assert not leader.session.retry_orders
