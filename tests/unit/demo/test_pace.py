"""The stream's pace is even, also after a pause."""

from __future__ import annotations

import pytest

from anabranch.demo.worker import BEHIND_S, Pace

RATE = 100.0


def test_events_are_due_at_an_even_rate() -> None:
    pace = Pace(RATE, started=50.0)
    assert [pace.early_s(sequence, 50.0) for sequence in (0, 1, 200)] == pytest.approx([0.0, 0.01, 2.0])


def test_the_pace_catches_up_after_a_short_delay() -> None:
    pace = Pace(RATE, started=0.0)
    assert pace.early_s(100, 1.0 + BEHIND_S / 2) < 0
    assert pace.early_s(200, 1.0) == pytest.approx(1.0)


def test_a_long_pause_causes_only_a_short_burst() -> None:
    pace = Pace(RATE, started=0.0)
    pause = 5.0
    due = [sequence for sequence in range(100, 700) if pace.early_s(sequence, 1.0 + pause) <= 0]
    assert len(due) == pytest.approx(BEHIND_S * RATE, abs=1.01)
