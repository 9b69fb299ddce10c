"""The demo's verdict finds and names each fault in a log, in the deliveries of records, and in the states."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.demo.events import Event, event_of, load_events, share_of
from anabranch.demo.states import SKIPPED, FileState, fold
from anabranch.demo.verify import Acknowledged, ObservedRecord, RunVerdict, disordered, verify

EVENTS = [Event(1, 100, "a", "A"), Event(2, 101, "b", "A"), Event(3, 102, "a", "M")]
ACKS = [Acknowledged(1, 0, 0), Acknowledged(2, 1, 0), Acknowledged(3, 0, 1)]
SEEN = [
    ObservedRecord(10, 0, 0, EVENTS[0], 0, 9),
    ObservedRecord(11, 1, 0, EVENTS[1], 0, 10),
    ObservedRecord(12, 0, 1, EVENTS[2], 1, 11),
]
SAVED = fold(EVENTS)


def test_a_clean_run_passes() -> None:
    verdict = verify(EVENTS, ACKS, SEEN, SAVED)
    assert verdict == RunVerdict(events=3, keys=2)
    assert verdict.passed


def test_a_run_without_events_does_not_pass() -> None:
    assert not verify([], [], [], {}).passed


@pytest.mark.parametrize(
    ("observed", "field", "text"),
    [
        (SEEN[:2], "lost", "lost: event 3 of key 'a', acknowledged at (0, 1)"),
        ([SEEN[0]._replace(time_ns=13), *SEEN[1:]], "out_of_order", "out of order: key 'a': event 1"),
        (
            [*SEEN[:2], SEEN[2]._replace(event=EVENTS[2]._replace(change="D"))],
            "altered",
            "altered: partition 0 offset 1",
        ),
        ([*SEEN[:2], SEEN[2]._replace(partition=1, offset=7)], "misplaced", "misplaced: event 3"),
        ([*SEEN[:2], SEEN[2]._replace(changes_known=0)], "wrong_states", "wrong state: key 'a': event 3"),
        ([*SEEN[:2], SEEN[2]._replace(changes_known=SKIPPED)], "wrong_states", "wrong state: key 'a': event 3"),
    ],
)
def test_each_fault_of_a_record_is_counted_and_named(observed: list[ObservedRecord], field: str, text: str) -> None:
    verdict = verify(EVENTS, ACKS, observed, SAVED)
    assert (getattr(verdict, field), verdict.violations) == (1, 1)
    assert not verdict.passed
    assert verdict.examples[0].startswith(text)


@pytest.mark.parametrize(
    "saved", [{**SAVED, "a": SAVED["a"]._replace(digest=1)}, {"b": SAVED["b"]}], ids=["another digest", "no state"]
)
def test_a_state_that_missed_an_event_is_wrong_at_the_end(saved: dict[str, FileState]) -> None:
    verdict = verify(EVENTS, ACKS, SEEN, saved)
    assert (verdict.wrong_at_the_end, verdict.violations) == (1, 1)
    assert verdict.examples[0].startswith("wrong at the end: key 'a'")


def test_an_event_delivered_again_to_a_state_that_has_it_is_no_violation() -> None:
    again = SEEN[0]._replace(time_ns=13, changes_known=SKIPPED)
    verdict = verify(EVENTS, ACKS, [*SEEN, again], SAVED)
    assert (verdict.delivered_again, verdict.violations, verdict.passed) == (1, 0, True)


def test_disorder_names_the_late_and_the_newer_record() -> None:
    third, first = SEEN[2]._replace(time_ns=5), SEEN[0]
    assert disordered([third, SEEN[1], first]) == [(first, third)]


def test_the_checksum_of_a_state_depends_on_the_order_of_events() -> None:
    def digest(*events: Event) -> Any:
        state = FileState()
        for event in events:
            state = state.after(event)
        return state.digest

    assert digest(EVENTS[0], EVENTS[2]) != digest(EVENTS[2], EVENTS[0])
    assert fold(EVENTS)["a"] == FileState(2, 3, digest(EVENTS[0], EVENTS[2]))


def test_the_data_set_is_whole_and_an_event_is_read_back_from_its_record() -> None:
    events = list(load_events())
    assert len(events) == 101_229
    assert len({event.path for event in events}) == 10_101
    assert [event.sequence for event in events] == list(range(1, 101_230))
    assert all(event_of(event.key, event.value) == event for event in events[:100])


def test_producers_share_all_events_and_each_key_has_one_producer() -> None:
    shares = [list(share_of(index, 4, 2000)) for index in range(4)]
    assert sorted(event for share in shares for event in share) == list(load_events(2000))
    keys = [{event.path for event in share} for share in shares]
    assert sum(map(len, keys)) == len(set().union(*keys))
    assert all(share == sorted(share) for share in shares)
