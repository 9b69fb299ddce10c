"""Draws a topic's splits and merges over time as a tree, from its partitions' lineages. Pure (KIP-253).

An entry of a lineage means that a partition gained keys of other partitions. The entries in one column may belong to
the same resize: no entry requires another entry of the column, and all took effect within ``TOGETHER_MS``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from anabranch.ordered_resize.facts import Lineage

TOGETHER_MS = 1_500
LANE_PX, COLUMN_PX, LEFT_PX, TOP_PX, RIGHT_PX = 30, 110, 64, 30, 64
AGAIN_PX = 80
"""The drawn length of a period of use between two merges, when the split that began the period is not known."""
LEAVES_PX = 40
"""The length of a deleted partition's lane after its merge: the time of the deletion is not known."""


class Gain(NamedTuple):
    """From its leader epoch ``epoch`` on, ``partition`` has keys of the ``losers``.

    ``losers`` are the last epochs in which other partitions had the keys, by partition.
    """

    partition: int
    epoch: int
    losers: Mapping[int, int]


class At(NamedTuple):
    """A time in ms since 1970: that of an event, or else one before which the event was."""

    ms: int
    is_exact: bool = True


class Column(NamedTuple):
    """Gains that may belong to one resize; ``at`` is the earliest known start of a gain."""

    gains: list[Gain]
    at: At | None


class DrawnLane(NamedTuple):
    """One partition, in px. ``spans`` are (from, to, was in use); an unused partition was marked for deletion."""

    partition: int
    y: int
    spans: list[tuple[int, int, bool]]
    state: str
    """``in use``, ``drains`` or ``deleted``: now."""
    unknown: list[int]
    """The places where a period of use begins with an unknown split."""

    @property
    def end_x(self) -> int:
        return self.spans[-1][1] if self.spans else LEFT_PX


class DrawnEdge(NamedTuple):
    """An arrow for keys that move from one lane to another, in px."""

    kind: str
    """``split`` or ``merge``."""
    source: int
    target: int
    epoch: int
    loser_epoch: int
    path: str
    x: int
    y: int
    at: At | None = None


class Forgotten(NamedTuple):
    """Splits and merges that are no longer known: the cluster drops them when it deletes partitions."""

    splits: list[int]
    """Partitions created by a split that is in no lineage any more."""
    before_ms: int | None
    """The last of these splits was before this time, in ms since 1970; None if the time is not known."""
    merges: list[int]
    """Partitions whose lineages have lost merges."""


class DrawnTree(NamedTuple):
    width: int
    height: int
    lanes: list[DrawnLane]
    edges: list[DrawnEdge]
    columns: list[tuple[int, At | None]]
    """The columns as (x in px, time)."""
    left_out: int
    """The number of partitions that are not drawn."""
    end_x: int
    """Where all lanes of existing partitions end, in px."""
    forgotten: Forgotten


def gains_of(lineages: Mapping[int, Lineage]) -> list[Gain]:
    """All gains in the lineages."""
    return [
        Gain(p, entry.epoch, entry.losers)
        for p, lineage in lineages.items()
        for entry in lineage.entries
        if entry.losers
    ]


def times_of(lineages: Mapping[int, Lineage]) -> dict[tuple[int, int], At]:
    """The times of gains that ZooKeeper has, by (partition, epoch)."""
    return {(p, epoch): At(ms) for p, lineage in lineages.items() for epoch, ms in lineage.times_ms.items()}


def columns_of(gains: Collection[Gain], times: Mapping[tuple[int, int], At]) -> list[Column]:
    """The columns of gains, in order. ``times`` are the known times of gains, by (partition, epoch)."""
    waiting = {(gain.partition, gain.epoch): gain for gain in gains}
    found: list[Column] = []
    placed: set[int] = set()
    while waiting:
        ready = [gain for gain in waiting.values() if not _needs(gain, waiting)]
        if not ready:
            ready = list(waiting.values())  # lineages contradict each other, so no order is possible
        dated = [(gain, times.get((gain.partition, gain.epoch))) for gain in ready]
        first = min((at for _, at in dated if at is not None), default=None)
        if first is not None:
            limit_ms = first.ms + TOGETHER_MS
            later = [gain.partition for gain, at in dated if at is not None and at.ms > limit_ms]
            after = min((p for p in later if p not in placed), default=None)
            ready = [
                gain
                for gain, at in dated
                if (at is None and not _is_created_after(gain, after)) or (at is not None and at.ms <= limit_ms)
            ]
        found.append(Column(sorted(ready, key=lambda gain: gain.partition), first))
        for gain in ready:
            placed.add(gain.partition)
            del waiting[gain.partition, gain.epoch]
    return found


def _is_created_after(gain: Gain, partition: int | None) -> bool:
    """Whether the gain is a split that created a partition with a higher number than ``partition``."""
    return partition is not None and gain.partition > partition and all(p < gain.partition for p in gain.losers)


def _needs(gain: Gain, waiting: Mapping[tuple[int, int], Gain]) -> bool:
    """Whether a gain that has no column yet came before ``gain``."""
    return any(
        (p == gain.partition and epoch < gain.epoch) or (p in gain.losers and epoch <= gain.losers[p])
        for p, epoch in waiting
        if (p, epoch) != (gain.partition, gain.epoch)
    )


class _Turn(NamedTuple):
    """A place where the use of a lane begins (``is_split``) or ends."""

    x: int
    is_split: bool
    at_ms: int | None


def draw(
    partitions: Collection[int],
    in_use: int,
    initial: int,
    columns: list[Column],
    most_lanes: int,
    most_columns: int,
    floors: Collection[int] = (),
) -> DrawnTree:
    """Draw partitions as lanes from top to bottom, and the newest ``most_columns`` columns from left to right.

    ``partitions`` exist; other partitions in the columns are deleted. ``floors``: partitions with lost lineage entries.
    """
    exist = set(partitions)
    named = exist | {p for column in columns for gain in column.gains for p in (gain.partition, *gain.losers)}
    chosen = sorted(named)[:most_lanes]
    y_of = {p: TOP_PX + LANE_PX * i + LANE_PX // 2 for i, p in enumerate(chosen)}
    first = max(0, len(columns) - most_columns)
    end_x = LEFT_PX + COLUMN_PX * (len(columns) - first + 1)
    turns: dict[int, list[_Turn]] = {}
    edges, heads = [], []
    for i, column in enumerate(columns, 1 - first):
        x = LEFT_PX + COLUMN_PX * max(0, i)
        if i > 0:
            heads.append((x, column.at))
        for gain in column.gains:
            for loser, loser_epoch in sorted(gain.losers.items()):
                kind = "split" if loser < gain.partition else "merge"
                turn = _Turn(x, kind == "split", None if column.at is None else column.at.ms)
                turns.setdefault(gain.partition if kind == "split" else loser, []).append(turn)
                if i > 0 and loser in y_of and gain.partition in y_of and loser != gain.partition:
                    edges.append(_edge(kind, loser, gain, loser_epoch, x, y_of)._replace(at=column.at))
    lanes, before = [], []
    for p in chosen:
        state = "deleted" if p not in exist else "in use" if p < in_use else "drains"
        lane, times = _lane(p, y_of[p], state, turns.get(p, []), end_x, is_initial=p < initial)
        lanes.append(lane)
        before += times
    known = [at_ms for at_ms in before if at_ms is not None]
    forgotten = Forgotten(
        [lane.partition for lane in lanes if lane.unknown],
        max(known) if len(known) == len(before) and known else None,
        sorted(set(floors) & set(chosen)),
    )
    height = TOP_PX + LANE_PX * len(chosen) + 8
    return DrawnTree(end_x + RIGHT_PX, height, lanes, edges, heads, len(named) - len(chosen), end_x, forgotten)


def _lane(
    partition: int, y: int, state: str, turns: list[_Turn], end_x: int, *, is_initial: bool
) -> tuple[DrawnLane, list[int | None]]:
    """Return a lane, and the times of merges that ended a period of use whose start is unknown.

    A partition is in use before its merge, even if its split is in no lineage any more.
    """
    spans: list[tuple[int, int, bool]] = []
    unknown: list[int] = []
    times: list[int | None] = []
    opened = LEFT_PX if is_initial or (not turns and state == "in use") else None
    closed = LEFT_PX if not is_initial and not turns and state == "drains" else None
    for x, is_split, at_ms in turns:
        if is_split:
            if closed is not None:
                spans.append((closed, x, False))
            opened, closed = x if opened is None else opened, None
            continue
        if opened is None:
            opened = LEFT_PX if closed is None else max(closed, x - AGAIN_PX)
            if closed is not None:
                spans.append((closed, opened, False))
            unknown.append(opened)
            times.append(at_ms)
        spans.append((opened, x, True))
        opened, closed = None, x
    if opened is not None:
        spans.append((opened, end_x, True))
    elif closed is not None:
        spans.append((closed, min(end_x, closed + LEAVES_PX) if state == "deleted" else end_x, False))
    return DrawnLane(partition, y, [span for span in spans if span[1] > span[0]], state, unknown), times


def _edge(kind: str, loser: int, gain: Gain, loser_epoch: int, x: int, y_of: Mapping[int, int]) -> DrawnEdge:
    y0, y1 = y_of[loser], y_of[gain.partition]
    path = f"M{x - COLUMN_PX // 2} {y0} C{x - 10} {y0} {x - COLUMN_PX // 2 + 10} {y1} {x} {y1}"
    return DrawnEdge(kind, loser, gain.partition, gain.epoch, loser_epoch, path, x, y1)


def named_partitions(numbers: Iterable[int]) -> str:
    """Ascending partition numbers in words, such as ``partitions 4-7, 9``."""
    runs: list[list[int]] = []
    for p in numbers:
        if runs and runs[-1][1] == p - 1:
            runs[-1][1] = p
        else:
            runs.append([p, p])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return ("partition " if texts and texts[0].isdigit() and len(texts) == 1 else "partitions ") + ", ".join(texts)
