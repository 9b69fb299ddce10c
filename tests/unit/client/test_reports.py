"""When a position is reported: the KIP's three conditions, and reports that cannot free any member."""

from __future__ import annotations

import pytest

from anabranch.client.ordered_delivery.blocked_partition import BlockedPartition, WaitsFor
from anabranch.client.ordered_delivery.delivery import awaited_offsets
from anabranch.client.ordered_delivery.reports import ProcessedUpTo, Reports
from tests.support.resize.layouts import tp

T1 = tp(1)
START = ProcessedUpTo(101, 50, 0, at_end=False, is_marked=False, current_leader_epoch=1)


def asked(known: int = -1) -> Reports:
    reports = Reports()
    reports.on_asked({T1: (101, known)}, 0)
    return reports


def reported(progress: ProcessedUpTo = START) -> Reports:
    reports = asked()
    reports.reported(T1, progress)
    return reports


def test_positions_that_no_member_waits_for_are_not_reported() -> None:
    assert not Reports().is_due(T1, START)
    reports = asked()
    reports.on_asked({}, 0)
    assert not reports.is_due(T1, START)


def test_the_first_position_of_a_generation_is_reported() -> None:
    reports = asked()
    assert reports.is_due(T1, START)
    reports.reported(T1, START)
    assert not reports.is_due(T1, START)
    reports.clear()
    reports.on_asked({T1: (101, 50)}, 1)
    assert reports.is_due(T1, START)


@pytest.mark.parametrize(
    ("now", "due"),
    [
        (START._replace(position=60), False),
        (START._replace(position=60, at_end=True), True),
        (START._replace(at_end=True), False),
        (START._replace(position=60, leader_epoch=1), True),
        (START._replace(position=60, at_end=True, current_leader_epoch=0), False),
        (START._replace(position=60, at_end=True, current_leader_epoch=0, is_marked=True), True),
        (START._replace(position=40), True),
        (START._replace(incarnation=201), True),
    ],
)
def test_later_positions_are_reported_only_when_they_may_release_a_member(now: ProcessedUpTo, due: bool) -> None:
    assert reported().is_due(T1, now) is due


def test_a_partition_that_was_split_long_ago_needs_no_more_reports() -> None:
    """The member repeatedly reaches the end, in a leader epoch that it reported. No partition waits for such an end."""
    reports = reported(START._replace(leader_epoch=1, at_end=True))
    for position in range(51, 60):
        assert not reports.is_due(T1, START._replace(position=position, leader_epoch=1, at_end=True))
    assert reports.is_due(T1, START._replace(position=61, leader_epoch=1, at_end=True, current_leader_epoch=2))


@pytest.mark.parametrize(
    ("incarnation", "known", "number", "due"),
    [
        pytest.param(101, 50, 1, False, id="it knows the position"),
        pytest.param(101, -1, 1, True, id="it knows none"),
        pytest.param(101, -1, 0, False, id="the response is from before the report"),
        pytest.param(101, 40, 1, True, id="it knows another: an older report arrived last on another connection"),
        pytest.param(101, 40, 0, False, id="it knew another before the report"),
        pytest.param(1, -1, 1, False, id="it asks for an incarnation that was removed"),
        pytest.param(201, -1, 1, False, id="it asks for an incarnation that this owner has not seen"),
    ],
)
def test_hole_19_a_position_is_reported_again_to_a_coordinator_that_does_not_know_it(
    incarnation: int, known: int, number: int, due: bool
) -> None:
    reports = reported()
    reports.on_asked({T1: (incarnation, known)}, number)
    assert reports.is_due(T1, START) is due
    assert reports.is_due(T1, START._replace(incarnation=201))


def test_an_offset_is_awaited_only_where_records_are_held_back() -> None:
    """An idle partition holds back no record. Of two waits for one partition, the larger offset counts."""

    def blocked(partition: int, until: int, position: int = 0) -> BlockedPartition:
        return BlockedPartition(tp(partition), -2, (WaitsFor(1, tp(0), 0, until, position, None),))

    waits = [blocked(4, 10), blocked(5, 20), blocked(6, 30), blocked(7, -1), blocked(8, 7, position=7)]
    assert awaited_offsets(waits, {tp(4), tp(5), tp(7), tp(8)}) == {tp(0): 20}
    assert awaited_offsets(waits, ()) == {}
