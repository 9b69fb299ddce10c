"""What cannot be: znodes of one topic that contradict each other, as an edit by hand leaves them.

No step of a resize leads there. Who finds a contradiction freezes the topic: which of two znodes is right is a guess,
and a wrong guess breaks the order of keys.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

from ordered_resize.snapshot import Snapshot
from protocol.key_placement import ancestors
from zk_schemas.partition_state import LineageEntry

Node: TypeAlias = tuple[int, int]
"""A partition, and the leader epoch of one of its entries."""


def lineage_contradictions(snapshot: Snapshot) -> list[str]:
    """Entries that no resize writes, in words that name partition and entry; empty: there are none."""
    found = [
        f"lineage of partition {p}: from leader epoch {entry.epoch} on it names partition {q}, {why}"
        for p, state in sorted(snapshot.states.items())
        for entry in state.lineage
        for q, why in _bad_losers(snapshot, p, entry)
    ]
    return found or list(_cycle(snapshot))


def _bad_losers(snapshot: Snapshot, p: int, entry: LineageEntry) -> Iterator[tuple[int, str]]:
    initial = snapshot.topic.initial_partition_count
    for q, f in entry.losers.items():
        known = snapshot.leader_epoch(q)
        if q == p:
            yield q, "itself"
        elif q in snapshot.unreadable:
            continue
        elif known < 0:
            yield q, "which never existed"
        elif q not in ancestors(p, initial) and p not in ancestors(q, initial):
            yield q, f"which never has a key of {p}"
        elif f >= known:
            yield q, f"up to leader epoch {f}, which has not ended: it is at {known}"


def _cycle(snapshot: Snapshot) -> Iterator[str]:
    """Whether something waits for itself. An entry needs the one before it, and of each loser the last that counts."""
    epochs = {p: [entry.epoch for entry in state.lineage] for p, state in snapshot.states.items()}
    graph: dict[Node, list[Node]] = {}
    for p, state in snapshot.states.items():
        for index, (epoch, losers) in enumerate(state.lineage):
            needs = [(p, epochs[p][index - 1])] if index else []
            for q, f in losers.items():
                counted = bisect_right(epochs.get(q, []), f)
                if counted and snapshot.topic.last_leader_epochs.get(q, -1) < f:
                    needs.append((q, epochs[q][counted - 1]))
            graph[p, epoch] = needs
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        nodes: list[Node] = error.args[1]
        way = ", then ".join(f"{q} from leader epoch {epoch}" for q, epoch in nodes)
        yield f"lineage of partition {nodes[0][0]}: it waits for itself: {way}"
