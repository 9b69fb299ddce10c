"""The waits between partitions as a graph: a waiting partition is left of the partitions that it waits for. Pure.

Partition A may wait for older records of B while newer records of B wait for A. So the waits between partitions may
form a cycle, although the waits between records do not. A wait that closes a cycle is drawn as a text in the box.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from anabranch.ordered_resize.explain import waits_for
from anabranch.view.groups import GroupWait

BOX_W, BOX_H, GAP_X, GAP_Y, EDGE_PX = 140, 44, 70, 14, 8
"""Two columns fit on a page of 390 px."""
LINE_PX, PORT_PX, LANE_PX = 18, 17, 22
"""The heights of a further text in a box, of the gap between two arrows of a box, and of an arrow between boxes."""
MOST_NAME, MOST_TEXT = 12, 17
"""In a box, a topic's name, and any other text, are cut to these numbers of letters."""

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""
Edge: TypeAlias = tuple[Place, Place]
"""The waiting partition, and the partition that it waits for."""


class Box(NamedTuple):
    """A partition and its ``reader``, in px. ``waits``: the partition is blocked; ``blocks``: it blocks another one."""

    topic: str
    partition: int
    x: int
    y: int
    height: int
    reader: str
    waits: bool
    blocks: bool
    notes: list[str]
    """The waits of this partition that have no arrow: waits for its own records, and waits that would close a cycle."""
    title: str


class Arrow(NamedTuple):
    """A wait. ``text`` is the number of records to read first; ``blocked``: the waiting partition delivers nothing."""

    path: str
    x: int
    y: int
    text: str
    blocked: bool
    title: str


class Graph(NamedTuple):
    width: int
    height: int
    boxes: list[Box]
    arrows: list[Arrow]
    box_width: int = BOX_W


def graph_of(
    waits: Sequence[GroupWait],
    most: int,
    nobody: str = "nobody reads it",
    former: Mapping[Place, str] = MappingProxyType({}),
) -> Graph:
    """The graph of the first ``most`` waits of ``Watch.group``. Partitions that wait for nothing are on the right.

    ``nobody``: the text for a partition without a reader; ``former``: the texts for partitions that lost their reader.
    """
    wait_of = {((w.topic, w.partition), (w.topic, w.waits_for)): w for w in waits[:most]}
    drawn, closing = _without_cycles(wait_of)
    drawn = _without_shortcuts(drawn)
    columns = _columns({place for edge in wait_of for place in edge}, drawn)
    notes = {place: _notes(place, wait_of, closing) for column in columns for place in column}
    out = {place: [edge for edge in drawn if edge[0] == place] for place in notes}
    into = {place: [edge for edge in drawn if edge[1] == place] for place in notes}
    heights = {
        place: max(BOX_H + LINE_PX * len(notes[place]), PORT_PX * (1 + max(len(out[place]), len(into[place]))))
        for place in notes
    }
    at, bends, height = _positions(columns, heights, drawn)
    boxes = [
        _box(place, at[place], heights[place], notes[place], wait_of, former.get(place, nobody)) for place in notes
    ]
    starts = _ports(out, {place: (x + BOX_W, y) for place, (x, y) in at.items()}, heights, _ways(drawn, bends, at, 1))
    ends = _ports(into, at, heights, _ways(drawn, bends, at, 0))
    arrows = [_arrow([starts[edge], *bends[edge], ends[edge]], wait_of[edge]) for edge in drawn]
    return Graph(len(columns) * (BOX_W + GAP_X) - GAP_X + 2 * EDGE_PX if columns else 0, height, boxes, arrows)


# ------------------------------------------------------------ edges


def _without_cycles(wait_of: Mapping[Edge, GroupWait]) -> tuple[list[Edge], list[Edge]]:
    """The waits as (acyclic waits, waits that would close a cycle).

    Waits are added in this order: waits that block a partition, other waits, waits for records that are blocked too.
    """
    waits_from = {waiting: wait.from_epoch for (waiting, _), wait in wait_of.items()}

    def rank(edge: Edge) -> tuple[bool, bool]:
        wait, on = wait_of[edge], edge[1]
        return on in waits_from and wait.epoch >= waits_from[on], not wait.blocked

    kept: list[Edge] = []
    closing = []
    for edge in sorted(wait_of, key=rank):
        if edge[0] in _reached(edge[1], kept):
            closing.append(edge)
        else:
            kept.append(edge)
    return [edge for edge in wait_of if edge in set(kept)], closing


def _without_shortcuts(edges: list[Edge]) -> list[Edge]:
    """The edges that do not follow from other edges: 8 -> 0 follows from 8 -> 4 and 4 -> 0."""
    return [
        (waiting, on)
        for waiting, on in edges
        if not any(other == waiting and via != on and on in _reached(via, edges) for other, via in edges)
    ]


def _reached(place: Place, edges: Collection[Edge]) -> set[Place]:
    """The place, and all places that it waits for, directly or through other places."""
    found, todo = {place}, [place]
    while todo:
        at = todo.pop()
        more = {on for waiting, on in edges if waiting == at} - found
        found |= more
        todo.extend(more)
    return found


# ------------------------------------------------------------ places


def _columns(places: Collection[Place], edges: Sequence[Edge]) -> list[list[Place]]:
    """Order the places from left to right. Each place is as near as possible to the places that it waits for."""
    depth = dict.fromkeys(sorted(places), 0)
    for _ in depth:  # the longest path to a place that waits for nothing has fewer steps than places
        for waiting, on in edges:
            depth[waiting] = max(depth[waiting], depth[on] + 1)
    columns: list[list[Place]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    row: dict[Place, float] = {}
    for column in range(len(columns)):
        of_column = [place for place in depth if depth[place] == column]
        mean = {place: _mean([row[on] for waiting, on in edges if waiting == place]) for place in of_column}
        columns[-1 - column] = sorted(of_column, key=lambda place: (mean[place], place))
        row.update({place: index for index, place in enumerate(columns[-1 - column])})
    return columns


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _positions(
    columns: Sequence[Sequence[Place]], heights: Mapping[Place, int], edges: Sequence[Edge]
) -> tuple[dict[Place, tuple[int, int]], dict[Edge, list[tuple[int, int]]], int]:
    """The upper left corners of boxes, the points where edges enter columns that they pass, and the total height."""
    column_of = {place: index for index, column in enumerate(columns) for place in column}
    at: dict[Place, tuple[int, int]] = {}
    bends: dict[Edge, list[tuple[int, int]]] = {edge: [] for edge in edges}
    bottom = 0
    for index in reversed(range(len(columns))):
        x, y = EDGE_PX + index * (BOX_W + GAP_X), EDGE_PX
        for edge in edges:
            if column_of[edge[0]] < index < column_of[edge[1]]:
                bends[edge].insert(0, (x, y + LANE_PX // 2))
                y += LANE_PX
        for place in columns[index]:
            targets = [at[on][1] + heights[on] / 2 for waiting, on in edges if waiting == place]
            at[place] = (x, max(y, round(_mean(targets) - heights[place] / 2)))
            y = at[place][1] + heights[place] + GAP_Y
        bottom = max(bottom, y)
    return at, bends, bottom - GAP_Y + EDGE_PX


def _ways(
    edges: Sequence[Edge],
    bends: Mapping[Edge, Sequence[tuple[int, int]]],
    at: Mapping[Place, tuple[int, int]],
    far_end: int,
) -> dict[Edge, int]:
    """By edge, the y coordinate of the point next to one end of the edge."""
    return {
        edge: bends[edge][0 if far_end else -1][1] if bends[edge] else at[edge[far_end]][1] + BOX_H for edge in edges
    }


def _ports(
    edges_of: Mapping[Place, Sequence[Edge]],
    corners: Mapping[Place, tuple[int, int]],
    heights: Mapping[Place, int],
    ways: Mapping[Edge, int],
) -> dict[Edge, tuple[int, int]]:
    """The points on one side of each box where its edges touch it, in the order of ``ways``."""
    found = {}
    for place, edges in edges_of.items():
        x, y = corners[place]
        for index, edge in enumerate(sorted(edges, key=lambda edge: ways[edge]), 1):
            found[edge] = (x, y + heights[place] * index // (len(edges) + 1))
    return found


# ------------------------------------------------------------ content


def _notes(place: Place, wait_of: Mapping[Edge, GroupWait], closing: Collection[Edge]) -> list[str]:
    found = []
    if (own := wait_of.get((place, place))) is not None:
        left = own.left
        found.append(_cut("own records first" if left is None else f"own {_short(left)} first"))
    if later := [str(on[1]) for waiting, on in closing if waiting == place != on]:
        found.append(_cut(f"then waits for {', '.join(later)}"))
    return found


def _box(
    place: Place,
    at: tuple[int, int],
    height: int,
    notes: list[str],
    wait_of: Mapping[Edge, GroupWait],
    nobody: str,
) -> Box:
    topic, partition = place
    of_reader = next((w for (_, on), w in wait_of.items() if on == place), None)
    reader = "" if of_reader is None else of_reader.client_id or of_reader.member or nobody
    title = f"{topic} partition {partition}" + (f", read by {reader}" if reader else "")
    waits = any(waiting == place and wait.blocked for (waiting, _), wait in wait_of.items())
    blocks = any(on == place and wait.blocked for (_, on), wait in wait_of.items())
    name = _cut(topic, MOST_NAME)
    return Box(name, partition, *at, height, _cut(reader), waits, blocks, notes, title)


def _arrow(points: Sequence[tuple[int, int]], wait: GroupWait) -> Arrow:
    """An arrow through ``points``. At each point between its ends, the arrow runs straight for the width of a box."""
    (x0, y0), *others = points
    path, x, y = f"M{x0} {y0}", x0, y0
    for index, (x1, y1) in enumerate(others):
        is_last = index == len(others) - 1
        middle = (x + x1) // 2
        path += f" C{middle} {y} {middle} {y1} {x1 - 2 * is_last} {y1}" + ("" if is_last else f"h{BOX_W}")
        x, y = x1 + BOX_W, y1
    left = wait.left
    title = waits_for(f"partition {wait.partition}", left, f"partition {wait.waits_for}")
    # The text is beside the arrow's start, because several arrows may end at the same place.
    return Arrow(path, x0 + 6, y0 - 4, "" if left is None else _short(left), wait.blocked, title)


def _short(number: int) -> str:
    """The number in at most seven letters."""
    for unit, name in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number:,}"


def _cut(text: str, most: int = MOST_TEXT) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
