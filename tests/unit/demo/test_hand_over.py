"""Hand-over times: from the end of the flush after the parent's last record to the child's first record."""

from __future__ import annotations

from anabranch.demo.events import Event
from anabranch.demo.hand_over import Flush, KeyHandOver, Resize, hand_overs, percentiles
from anabranch.demo.verify import ObservedRecord

MS = 1_000_000
SPLIT = frozenset({(0, 4), (1, 5)})
MERGE = frozenset({(4, 0), (5, 1)})


def seen(at_ms: int, partition: int, sequence: int, key: str = "a", appended_ms: int = 0) -> ObservedRecord:
    return ObservedRecord(at_ms * MS, partition, sequence, Event(sequence, 1, key, "M"), 0, appended_ms * MS)


def test_a_key_is_ready_when_the_flush_after_its_last_record_has_returned() -> None:
    observed = [seen(10, 1, 1), seen(30, 5, 2, appended_ms=15)]
    flushes = [Flush(5 * MS, 8 * MS, (1,)), Flush(12 * MS, 18 * MS, (0, 1)), Flush(25 * MS, 26 * MS, (1,))]
    (move,) = hand_overs(observed, flushes, [Resize(4 * MS, SPLIT)])
    assert move == KeyHandOver(0, "a", 1, 5, 18 * MS, 30 * MS, True)
    assert move.took_ns == 12 * MS


def test_keys_with_the_same_move_are_measured_from_the_flush_after_the_last_of_them() -> None:
    observed = [seen(10, 1, 1, "a"), seen(20, 1, 2, "b"), seen(26, 5, 3, "a"), seen(27, 5, 4, "b")]
    flushes = [Flush(11 * MS, 12 * MS, (1,)), Flush(21 * MS, 25 * MS, (1,))]
    assert [move.took_ns // MS for move in hand_overs(observed, flushes, [Resize(5 * MS, SPLIT)])] == [1, 2]


def test_a_record_appended_after_the_flush_is_measured_from_its_append() -> None:
    observed = [seen(10, 1, 1), seen(30, 5, 2, appended_ms=29)]
    (move,) = hand_overs(observed, [Flush(12 * MS, 18 * MS, (1,))], [Resize(0, SPLIT)])
    assert (move.took_ns, move.waited) == (1 * MS, True)


def test_a_record_appended_after_others_were_delivered_did_not_wait() -> None:
    observed = [seen(10, 1, 1), seen(11, 1, 2, "b"), seen(20, 5, 3, appended_ms=19), seen(90, 5, 4, "b", 80)]
    moves = hand_overs(observed, [Flush(12 * MS, 18 * MS, (1,))], [Resize(0, SPLIT)])
    assert [(move.key, move.waited) for move in moves] == [("a", True), ("b", False)]
    assert percentiles(moves).count == 1


def test_each_move_belongs_to_the_resize_that_made_it() -> None:
    observed = [seen(10, 1, 1), seen(20, 5, 2), seen(40, 1, 3), seen(50, 1, 4)]
    observed += [seen(11, 1, 5, "late"), seen(60, 5, 6, "late"), seen(12, 2, 7, "other"), seen(61, 5, 8, "other")]
    moves = hand_overs(observed, [], [Resize(15 * MS, SPLIT), Resize(30 * MS, MERGE)])
    assert [(move.key, move.step, move.source, move.target) for move in moves] == [
        ("a", 0, 1, 5), ("late", 0, 1, 5), ("a", 1, 5, 1), ("other", -1, 2, 5),
    ]  # fmt: skip


def test_a_record_delivered_again_is_no_move() -> None:
    observed = [seen(10, 1, 1), seen(20, 5, 2), seen(25, 1, 1), seen(26, 5, 2)]
    assert len(hand_overs(observed, [], [Resize(0, SPLIT)])) == 1


def test_percentiles_count_only_the_moves_that_waited() -> None:
    moves = [KeyHandOver(0, str(n), 1, 5, 0, n * MS, waited=True) for n in range(1, 101)]
    moves += [KeyHandOver(0, "later", 1, 5, 0, 10**12, waited=False)]
    found = percentiles(moves)
    assert (found.count, found.p50_ms, found.p99_ms) == (100, 51.0, 100.0)
    assert percentiles([]).p50_ms is None
