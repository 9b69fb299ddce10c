"""The geometry of charts over time. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from anabranch.console.history import STEP_S, Plot
from anabranch.view.amounts import duration

WIDTH, HEIGHT = 560, 130
TOP, BOTTOM = 20, 112
"""The y of the largest value, and of zero."""
LEAST_S = 120.0
"""A chart covers at least this time, so that the first samples are not drawn as wide as an hour."""


class Mark(NamedTuple):
    """Resizes at one x; ``title`` names them."""

    x: float
    title: str


class Chart(NamedTuple):
    """A line and an area as SVG paths. ``top`` is the value of the highest line, ``now`` the last value."""

    line: str
    area: str
    marks: list[Mark]
    top: float
    now: float | None
    most: float
    began: str


def chart_of(plot: Plot | None) -> Chart | None:
    """The chart of a plot; None if there is nothing to draw yet."""
    if plot is None or all(value is None for value in plot.values):
        return None
    known = [value for value in plot.values if value is not None]
    covered_s = max(plot.seconds, LEAST_S)
    top = nice(max(known))

    def x(index: int) -> float:
        return round(WIDTH - (len(plot.values) - 1 - index) * STEP_S / covered_s * WIDTH, 1)

    def y(value: float) -> float:
        return round(BOTTOM - value / top * (BOTTOM - TOP), 1)

    line, area = [], []
    for run in _runs(plot.values):
        points = "L".join(f"{x(index)} {y(value)}" for index, value in run)
        first, last = run[0][0], run[-1][0]
        line.append(f"M{points}" + ("h0" if first == last else ""))  # a single point: a dot by its round ends
        area.append(f"M{x(first)} {BOTTOM}L{points}L{x(last)} {BOTTOM}z")
    titles: dict[int, list[str]] = {}
    for one in plot.resizes:
        titles.setdefault(one.step - plot.first, []).append(f"{one.topic}, {one.before} to {one.after} partitions")
    marks = [Mark(x(index), "; ".join(texts)) for index, texts in titles.items()]
    return Chart("".join(line), "".join(area), marks, top, plot.values[-1], max(known), f"{duration(covered_s)} ago")


def _runs(values: list[float | None]) -> list[list[tuple[int, float]]]:
    """The values with their places, divided at the gaps."""
    runs: list[list[tuple[int, float]]] = [[]]
    for index, value in enumerate(values):
        if value is not None:
            runs[-1].append((index, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def nice(value: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, 50, ... that is not below the value."""
    if value <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)
