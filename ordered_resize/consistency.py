"""Contradictions between the znodes of one topic, which a manual edit can cause, or between znodes and logs.

No step of a resize leads to a contradiction. The controller freezes a topic with a contradiction, because it cannot
know which of two znodes is right. A wrong guess would break the order of keys.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

from anabranch.ordered_resize.layout import moves
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.protocol.key_placement import ancestors
from anabranch.protocol.sentinels import NO_EPOCH
from anabranch.zk_schemas.partition_state import LineageEntry, PartitionLayout, PartitionState
from anabranch.zk_schemas.topic import TopicZnode

PROVEN = ("initial_partition_count", "undeleted_partition_count", "layout_version", "last_leader_epochs")
"""Fields that a tool may drop only from a topic that was never resized."""
Node: TypeAlias = tuple[int, int]
"""A partition, and the leader epoch of one of its entries."""


def contradictions(snapshot: Snapshot) -> list[str]:
    """The contradictions, in sentences that name znode and field; empty: the topic is not frozen."""
    topic = snapshot.topic
    if newer := [
        f"partition {p}: {state.newer_log}" for p, state in sorted(snapshot.states.items()) if state.newer_log
    ]:
        return newer
    if why := counts_at_odds(topic):
        return [why]
    was_resized = topic.layout_version > 0 or any(state.layout is not None for state in snapshot.states.values())
    if was_resized and (dropped := [name for name in PROVEN if name in topic.absent]):
        return [f"{dropped[0]} is missing, and the topic was resized"]
    led = max((p for p, state in snapshot.states.items() if not state.never_led), default=-1) + 1
    if not was_resized and led > topic.initial_partition_count:
        return [
            f"initial_partition_count is {topic.initial_partition_count}, but the topic was never resized and"
            f" {led} partitions have had a leader"
        ]
    return [
        f"partition {p}: {why}"
        for p, state in sorted(snapshot.states.items())
        for why in _bad_state(snapshot, p, state)
    ] + [*_missing(snapshot, was_resized=was_resized), *lineage_contradictions(snapshot), *_early_end(snapshot)]


def as_served(snapshot: Snapshot) -> TopicZnode:
    """A frozen topic as clients and brokers see it: the newest layout that a partition has, and nothing moves.

    This view must not be written, because the stored znode may be the right one.
    """
    topic, states = snapshot.topic, snapshot.states
    first = PartitionLayout(topic.initial_partition_count, 0)
    newest = max(
        (stored for p in states if (stored := snapshot.stored(p))), key=lambda s: s.layout_version, default=first
    )
    counted = min(newest.undeleted_partition_count, len(topic.partitions))
    named = [state.initial_partition_count for state in states.values() if state.initial_partition_count is not None]
    initial = max(named, key=named.count, default=topic.initial_partition_count)
    return topic.replace(
        initial_partition_count=min(initial, counted),
        undeleted_partition_count=counted,
        layout_version=newest.layout_version,
        previous_undeleted_partition_count=None,
        wanted=None,
        absent=frozenset(),
    )


def counts_at_odds(topic: TopicZnode) -> str | None:
    """Why the counts of a topic are impossible together; None if they are possible."""
    initial, counted, assigned = (
        topic.initial_partition_count,
        topic.undeleted_partition_count,
        len(topic.partitions),
    )
    before = topic.previous_undeleted_partition_count
    if removed := [p for p in topic.last_leader_epochs if p < initial]:
        return f"last_leader_epochs names partition {removed[0]}; the first {initial} partitions are never removed"
    if not initial <= counted <= assigned:
        return (
            f"initial_partition_count {initial}, undeleted_partition_count {counted} and the {assigned} assigned"
            " partitions must be in ascending order"
        )
    if before is not None and before < initial:
        return f"previous_undeleted_partition_count {before} is below initial_partition_count {initial}"
    return None


def _bad_state(snapshot: Snapshot, p: int, state: PartitionState) -> Iterator[str]:
    """The contradictions of a state, such as a wrong layout, or an epoch of a removed incarnation."""
    topic, stored = snapshot.topic, snapshot.stored(p)
    if stored is None:
        return
    if state.never_led:
        yield "isr is empty, but a partition that loses its leader keeps its ISR"
        return
    if state.being_removed and p < topic.undeleted_partition_count:
        yield "leader -2 marks it as being removed, but undeleted_partition_count counts it"
    replicas = topic.partitions.get(p)
    if replicas is not None and (foreign := [broker for broker in state.isr if broker not in replicas]):
        yield f"broker {foreign[0]} is in its isr, but not among its assigned replicas"
    initial = topic.initial_partition_count
    if state.initial_partition_count not in (None, initial):
        yield f"initial_partition_count is {state.initial_partition_count}, and the topic's is {initial}"
        return
    removed = topic.last_leader_epochs.get(p, NO_EPOCH)
    first = state.lineage[0].epoch if state.lineage else state.leader_epoch
    if first <= removed:
        yield f"it has leader epoch {first}, but by last_leader_epochs of the topic it was removed at {removed}"
    had = [stored, state.before.layout] if state.before is not None else [stored]
    if small := [layout for layout in had if layout.undeleted_partition_count < initial]:
        field = "layout" if small[0] is stored else "before"
        yield f"{field} is {_shown(small[0])}, fewer than the {initial} that the topic was created with"
        return
    goal = PartitionLayout(topic.undeleted_partition_count, topic.layout_version)
    before = topic.previous_undeleted_partition_count
    is_moving = before is not None and before != goal.undeleted_partition_count
    prior = PartitionLayout(before, goal.layout_version - 1) if before is not None and is_moving else None
    if prior is not None and p < prior.undeleted_partition_count:
        replaced = state.before.layout if state.before is not None else None
        if stored == goal and replaced != prior:
            was = "nothing" if replaced is None else _shown(replaced)
            yield f"before is {was}, though the resize began with {_shown(prior)}"
        elif stored not in (goal, prior):
            yield f"layout is {_shown(stored)}, not the topic's ({_shown(goal)}) or its previous one ({_shown(prior)})"
    elif stored.layout_version > goal.layout_version:
        yield f"layout is {_shown(stored)}, newer than the topic's ({_shown(goal)})"
    elif stored.layout_version == goal.layout_version and stored != goal:
        yield f"layout is {_shown(stored)}, but the topic's layout of this version is {_shown(goal)}"
    elif stored != goal and p >= (prior or goal).undeleted_partition_count and stored.undeleted_partition_count > p:
        yield f"layout ({_shown(stored)}) counts the partition, but the topic's ({_shown(prior or goal)}) does not"
    elif prior is None:
        yield from _against_cancel(p, had, goal, initial)


def _against_cancel(p: int, had: list[PartitionLayout], goal: PartitionLayout, initial: int) -> Iterator[str]:
    """Contradictions in a topic where no keys move, because the last resize was cancelled or there was none."""
    stored, version = had[0], goal.layout_version
    for layout in (layout for layout in had if layout.layout_version == version - 1):
        if p in moves(initial, goal.undeleted_partition_count, layout.undeleted_partition_count).losers_of:
            yield f"it gained keys under {_shown(layout)}, a resize that the topic cancelled with {_shown(goal)}"
    is_counted = p < goal.undeleted_partition_count
    if (
        is_counted
        and stored.layout_version < version - 1
        and stored != PartitionLayout(goal.undeleted_partition_count, version - 2)
    ):
        yield f"layout is {_shown(stored)}, too old for the topic's ({_shown(goal)})"


def _missing(snapshot: Snapshot, *, was_resized: bool) -> Iterator[str]:
    """Replicas missing for partitions with a state, states missing that no resize creates, and losers removed early.

    A loser must not be removed before its gainer is bumped.
    """
    for p in sorted(snapshot.states.keys() - snapshot.topic.partitions.keys()):
        yield f"partition {p}: it has a state, but no replicas are assigned to it"
    losers_of = snapshot.moves.losers_of
    for p in range(snapshot.topic.undeleted_partition_count) if was_resized else ():
        if p not in snapshot.states and p not in snapshot.unreadable and p not in losers_of:
            yield f"partition {p}: undeleted_partition_count counts it, but it has no state"
    for p, losers in losers_of.items():
        gone = [q for q in losers if q not in snapshot.states and q not in snapshot.unreadable]
        if gone and not snapshot.has_goal(p) and p not in snapshot.unreadable:
            yield f"partition {p}: it gains keys of partition {gone[0]}, which has no state"


def _early_end(snapshot: Snapshot) -> Iterator[str]:
    """A topic's znode that says too early that the resize is over."""
    topic = snapshot.topic
    finished, version = topic.finished_layout_version, topic.layout_version
    if finished is not None and finished > version:
        yield f"finished_layout_version is {finished}, above layout_version {version}"
    known = set(range(topic.undeleted_partition_count)) - set(snapshot.unreadable)
    left = sorted(p for p in known if not snapshot.has_goal(p))
    if finished == version and version > 0 and left:
        lacks = "it lacks the layout that is" if left[0] in snapshot.states else "it has no state, but its resize is"
        yield f"partition {left[0]}: {lacks} over by finished_layout_version {finished}"


def _shown(layout: PartitionLayout) -> str:
    return f"{layout.undeleted_partition_count} partitions in version {layout.layout_version}"


def lineage_contradictions(snapshot: Snapshot) -> list[str]:
    """Sentences about lineage entries that no resize writes. Each sentence names a partition and an entry."""
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
        elif min(p, q) not in ancestors(max(p, q), initial):
            yield q, f"which never has a key of partition {p}"
        elif f >= known:
            yield q, f"up to leader epoch {f}, which has not ended: partition {q} is at leader epoch {known}"


def _cycle(snapshot: Snapshot) -> Iterator[str]:
    """A cycle of entries that wait for each other.

    An entry waits for the entry before it. For each loser, it also waits for the loser's last entry up to the named
    epoch.
    """
    epochs = {p: [entry.epoch for entry in state.lineage] for p, state in snapshot.states.items()}
    graph: dict[Node, list[Node]] = {}
    for p, state in snapshot.states.items():
        for index, (epoch, losers) in enumerate(state.lineage):
            needs = [(p, epochs[p][index - 1])] if index else []
            for q, f in losers.items():
                counted = bisect_right(epochs.get(q, []), f)
                if counted and snapshot.topic.last_leader_epochs.get(q, NO_EPOCH) < f:
                    needs.append((q, epochs[q][counted - 1]))
            graph[p, epoch] = needs
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        nodes: list[Node] = error.args[1]
        way = ", then ".join(f"partition {q} from leader epoch {epoch} on" for q, epoch in nodes)
        yield f"lineage of partition {nodes[0][0]}: its entries wait for each other: {way}"
