"""The histogram of the event loop's rounds."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from anabranch.runtime.loop_lag import BOUNDS_S, LoopLag
from anabranch.runtime.metric_rows import histogram as histogram_row
from anabranch.runtime.metrics import Histogram, Metrics


def test_a_histogram_counts_values_up_to_each_bound() -> None:
    histogram = Histogram(histogram_row("h_seconds", "what"), (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    assert histogram.buckets() == [("0.1", 2.0), ("1.0", 3.0), ("+Inf", 4.0)]
    metrics = Metrics()
    metrics.histograms.append(histogram)
    text = metrics.render().decode()
    assert 'h_seconds_bucket{le="0.1"} 2.0' in text and 'h_seconds_bucket{le="+Inf"} 4.0' in text
    assert "h_seconds_count 4.0" in text and "h_seconds_sum 7.65" in text


@pytest.mark.trio
async def test_a_long_round_is_counted_in_its_bucket(mock_clock: trio.testing.MockClock) -> None:
    lag = LoopLag(trio.current_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lag.run)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(0.3)  # virtual time passes within this round
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert lag.rounds.counts[BOUNDS_S.index(0.5)] == 1
    counted = sum(lag.rounds.counts)
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    assert sum(lag.rounds.counts) == counted, "nothing is measured after the end"


def test_the_longest_round_of_the_last_minute_and_the_idle_share_are_measured() -> None:
    now = 100.0
    lag = LoopLag(lambda: now)
    assert (lag.longest_s(), lag.idle_share()) == (0.0, 1.0)

    def round_of(busy_s: float, idle_s: float) -> None:
        nonlocal now
        now += idle_s
        lag.after_io_wait(0)
        now += busy_s
        lag.before_io_wait(0)

    round_of(1.0, 0.0)
    for _ in range(30):
        round_of(0.5, 0.5)
    assert lag.longest_s() == 1.0
    assert lag.idle_share() == pytest.approx(0.5, abs=0.05)
    for _ in range(90):
        round_of(0.25, 0.75)
    assert lag.longest_s() == 0.25, "the longer rounds are more than a minute ago"
    assert lag.idle_share() == pytest.approx(0.75, abs=0.05)
    now += 300
    assert lag.longest_s() == 0.0
