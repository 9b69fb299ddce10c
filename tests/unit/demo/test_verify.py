"""The demo's verdict: each way a log can go wrong is found and named."""

from __future__ import annotations

import pytest

from anabranch.demo.events import Event, event_of, load_events, share_of
from anabranch.demo.verify import Acknowledged, Observed, Verdict, verify

EVENTS = [Event(1, 100, "a", "A"), Event(2, 101, "b", "A"), Event(3, 102, "a", "M")]
ACKS = [Acknowledged(1, 0, 0), Acknowledged(2, 1, 0), Acknowledged(3, 0, 1)]
SEEN = [Observed(10, 0, 0, EVENTS[0]), Observed(11, 1, 0, EVENTS[1]), Observed(12, 0, 1, EVENTS[2])]


def test_a_clean_run_passes() -> None:
    verdict = verify(EVENTS, ACKS, SEEN)
    assert verdict == Verdict(events=3, keys=2)
    assert verdict.passed


def test_nothing_at_all_does_not_pass() -> None:
    assert not verify([], [], []).passed


@pytest.mark.parametrize(
    ("observed", "field", "text"),
    [
        (SEEN[:2], "lost", "lost: event 3 of key 'a', acknowledged at (0, 1)"),
        ([*SEEN, SEEN[1]._replace(time_ns=13, offset=5)], "duplicated", "twice: event 2"),
        ([SEEN[0]._replace(time_ns=13), *SEEN[1:]], "out_of_order", "out of order: key 'a': event 1"),
        (
            [*SEEN[:2], SEEN[2]._replace(event=EVENTS[2]._replace(change="D"))],
            "altered",
            "altered: partition 0 offset 1",
        ),
        ([*SEEN[:2], SEEN[2]._replace(partition=1, offset=7)], "misplaced", "misplaced: event 3"),
    ],
)
def test_each_fault_is_counted_and_named(observed: list[Observed], field: str, text: str) -> None:
    verdict = verify(EVENTS, ACKS, observed)
    assert getattr(verdict, field) == 1
    assert not verdict.passed
    assert verdict.examples[0].startswith(text)


def test_the_data_set_is_whole_and_a_record_carries_it() -> None:
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
