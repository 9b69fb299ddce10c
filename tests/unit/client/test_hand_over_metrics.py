"""Metrics and logs of a consumer's waiting partitions, and of a producer's resizes."""

from __future__ import annotations

import logging
import math

import pytest

from anabranch.client.client_metrics import PRODUCER_GROUP, Durations
from anabranch.client.ordered_delivery.blocked_partition import BlockedPartition, WaitsFor
from anabranch.client.ordered_delivery.hand_over_metrics import HandOvers
from anabranch.client.producer.resize_metrics import ProducerMetrics
from anabranch.client.producer.unwritten_records_placed_again import Replaced
from anabranch.ordered_resize.lineage import BELOW_EVERY_EPOCH
from anabranch.protocol.types import TopicPartition

PARENT, CHILD = TopicPartition("t", 1), TopicPartition("t", 5)


def waits_for(on: TopicPartition = PARENT, until: int = 100, position: int = 80) -> WaitsFor:
    return WaitsFor(0, on, 3, until, position, "member-7")


def blocked(until: int = 100, position: int = 80, up_to: int = BELOW_EVERY_EPOCH) -> BlockedPartition:
    return BlockedPartition(CHILD, up_to, (waits_for(PARENT, until, position),))


def release(hand_overs: HandOvers, now: float, now_ms: int = 1000, *, is_read: bool = False) -> None:
    """Release the child, so that nothing blocks the child any more."""
    hand_overs.evaluated([], {CHILD: None}, now)
    assert list(hand_overs.passed) == [CHILD]
    hand_overs.released(CHILD, now, now_ms, is_read=is_read)


def times(hand_overs: HandOvers, name: str) -> tuple[float, float]:
    """Return the count, and the longest time in ms."""
    values = hand_overs.values()
    return values[f"{name}-total"], values[f"{name}-time-max-ms"]


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 2), (0.51, 3), (0.75, 3), (0.99, 4), (1.0, 4)])
def test_a_percentile_is_the_smallest_duration_that_covers_the_share(share: float, expected: float) -> None:
    durations = Durations()
    for seconds in (0.004, 0.001, 0.003, 0.002):
        durations.add(seconds)
    assert durations.percentile_ms(share) == expected


def test_percentiles_cover_the_latest_durations_but_count_and_maximum_cover_all() -> None:
    durations = Durations()
    assert math.isnan(durations.percentile_ms(0.5)) and math.isnan(durations.max_ms)
    durations.add(9.0)
    for _ in range(1024):
        durations.add(0.001)
    named = durations.named("x")
    assert named == {"x-total": 1025, "x-time-p50-ms": 1.0, "x-time-p99-ms": 1.0, "x-time-max-ms": 9000.0}


def test_a_hand_over_begins_when_the_parent_is_processed_and_ends_with_the_first_delivery() -> None:
    hand_overs = HandOvers()
    hand_overs.evaluated([blocked()], {CHILD: None}, 10.0)
    assert hand_overs.values()["blocked-partitions"] == 1
    hand_overs.processed(PARENT, 12.0)
    release(hand_overs, 12.25)
    assert hand_overs.values()["blocked-partitions"] == 0
    hand_overs.delivered(CHILD, 0, 900, 12.5)
    assert times(hand_overs, "blocked") == (1, 2250.0)
    assert times(hand_overs, "hand-over") == (1, 500.0)


def test_a_hand_over_does_not_begin_before_the_partition_is_blocked() -> None:
    """A member may take over a partition whose parent was processed long ago. The wait begins at the takeover."""
    hand_overs = HandOvers()
    other = BlockedPartition(TopicPartition("t", 6), BELOW_EVERY_EPOCH, blocked().waits_for)
    hand_overs.evaluated([other], {CHILD: None, other.partition: None}, 1.0)
    hand_overs.processed(PARENT, 2.0)
    hand_overs.evaluated([other, blocked()], {CHILD: None, other.partition: None}, 10.0)
    hand_overs.evaluated([other], {CHILD: None, other.partition: None}, 10.125)
    hand_overs.released(CHILD, 10.125, 1000, is_read=False)
    hand_overs.delivered(CHILD, 0, 900, 10.25)
    assert times(hand_overs, "hand-over") == (1, 250.0)


@pytest.mark.parametrize(
    ("up_to", "leader_epoch", "timestamp_ms"),
    [(BELOW_EVERY_EPOCH, 0, 1001), (3, 3, 900)],
    ids=["written after the release", "deliverable before it"],
)
def test_records_that_did_not_wait_make_no_hand_over(up_to: int, leader_epoch: int, timestamp_ms: int) -> None:
    hand_overs = HandOvers()
    hand_overs.evaluated([blocked(up_to=up_to)], {CHILD: None}, 10.0)
    release(hand_overs, 12.0)
    hand_overs.delivered(CHILD, leader_epoch, timestamp_ms, 13.0)
    assert hand_overs.values()["hand-over-total"] == 0
    assert not hand_overs.undelivered


def test_a_partition_without_records_makes_no_hand_over() -> None:
    hand_overs = HandOvers()
    hand_overs.evaluated([blocked()], {CHILD: None}, 10.0)
    release(hand_overs, 12.0, is_read=True)
    assert not hand_overs.undelivered
    assert hand_overs.values()["blocked-time-max-ms"] == 2000.0


def test_a_partition_revoked_while_it_is_blocked_does_not_count_as_released() -> None:
    hand_overs = HandOvers()
    hand_overs.evaluated([blocked()], {CHILD: None}, 10.0)
    hand_overs.evaluated([], {}, 11.0)
    values = hand_overs.values()
    assert (values["blocked-partitions"], values["blocked-total"]) == (0, 1)
    assert math.isnan(values["blocked-time-max-ms"]) and not hand_overs.passed
    hand_overs.evaluated([blocked()], {CHILD: None}, 20.0)
    release(hand_overs, 21.0)
    hand_overs.evaluated([], {}, 22.0)
    assert not hand_overs.undelivered  # the partition is given up between the release and the first record


def test_a_partition_blocked_again_before_its_release_continues_the_same_wait() -> None:
    hand_overs = HandOvers()
    hand_overs.evaluated([blocked()], {CHILD: None}, 10.0)
    hand_overs.evaluated([], {CHILD: None}, 11.0)
    hand_overs.evaluated([blocked()], {CHILD: None}, 12.0)
    assert not hand_overs.passed
    release(hand_overs, 13.0)
    assert times(hand_overs, "blocked") == (1, 3000.0)


def test_the_time_of_a_report_ends_when_the_coordinator_acknowledges_it() -> None:
    hand_overs = HandOvers()
    hand_overs.flushed(0.5, 1.0)
    hand_overs.reported(1, 1.0)
    hand_overs.reported(2, 2.0)
    hand_overs.acknowledged(1, 3.0)
    assert times(hand_overs, "position-report") == (1, 2000.0)
    hand_overs.new_generation()
    hand_overs.acknowledged(2, 4.0)
    assert hand_overs.values()["position-report-total"] == 1
    hand_overs.loaded(5.0, 5.25)
    assert times(hand_overs, "partition-key-maybe-revoked") == (1, 500.0)
    assert times(hand_overs, "partition-key-assigned") == (1, 250.0)


def test_one_log_line_names_the_blocker_and_one_the_duration(caplog: pytest.LogCaptureFixture) -> None:
    hand_overs = HandOvers()
    with caplog.at_level(logging.INFO, "anabranch.client.ordered_delivery.hand_over_metrics"):
        hand_overs.evaluated([blocked(until=-1)], {CHILD: None}, 10.0)
        assert not caplog.messages  # the awaited offset is not known yet
        for position in (80, 90):
            hand_overs.evaluated([blocked(position=position)], {CHILD: None}, 10.01)
        release(hand_overs, 10.0125)
    assert caplog.messages == [
        "blocked: partition=t-5 max_leader_epoch=-2 "
        'waits_for="partition 5 from epoch 0 waits for partition 1 until offset 100, owned by member-7,'
        ' at position 80"',
        "released: partition=t-5 after_ms=12.5 waited_for=t-1",
    ]


def test_a_blocked_partition_is_logged_after_a_while_even_if_the_awaited_offset_is_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hand_overs = HandOvers()
    one = BlockedPartition(CHILD, 4, tuple(waits_for(TopicPartition("t", q), -1, -1) for q in range(10, 17)))
    with caplog.at_level(logging.INFO, "anabranch.client.ordered_delivery.hand_over_metrics"):
        hand_overs.evaluated([one], {CHILD: None}, 10.0)
        hand_overs.evaluated([one], {CHILD: None}, 10.5)
        assert not caplog.messages
        hand_overs.evaluated([one], {CHILD: None}, 11.0)
    (line,) = caplog.messages
    assert line.startswith(
        'blocked: partition=t-5 max_leader_epoch=4 waits_for="partition 5 from epoch 0 waits for partition 10'
    )
    assert line.endswith('; 2 more"')


def test_a_producer_counts_its_holds_and_the_records_placed_again() -> None:
    metrics = ProducerMetrics()
    metrics.pausing("given up", 1.0)
    metrics.let_go("given up")
    metrics.pausing("t", 2.0)
    metrics.pausing("t", 3.0)
    assert metrics.values()[PRODUCER_GROUP]["paused-topics"] == 1
    metrics.replaced("t", Replaced({}, [], moved=3, failed=1), 2.5)
    metrics.replaced("u", Replaced({}, [], moved=4, failed=0), 2.5)
    assert not metrics.any_paused
    found = metrics.values()[PRODUCER_GROUP]
    assert (found["records-moved-total"], found["records-failed-total"], found["layout-changes-total"]) == (7, 1, 2)
    assert (found["pause-total"], found["pause-time-max-ms"], found["pause-time-p50-ms"]) == (2, 500.0, 0.0)
