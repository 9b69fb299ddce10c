"""The samples that the console keeps, and the charts that it draws from them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import trio
from trio.testing import MockClock

from anabranch import KafkaError
from anabranch.cli.console import console
from anabranch.command_error import UsageError
from anabranch.console import history as history_module
from anabranch.console import watch as watch_module
from anabranch.console.app import Console, ConsoleConfig, _templates
from anabranch.console.charts import BOTTOM, TOP, WIDTH, chart_of, nice
from anabranch.console.history import BRIDGED, STEP_S, ClusterSnapshot, History, Plot, SeenResize, Series, sampled
from anabranch.console.watch import Watch
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.types import TopicPartition
from tests.unit.cli.fake_admin import FakeAdmin
from tests.unit.console.test_http import HOSTILE, ask


def snapshot(step: int, ends: dict[str, list[int]], **values: Any) -> ClusterSnapshot:
    """A sample of topics with these ends of their partitions."""
    counts = {("id", name): len(found) for name, found in ends.items()}
    by_partition = {TopicPartition(name, p): end for name, found in ends.items() for p, end in enumerate(found)}
    return ClusterSnapshot(step * STEP_S, counts, by_partition, values.pop("lags", {}), **values)


def kept(minutes: int, *snapshots: ClusterSnapshot) -> History:
    history = History(minutes)
    for one in snapshots:
        history.add(one)
    return history


def test_a_series_keeps_its_last_values_and_shows_gaps() -> None:
    series = Series(20)
    series.add(3, 1.0)
    series.add(5, 2.0)
    assert [*series.since(1, 6)] == [None, None, 1.0, 2.0, 2.0, None]
    series.add(5 + BRIDGED + 1, 3.0)
    assert [*series.since(5, 12)] == [2.0, *[None] * BRIDGED, 3.0]
    series.add(4, 4.0)
    assert [*series.since(11, 13)] == [None, 4.0, None], "a clock that went back"
    series.add(10**9, 5.0)
    assert [*series.since(10**9 - 19, 10**9)] == [*[None] * 19, 5.0]


def test_rates_are_measured_from_partitions_that_are_known_before_and_after() -> None:
    history = kept(60, snapshot(1, {"a": [0, 100], "b": [5]}), snapshot(2, {"a": [50, 150, 900], "b": [5]}))
    plots = history.rate("a"), history.rate("b"), history.rate()
    assert [plot and plot.values[-1] for plot in plots] == [10.0, 0.0, 10.0]
    assert history.rate("c") is None and History(60).rate() is None


def test_a_resize_is_a_change_of_the_count_of_the_same_topic() -> None:
    created_again = ClusterSnapshot(30.0, {("other id", "a"): 9, ("id", "b"): 1}, {}, {})
    history = kept(60, snapshot(1, {"a": [0] * 4, "b": [0]}), snapshot(2, {"a": [0] * 6, "b": [0]}), created_again)
    of_all, of_b = history.rate(), history.rate("b")
    assert of_all is not None and of_all.resizes == [SeenResize(2, "a", 4, 6)]
    assert of_b is not None and of_b.resizes == []


def test_lags_are_kept_by_group_and_the_largest_by_topic() -> None:
    lags = {"g": {"a": 5, "b": 1}, "h": {"a": 7}}
    history = kept(60, snapshot(1, {"a": [9]}, lags=lags), snapshot(2, {"a": [9]}, lags=lags))
    plots = history.lag("g"), history.lag("h"), history.lag(), history.largest_lag("a")
    assert [plot and plot.values for plot in plots] == [[6, 6], [7, 7], [13, 13], [7, 7]]


def test_the_samples_are_bounded_in_time_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MOST_SERIES", 2)
    lags = {f"g{n}": {"a": n} for n in range(5)}
    history = History(1)
    for step in range(100):
        ends = {name: [step * 10] for name in ("a", "b", "c")}
        history.add(snapshot(step, ends, lags=lags, left_out=4))
    plot = history.rate("a")
    assert plot is not None and (plot.values, plot.seconds) == ([1.0] * 7, 60.0)
    assert (history.topics_left_out, history.groups_left_out) == (4 + 1, 3)
    assert history.rate("c") is None and history.lag("g4") is None
    history.add(snapshot(100, {"c": [1000]}))
    history.add(snapshot(101, {"c": [1010]}))
    assert history.rate("a") is None and history.rate("c") is not None, "a deleted topic makes place"


def test_topics_are_sampled_until_the_limit_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MOST_SAMPLED", 100)
    assert sampled({"c": 20, "a": 70, "b": 40, "d": 10}) == ["a", "c", "d"]


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)]


def test_a_chart_has_the_newest_value_at_the_right_and_zero_at_the_bottom() -> None:
    chart = chart_of(
        Plot([0.0, 10.0, None, 20.0], [SeenResize(101, "t", 4, 6), SeenResize(101, "u", 1, 2)], 100, 1200.0)
    )
    assert chart is not None and (chart.top, chart.now, chart.most, chart.began) == (20.0, 20.0, 20.0, "20 min ago")
    assert points(chart.line)[0][1] == BOTTOM and points(chart.line)[-1] == (WIDTH, TOP)
    assert chart.line.count("M") == 2, "a gap divides the line"
    assert [mark.title for mark in chart.marks] == ["t, 4 to 6 partitions; u, 1 to 2 partitions"]


@pytest.mark.parametrize("values", [[], [None], [0.0], [1e300, 0.0], [5.0] * 10_000])
def test_any_values_are_drawn(values: list[float | None]) -> None:
    chart = chart_of(Plot(values, [], 0, STEP_S * len(values)))
    assert (chart is None) == (values in ([], [None]))
    assert chart is None or all(0 <= y <= BOTTOM for _, y in points(chart.line))


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (1.1, 2), (30, 50), (100, 100), (101, 200), (7e9, 1e10)])
def test_the_scale_ends_at_a_round_number(value: float, top: float) -> None:
    assert nice(value) == top


def test_a_chart_is_well_formed_and_escapes_names() -> None:
    parts: Any = _templates().globals["parts"]
    chart = chart_of(Plot([1.0, 2.0], [SeenResize(1, HOSTILE, 4, 6)], 0, 10.0))
    drawn = parts.charts([(HOSTILE, chart)])
    assert HOSTILE not in drawn and "1 resize" in drawn
    ElementTree.fromstring(f"<all>{drawn}</all>")
    assert parts.charts([]).strip() == ""


@pytest.mark.parametrize("minutes", [-1, 1_441])
def test_the_time_that_is_kept_has_limits(minutes: int) -> None:
    with pytest.raises(UsageError, match=f"--history-minutes {minutes}: a number from 0 to 1,440 is needed"):
        console(history_minutes=minutes)


@pytest.mark.trio
async def test_the_console_samples_also_while_no_page_is_open_and_a_lost_cluster_is_a_gap(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=trio.current_time, time=trio.current_time, process_time=lambda: 0.0)
    monkeypatch.setattr(watch_module, "time", clock)
    admin: Any = FakeAdmin(ends={0: (0, 0)}, groups={"g": {0: 0}})
    admin.outage = lambda _: None
    history = History(60)
    watch = Watch(admin, admin, None, history)
    list_topics = admin.list_topics

    async def refuse() -> Any:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.sample_for_ever, history)
        for written in range(1, 10):
            await trio.sleep(STEP_S)  # virtual time: one sample
            admin.ends = {0: (0, 100 * written)}
        admin.list_topics = refuse
        await trio.sleep((BRIDGED + 3) * STEP_S)  # virtual time: no sample
        admin.list_topics = list_topics
        await trio.sleep(2 * STEP_S)  # virtual time: samples again
        nursery.cancel_scope.cancel()
    plot, lag = history.rate("t"), history.lag("g")
    assert plot is not None and plot.values[4] == 10.0 and plot.values[-1] is not None
    assert None in plot.values[BRIDGED:], "the gap"
    assert lag is not None and lag.values[-1] == 900
    app = Console(watch, ConsoleConfig("localhost:9092")).app()
    for path, title in (("/topics/t", "written a second"), ("/groups/g", "Records to read")):
        assert title in (await ask(app, path)).text.partition("<figure>")[2], path
