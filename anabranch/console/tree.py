"""The tree of splits and merges of a topic over time, from the lineages of its partitions. Pure (KIP-253).

An entry of a lineage means that a partition gained keys of others. Entries in one column may belong to the same resize:
none of them needs another one of the column, and all began within ``TOGETHER_MS``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from anabranch.ordered_resize.facts import Lineage

TOGETHER_MS = 1_500
LANE_PX, COLUMN_PX, LEFT_PX, TOP_PX, RIGHT_PX = 30, 110, 64, 30, 190


class Gain(NamedTuple):
    """``partition`` has keys of the ``losers`` from its leader epoch ``epoch`` on.

    ``losers`` are the last epochs in which other partitions had the keys, by partition.
    """

    partition: int
    epoch: int
    losers: Mapping[int, int]


class Column(NamedTuple):
    """Gains that may belong to one resize; ``at_ms`` is the earliest known time of their begin, in ms since 1970."""

    gains: list[Gain]
    at_ms: int | None


class Lane(NamedTuple):
    """One partition, in px. ``spans`` are (from, to, was in use); when not in use, it was marked for deletion."""

    partition: int
    y: int
    spans: list[tuple[int, int, bool]]

    @property
    def end_x(self) -> int:
        return self.spans[-1][1] if self.spans else LEFT_PX

    @property
    def is_in_use(self) -> bool:
        return not self.spans or self.spans[-1][2]


class Edge(NamedTuple):
    """Keys that go from one lane to another, in px."""

    kind: str
    """``split`` or ``merge``."""
    source: int
    target: int
    epoch: int
    loser_epoch: int
    path: str
    x: int
    y: int


class Tree(NamedTuple):
    width: int
    height: int
    lanes: list[Lane]
    edges: list[Edge]
    columns: list[tuple[int, int | None]]
    """The columns as (x in px, ms since 1970 or None)."""
    left_out: int
    """The number of partitions that are not drawn."""


def gains_of(lineages: Mapping[int, Lineage]) -> list[Gain]:
    """All gains in the lineages."""
    return [
        Gain(p, entry.epoch, entry.losers)
        for p, lineage in lineages.items()
        for entry in lineage.entries
        if entry.losers
    ]


def columns_of(gains: Collection[Gain], began_ms: Mapping[tuple[int, int], int]) -> list[Column]:
    """The columns of gains, in order. ``began_ms`` are the known times of first records, by (partition, epoch)."""
    waiting = {(gain.partition, gain.epoch): gain for gain in gains}
    found: list[Column] = []
    placed: set[int] = set()
    while waiting:
        ready = [gain for gain in waiting.values() if not _needs(gain, waiting)]
        if not ready:
            ready = list(waiting.values())  # lineages contradict each other, so there is no order
        times = [(gain, began_ms.get((gain.partition, gain.epoch))) for gain in ready]
        known = [time for _, time in times if time is not None]
        first = min(known, default=None)
        if first is not None:
            later = [gain.partition for gain, time in times if time is not None and time > first + TOGETHER_MS]
            after = min((p for p in later if p not in placed), default=None)
            ready = [
                gain
                for gain, time in times
                if (time is None and not _is_created_after(gain, after))
                or (time is not None and time <= first + TOGETHER_MS)
            ]
        found.append(Column(sorted(ready, key=lambda gain: gain.partition), first))
        for gain in ready:
            placed.add(gain.partition)
            del waiting[gain.partition, gain.epoch]
    return found


def _is_created_after(gain: Gain, partition: int | None) -> bool:
    """Whether the gain is a split that created a partition with a higher number than ``partition``, and so later."""
    return partition is not None and gain.partition > partition and all(p < gain.partition for p in gain.losers)


def _needs(gain: Gain, waiting: Mapping[tuple[int, int], Gain]) -> bool:
    """Whether a gain that is not in a column yet came before this one."""
    return any(
        (p == gain.partition and epoch < gain.epoch) or (p in gain.losers and epoch <= gain.losers[p])
        for p, epoch in waiting
        if (p, epoch) != (gain.partition, gain.epoch)
    )


def draw(
    partitions: Collection[int], in_use: int, initial: int, columns: list[Column], most_lanes: int, most_columns: int
) -> Tree:
    """Draw partitions as lanes from top to bottom, and the newest ``most_columns`` columns from left to right."""
    columns = columns[-most_columns:]
    named = set(partitions) | {p for column in columns for gain in column.gains for p in (gain.partition, *gain.losers)}
    chosen = sorted(named)[:most_lanes]
    y_of = {p: TOP_PX + LANE_PX * i + LANE_PX // 2 for i, p in enumerate(chosen)}
    end_x = LEFT_PX + COLUMN_PX * (len(columns) + 1)
    turns: dict[int, list[tuple[int, bool]]] = {p: [(LEFT_PX, True)] for p in chosen if p < initial}
    edges, heads = [], []
    for i, column in enumerate(columns, 1):
        x = LEFT_PX + COLUMN_PX * i
        heads.append((x, column.at_ms))
        for gain in column.gains:
            for loser, loser_epoch in sorted(gain.losers.items()):
                kind = "split" if loser < gain.partition else "merge"
                turns.setdefault(gain.partition if kind == "split" else loser, []).append((x, kind == "split"))
                if loser in y_of and gain.partition in y_of and loser != gain.partition:
                    edges.append(_edge(kind, loser, gain, loser_epoch, x, y_of))
    lanes = [Lane(p, y_of[p], _spans(turns.get(p) or [(LEFT_PX, p < in_use)], end_x)) for p in chosen]
    height = TOP_PX + LANE_PX * len(chosen) + 8
    return Tree(end_x + RIGHT_PX, height, lanes, edges, heads, len(named) - len(chosen))


def _spans(turns: list[tuple[int, bool]], end_x: int) -> list[tuple[int, int, bool]]:
    """The spans between ``turns``, which are the places where a lane starts or ends its use."""
    ends = [x for x, _ in turns[1:]] + [end_x]
    return [(x, end, in_use) for (x, in_use), end in zip(turns, ends, strict=True) if end > x]


def _edge(kind: str, loser: int, gain: Gain, loser_epoch: int, x: int, y_of: Mapping[int, int]) -> Edge:
    y0, y1 = y_of[loser], y_of[gain.partition]
    path = f"M{x - COLUMN_PX // 2} {y0} C{x - 10} {y0} {x - COLUMN_PX // 2 + 10} {y1} {x} {y1}"
    return Edge(kind, loser, gain.partition, gain.epoch, loser_epoch, path, x, y1)
