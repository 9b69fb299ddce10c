"""What the console has sampled: rates of topics, lags, and resizes, over a bounded time. Pure.

Time goes in steps of ``STEP_S``. A series has one value a step; a step that was not sampled is a gap.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from anabranch.protocol.types import TopicPartition

STEP_S = 10.0
MOST_SERIES = 500
"""The largest number of topics, and of groups, with a series of their own."""
MOST_SAMPLED = 20_000
"""The largest number of partitions that are sampled; whole topics are left out beyond it."""
MOST_RESIZES = 500
BRIDGED = 6
"""So many steps between two samples are no gap: a cluster that answers slowly is asked less often."""
_UNKNOWN = math.nan


class Series:
    """The last ``length`` values by step. The memory is taken once: eight bytes a value."""

    def __init__(self, length: int) -> None:
        self._values = array("d", [_UNKNOWN]) * length
        self._last = -1

    def add(self, step: int, value: float) -> None:
        """Add the value since the last step that has one; a step that is not newer replaces the last value."""
        step = max(step, self._last)
        between = value if self._last >= 0 and step - self._last <= BRIDGED else _UNKNOWN
        for missed in range(max(self._last + 1, step - len(self._values) + 1), step):
            self._values[missed % len(self._values)] = between
        self._values[step % len(self._values)] = value
        self._last = step

    def since(self, first: int, last: int) -> Iterator[float | None]:
        """The values of the steps from ``first`` to ``last``; None for a gap."""
        for step in range(first, last + 1):
            is_kept = 0 <= step <= self._last and step > self._last - len(self._values)
            value = self._values[step % len(self._values)] if is_kept else _UNKNOWN
            yield None if math.isnan(value) else value


class SeenResize(NamedTuple):
    """A change of a topic's partition count that the console saw between two samples."""

    step: int
    topic: str
    before: int
    after: int


class ClusterSnapshot(NamedTuple):
    """The state of the cluster at a time in s. ``counts`` are partition counts, by the id and the name of the topic."""

    at_s: float
    counts: Mapping[tuple[str, str], int]
    ends: Mapping[TopicPartition, int]
    lags: Mapping[str, Mapping[str, int]]
    """Lags in records by group and topic."""
    left_out: int = 0
    """How many topics were not sampled."""


class Plot(NamedTuple):
    """The steps of a chart, with the values and the resizes in them. ``seconds``: the time that the chart covers."""

    values: list[float | None]
    resizes: list[SeenResize]
    first: int
    seconds: float


class History:
    """Keeps ``minutes`` of samples."""

    def __init__(self, minutes: int) -> None:
        self._length = max(2, round(minutes * 60 / STEP_S) + 1)
        self._began: int | None = None
        self._step = 0
        self._before: ClusterSnapshot | None = None
        self._rates: dict[str, Series] = {}
        self._lags: dict[str, Series] = {}
        self._topic_lags: dict[str, Series] = {}
        self._rate_of_all, self._lag_of_all = Series(self._length), Series(self._length)
        self._resizes: deque[SeenResize] = deque(maxlen=MOST_RESIZES)
        self.topics_left_out = self.groups_left_out = 0

    def add(self, now: ClusterSnapshot) -> None:
        self._step = step = int(now.at_s // STEP_S)
        self._began = step if self._began is None else self._began
        if self._before is not None:
            rates = _rates(self._before, now)
            self._resizes += _resizes(self._before, now, step)
            self._rate_of_all.add(step, sum(rates.values()))
            self.topics_left_out = now.left_out + self._extend(self._rates, rates, step)
        by_topic: dict[str, float] = {}
        for of_topic in now.lags.values():
            for topic, lag in of_topic.items():
                by_topic[topic] = max(by_topic.get(topic, 0), lag)
        of_groups = {group: sum(of_topic.values()) for group, of_topic in now.lags.items()}
        self._lag_of_all.add(step, sum(of_groups.values()))
        self._extend(self._topic_lags, by_topic, step)
        self.groups_left_out = self._extend(self._lags, of_groups, step)
        self._before = now

    def _extend(self, kept: dict[str, Series], values: Mapping[str, float], step: int) -> int:
        """Add a value to each series, and drop the series without one. Returns how many values have no series."""
        for name in kept.keys() - values.keys():
            del kept[name]
        for name in sorted(values):
            if len(kept) < MOST_SERIES:
                kept.setdefault(name, Series(self._length))
            if name in kept:
                kept[name].add(step, values[name])
        return len(values) - len(kept)

    # ------------------------------------------------------------ charts

    def rate(self, topic: str | None = None) -> Plot | None:
        """Records a second written to a topic, or to all of them; None if this is not sampled."""
        return self._plot(self._rate_of_all if topic is None else self._rates.get(topic), topic and [topic])

    def lag(self, group: str | None = None, topics: Iterable[str] | None = None) -> Plot | None:
        """The lag of a group, or of all groups together, in records; with the resizes of these topics."""
        return self._plot(self._lag_of_all if group is None else self._lags.get(group), topics)

    def largest_lag(self, topic: str) -> Plot | None:
        """The lag of the group that is furthest behind in the topic."""
        return self._plot(self._topic_lags.get(topic), [topic])

    def _plot(self, series: Series | None, topics: Iterable[str] | None) -> Plot | None:
        if series is None or self._began is None or self._step == self._began:
            return None
        first = max(self._began, self._step - self._length + 1)
        names = None if topics is None else set(topics)
        resizes = [one for one in self._resizes if one.step >= first and (names is None or one.topic in names)]
        return Plot([*series.since(first, self._step)], resizes, first, (self._step - first) * STEP_S)


def sampled(partitions: Mapping[str, int]) -> list[str]:
    """The topics that are sampled, by their numbers of partitions: in the order of names, until the limit."""
    chosen, left = [], MOST_SAMPLED
    for name, count in sorted(partitions.items()):
        if count <= left:
            chosen.append(name)
            left -= count
    return chosen


def _rates(before: ClusterSnapshot, now: ClusterSnapshot) -> dict[str, float]:
    """Records a second by topic, from the partitions whose ends are known in both snapshots."""
    seconds = max(now.at_s - before.at_s, 0.001)
    rates: dict[str, float] = {name: 0.0 for _, name in now.counts.keys() & before.counts.keys()}
    for tp, end in now.ends.items():
        if tp.topic in rates and tp in before.ends:
            rates[tp.topic] += max(0, end - before.ends[tp]) / seconds
    return rates


def _resizes(before: ClusterSnapshot, now: ClusterSnapshot, step: int) -> list[SeenResize]:
    return [
        SeenResize(step, topic[1], before.counts[topic], count)
        for topic, count in sorted(now.counts.items())
        if before.counts.get(topic, count) != count
    ]
