"""If a producer without idempotence repeats batches, the batches are written in their original order."""

from __future__ import annotations

from anabranch.broker.stock.order_without_idempotence import GIVE_UP_S, BatchTurn, RetryOrder
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.records import Record, RecordBatch


def batch(*numbers: int) -> list[Record]:
    records = [(b"key", b"%d" % number, (), 1_000) for number in numbers]
    return list(RecordBatch(build_batch(records)).records())


def test_requests_repeated_in_reverse_are_written_in_order() -> None:
    """Java's producer repeats its requests in flight in reverse."""
    order = RetryOrder(0.0)
    order.refused(batch(1, 2))
    in_flight = [batch(3), batch(4), batch(5)]
    assert [order.turn(records, 0.0) for records in in_flight] == [BatchTurn.LATER] * 3
    repeated = [*reversed(in_flight), batch(1, 2)]
    assert [order.turn(records, 0.1) for records in repeated] == [BatchTurn.EARLY] * 3 + [BatchTurn.NOW]
    assert [order.turn(records, 0.2) for records in in_flight] == [BatchTurn.NOW] * 3
    assert order.is_empty
    assert order.turn(batch(6), 0.2) is BatchTurn.NOW


def test_the_same_records_in_other_batches_are_written_in_order() -> None:
    """librdkafka repeats its records in other batches."""
    order = RetryOrder(0.0)
    order.refused(batch(1, 2, 3))
    assert order.turn(batch(4, 5), 0.0) is BatchTurn.LATER
    assert order.turn(batch(1), 0.1) is BatchTurn.NOW
    assert order.turn(batch(4), 0.1) is BatchTurn.EARLY
    assert order.turn(batch(2, 3, 4, 5, 6), 0.1) is BatchTurn.NOW
    assert order.is_empty


class Parked:
    """A parked batch, which must be next when its turn comes."""

    def __init__(self, order: RetryOrder, *numbers: int) -> None:
        self._order = order
        self._records = batch(*numbers)
        assert order.turn(self._records, 0.1) is BatchTurn.EARLY
        order.park(self._records, self)

    def take_turn(self) -> None:
        assert self._order.turn(self._records, 0.1) is BatchTurn.NOW


def test_a_held_batch_has_its_turn_right_after_the_batches_before_it() -> None:
    order = RetryOrder(0.0)
    order.refused(batch(1))
    assert [order.turn(batch(number), 0.0) for number in (2, 3, 4)] == [BatchTurn.LATER] * 3
    parked = {number: Parked(order, number) for number in (4, 3, 2)}
    assert order.pop_next() is None
    order.let_go(parked[3])
    assert order.turn(batch(1), 0.1) is BatchTurn.NOW
    assert order.pop_next() is parked[2]
    parked[2].take_turn()
    assert order.pop_next() is None
    assert order.turn(batch(3), 0.2) is BatchTurn.NOW
    assert order.pop_next() is parked[4]
    parked[4].take_turn()
    assert order.pop_next() is None
    assert order.is_empty


def test_a_batch_that_is_not_repeated_is_given_up_and_never_written_late() -> None:
    order = RetryOrder(0.0)
    order.refused(batch(1))
    assert order.turn(batch(2), GIVE_UP_S) is BatchTurn.LATER
    assert order.turn(batch(2), GIVE_UP_S + 0.1) is BatchTurn.NOW
    assert order.turn(batch(3), GIVE_UP_S + 0.2) is BatchTurn.NOW
    assert order.turn(batch(1), GIVE_UP_S + 0.3) is BatchTurn.NEVER


def test_no_batch_is_given_up_before_the_broker_leads() -> None:
    order = RetryOrder(0.0)
    late = 2 * GIVE_UP_S
    order.refused_before_leading(batch(1))
    assert order.turn(batch(2), late) is BatchTurn.LATER
    assert order.turn(batch(2), late + GIVE_UP_S) is BatchTurn.EARLY
    assert order.turn(batch(1), late + GIVE_UP_S) is BatchTurn.NOW


def test_a_batch_that_this_broker_refused_before_it_led_is_given_up_after_a_wait() -> None:
    order = RetryOrder(0.0)
    order.refused_before_leading(batch(1))
    assert order.turn(batch(2), 1.0) is BatchTurn.LATER
    assert order.turn(batch(2), 1.0 + GIVE_UP_S + 0.1) is BatchTurn.NOW
    assert order.turn(batch(1), 1.0 + GIVE_UP_S + 0.2) is BatchTurn.NEVER


def test_a_fault_of_an_awaited_batch_ends_the_wait_for_all_awaited_batches() -> None:
    order = RetryOrder(0.0)
    order.refused(batch(1))
    order.refused_for_good(batch(2))
    order.stop_waiting()
    assert order.turn(batch(3), 0.0) is BatchTurn.NOW
    assert order.turn(batch(2), 0.1) is BatchTurn.NEVER


def test_a_record_that_is_permanently_refused_blocks_nothing_and_is_never_written() -> None:
    order = RetryOrder(0.0)
    order.refused_for_good(batch(1, 2))
    assert order.is_empty
    assert order.turn(batch(3), 0.0) is BatchTurn.NOW
    assert order.turn(batch(2), 0.1) is BatchTurn.NEVER
    assert order.turn(batch(4), 0.1) is BatchTurn.NOW
