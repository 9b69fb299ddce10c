"""The number of bytes that are appended to a topic in a time window.

The bytes of all brokers are added up. The measurement restarts when a report is missing.
"""

from __future__ import annotations

from anabranch.controller.append_window import STEPS, AppendWindow
from anabranch.ordered_resize.autoscale import Measured

WINDOW_S = 10.0


def measuring(*brokers: int) -> AppendWindow:
    """Return a window for which each of ``brokers`` has reported 1,000 bytes at second 0."""
    window = AppendWindow(0.0)
    window.begin_round(1, brokers, WINDOW_S, 0.0)
    for broker in brokers:
        window.report(broker, 1_000, 0.0)
    return window


def test_bytes_appended_before_the_first_reports_do_not_count() -> None:
    assert measuring(1, 2).measured(0.0) == Measured(0, 0, 0)


def test_the_rate_is_that_of_all_brokers_over_the_window() -> None:
    window = measuring(1, 2)
    for second in range(1, 31):
        window.begin_round(1, (1, 2), WINDOW_S, float(second) - 0.5)
        window.report(1, 1_000 + second * 10, float(second))
        window.report(2, 1_000 + second * 20, float(second))
    found = window.measured(30.0)
    assert WINDOW_S * 1000 <= found.elapsed_ms <= (WINDOW_S + 1) * 1000
    assert abs(found.bytes_per_second - 30) < 3


def test_samples_are_bounded_however_often_brokers_report() -> None:
    window = measuring(1)
    for step in range(10_000):
        window.report(1, 1_000 + step, step * 0.01)
    assert len(window._samples) <= 2 * STEPS + 2


def test_a_counter_that_restarted_counts_from_zero() -> None:
    window = measuring(1)
    window.report(1, 300, 1.0)
    assert window.measured(1.0).appended_bytes == 300


def test_a_silent_broker_is_waited_for_and_then_the_measurement_begins_anew() -> None:
    window = measuring(1, 2)
    assert window.begin_round(1, (1, 2), WINDOW_S, 5.0)
    assert window.is_current
    window.report(1, 2_000, 6.0)
    for second in (7.0, 14.9):
        assert not window.begin_round(1, (1, 2), WINDOW_S, second)
        assert not window.is_current
        assert window.measured(second).appended_bytes == 1_000
    assert window.begin_round(1, (1, 2), WINDOW_S, 15.0)
    assert not window.is_current
    assert window.measured(15.0) == Measured(0, 0, 15_000)


def test_bytes_appended_while_a_broker_was_away_do_not_count() -> None:
    window = measuring(1, 2)
    window.report(1, 2_000, 5.0)
    window.report(2, 90_000, 20.0)
    assert window.measured(20.0).appended_bytes == 0


def test_a_late_answer_counts_in_full() -> None:
    window = measuring(1, 2)
    window.report(1, 2_000, 5.0)
    window.report(2, 2_000, 9.0)
    assert window.measured(9.0)[:2] == (2_000, 9_000)


def test_another_layout_begins_the_measurement_and_the_cool_down_anew() -> None:
    window = measuring(1)
    window.begin_round(None, (1,), WINDOW_S, 1.0)
    assert window.measured(2.0) == Measured(0, 0, 1_000)
    window.report(1, 5_000, 2.0)
    window.begin_round(2, (1,), WINDOW_S, 3.0)
    assert window.measured(4.0) == Measured(0, 0, 1_000)
    window.report(1, 5_000, 4.0)
    window.begin_round(2, (1,), WINDOW_S, 5.0)
    assert window.measured(5.0).unchanged_ms == 2_000
