"""The waits between partitions as a graph: a waiting partition is left of those that it waits for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from anabranch.protocol.plurals import counted

BOX_W, BOX_H, GAP_X, GAP_Y, EDGE_PX = 150, 44, 110, 14, 8
MOST_TEXT = 18
"""The largest number of letters of a topic's or member's name in a box."""


class Box(NamedTuple):
    """A partition, in px; ``reader`` reads it; ``waits``, ``blocks``: it is blocked, or blocks another one, now."""

    topic: str
    partition: int
    x: int
    y: int
    reader: str
    waits: bool
    blocks: bool


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
    box_height: int = BOX_H


def graph_of(waits: Sequence[Mapping[str, Any]], most: int) -> Graph:
    """The graph of the first ``most`` waits of ``Watch.group``. Partitions that wait for nothing are on the right."""
    waits = waits[:most]
    edges = [((w["topic"], w["partition"]), (w["topic"], w["waits_for"])) for w in waits]
    depth = _depths(edges)
    deepest = max(depth.values(), default=0)
    columns: dict[int, list[tuple[str, int]]] = {}
    for place in sorted(depth):
        columns.setdefault(deepest - depth[place], []).append(place)
    at = {
        place: (EDGE_PX + column * (BOX_W + GAP_X), EDGE_PX + row * (BOX_H + GAP_Y))
        for column, places in columns.items()
        for row, place in enumerate(places)
    }
    readers = {(w["topic"], w["waits_for"]): w["client_id"] or w["member"] or "nobody reads it" for w in waits}
    blocked = {edge for edge, w in zip(edges, waits, strict=True) if w["blocked"]}
    boxes = [
        Box(
            _cut(topic), partition, x, y, _cut(readers.get((topic, partition), "")),
            any(waiting == (topic, partition) for waiting, _ in blocked),
            any(on == (topic, partition) for _, on in blocked),
        )
        for (topic, partition), (x, y) in at.items()
    ]  # fmt: skip
    arrows = [_arrow(at[waiting], at[on], wait) for (waiting, on), wait in zip(edges, waits, strict=True)]
    rows = max((len(places) for places in columns.values()), default=0)
    width = 2 * EDGE_PX + (deepest + 1) * BOX_W + deepest * GAP_X
    return Graph(width, 2 * EDGE_PX + rows * (BOX_H + GAP_Y), boxes, arrows)


def _depths(edges: Sequence[tuple[tuple[str, int], tuple[str, int]]]) -> dict[tuple[str, int], int]:
    """The longest path from each partition to one that waits for nothing; 0 for all if the waits form a cycle."""
    depth = {place: 0 for edge in edges for place in edge}
    for _ in depth:
        changed = False
        for waiting, on in edges:
            if depth[waiting] <= depth[on]:
                depth[waiting], changed = depth[on] + 1, True
        if not changed:
            return depth
    return dict.fromkeys(depth, 0)


def _arrow(start: tuple[int, int], end: tuple[int, int], wait: Mapping[str, Any]) -> Arrow:
    x0, y0, x1, y1 = start[0] + BOX_W, start[1] + BOX_H // 2, end[0], end[1] + BOX_H // 2
    known = wait["until"] is not None and wait["position"] is not None
    count = max(0, wait["until"] - wait["position"]) if known else None
    left = "" if count is None else f"{count:,}"
    records = "the records" if count is None else counted(count, "record", form=",")
    title = f"partition {wait['partition']} waits for {records} of partition {wait['waits_for']}"
    middle = (x0 + x1) // 2
    path = f"M{x0} {y0} C{middle} {y0} {middle} {y1} {x1 - 2} {y1}"
    # The text is beside the arrow's start, because several arrows may end at the same place.
    return Arrow(path, x0 + 6, y0 - 4, left, bool(wait["blocked"]), title)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"
