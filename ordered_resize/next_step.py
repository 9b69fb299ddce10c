"""The next writes of a resize: the phase of every partition, and a table from phase to step.

A resize begins with one write of the goal to the topic's znode: the count, the previous count, and a version. Losers
and gainers follow from the two counts. Then every partition gets the goal's layout in a separate bump: losers first,
and each gainer once the leaders of its losers have answered. A bump is one write of the leader epoch, the layout, the
replaced layout and epoch, and for a gainer the lineage entry. So none of these facts is stored without the others.

When every leader has acknowledged the layout, one more write records in the topic's znode that the resize is over.

No other state is kept: a newly elected controller continues from the same znodes, and asks the leaders again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias

from anabranch.ordered_resize import removal
from anabranch.ordered_resize.layout import Layout
from anabranch.ordered_resize.lineage import pruned, timed
from anabranch.ordered_resize.snapshot import Phase, Snapshot
from anabranch.protocol.sentinels import NO_EPOCH
from anabranch.zk_schemas.partition_state import Before, LineageEntry, PartitionState
from anabranch.zk_schemas.topic import TopicZnode

Assign: TypeAlias = Callable[[Sequence[int]], Mapping[int, list[int]]]
"""Replicas for partitions that have no replicas yet."""


@dataclass(frozen=True, slots=True)
class Step:
    """One atomic write of the active controller, done only if none of its znodes was changed in between.

    Steps of one call may be sent together. The next steps are computed only when all these steps are written. Otherwise
    the snapshot would lack an unfinished bump of a gainer, and the resize could be cancelled although a gainer is
    bumped.
    """

    name: str
    states: Mapping[int, PartitionState] = field(default_factory=dict)
    topic: TopicZnode | None = None
    deleted: Sequence[int] = ()
    """Partitions whose state znode is deleted."""


def next_steps(snapshot: Snapshot) -> list[Step]:
    """The steps that are due. Each step may be done alone, in any order, or not at all. Empty: the resize waits."""
    if snapshot.frozen or snapshot.unreadable:
        return []
    found = phases(snapshot)
    steps = [STEPS[phase](snapshot, partition) for partition, phase in found.items() if phase in STEPS]
    # One of them, because each may write the topic's znode.
    of_topic = _finish(snapshot) or _forget(snapshot, found) or _leave(snapshot, found)
    return [*steps, of_topic] if of_topic is not None else steps


def phases(snapshot: Snapshot) -> dict[int, Phase]:
    """The phase of each partition that is counted or exists, ascending. A frozen topic has no phases."""
    if snapshot.frozen:
        return {}
    counted = range(snapshot.topic.undeleted_partition_count)
    return {partition: phase_of(snapshot, partition) for partition in sorted({*counted, *snapshot.states})}


def phase_of(snapshot: Snapshot, partition: int) -> Phase:
    """The phase of a partition that is counted or exists."""
    state, losers_of = snapshot.states.get(partition), snapshot.moves.losers_of
    is_counted = partition < snapshot.topic.undeleted_partition_count
    if state is None and partition not in losers_of:
        return Phase.UNLED
    if state is not None and state.never_led:
        return Phase.UNLED
    if state is not None and state.being_removed:
        return Phase.DELETED if partition in snapshot.deleted else Phase.LEAVING
    if not snapshot.has_goal(partition) and partition in losers_of:
        if not losers_are_done(snapshot, losers_of[partition]):
            return Phase.BEHIND
        if state is None:
            return Phase.CREATE if snapshot.electable.get(partition) else Phase.LEADERLESS
        return Phase.GAIN
    if not snapshot.has_goal(partition) and (is_counted or partition in snapshot.moves.losers):
        return Phase.BUMP
    if partition not in snapshot.answered:
        return Phase.UNANSWERED
    return Phase.SETTLED if is_counted else Phase.DRAINING


def losers_are_done(snapshot: Snapshot, losers: Collection[int]) -> bool:
    """Whether no loser accepts the gainer's keys any more: each has the goal stored, and its leader answered (rule 3).

    A leader whose broker is no longer registered does not count as answered, because the broker may still serve.
    """
    return all(map(snapshot.has_confirmed_goal, losers))


def is_settled(snapshot: Snapshot) -> bool:
    """Whether the next resize may begin (rule 4): the goal is stored, and all counted partitions' leaders answered.

    Otherwise a leader two layouts behind could refuse a batch, and accept a late copy of this batch after the
    controller's next request.
    """
    counted = range(snapshot.topic.undeleted_partition_count)
    return snapshot.is_stored and all(partition in snapshot.answered for partition in counted)


def is_over(snapshot: Snapshot) -> bool:
    """Whether every counted partition's leader has acknowledged the topic's last resize at some time.

    Also true if the topic was never resized. A finished resize stays over when a partition then loses its leader. The
    next resize does not begin by this fact alone: see ``may_begin``.
    """
    return is_recorded(snapshot.topic) or is_settled(snapshot)


def is_recorded(topic: TopicZnode) -> bool:
    """Whether the topic's znode says that the last resize is over, or that there was none."""
    return topic.finished_layout_version == topic.layout_version or (
        topic.layout_version == 0 and topic.previous_undeleted_partition_count is None
    )


def _finish(snapshot: Snapshot) -> Step | None:
    """Record that the resize is over, if every leader has acknowledged it."""
    topic = snapshot.topic
    if is_recorded(topic) or not is_settled(snapshot):
        return None
    return Step("finished", topic=topic.replace(finished_layout_version=topic.layout_version))


# ---------------------------------------------------------------- the goal


def may_begin(snapshot: Snapshot, count: int) -> bool:
    """Whether a resize to ``count`` may begin now. It must not count a partition that is being removed."""
    leaving = [partition for partition, state in snapshot.states.items() if state.being_removed]
    return is_settled(snapshot) and count <= min(leaving, default=count)


def begun(snapshot: Snapshot, count: int, assign: Assign) -> TopicZnode:
    """The write that begins a resize of a settled topic. Until the first bump, this is the resize's only write."""
    topic = snapshot.topic
    new = [partition for partition in range(count) if partition not in topic.partitions]
    return topic.replace(
        partitions={**topic.partitions, **assign(new)},
        undeleted_partition_count=count,
        previous_undeleted_partition_count=topic.undeleted_partition_count,
        layout_version=topic.layout_version + 1,
        wanted=None,
    )


def may_cancel(snapshot: Snapshot) -> bool:
    """Whether the resize in progress can be cancelled now: no gainer was bumped, so no partition has a moved key."""
    gainers = snapshot.moves.losers_of
    return bool(gainers) and not any(snapshot.has_goal(gainer) for gainer in gainers)


def cancelled(snapshot: Snapshot) -> TopicZnode:
    """The previous count under a new version: no partition loses or gains keys.

    Partitions that were not created yet are removed from the assignment.
    """
    topic = snapshot.topic
    before = topic.previous_undeleted_partition_count
    assert before is not None
    kept = {p: replicas for p, replicas in topic.partitions.items() if p < before or p in snapshot.states}
    return topic.replace(
        partitions=kept,
        undeleted_partition_count=before,
        previous_undeleted_partition_count=before,
        layout_version=topic.layout_version + 1,
        wanted=None,
    )


# ---------------------------------------------------------------- bumps


def _bump(snapshot: Snapshot, partition: int) -> Step:
    """One write of leader epoch, layout, the replaced layout and epoch, and a gainer's entry (rule 2)."""
    state, layout = snapshot.states[partition], snapshot.stored(partition)
    assert layout is not None
    epoch = state.leader_epoch + 1
    kept, floor = pruned(state.lineage, state.floor, snapshot.topic.last_leader_epochs)
    lineage = (*kept, *entries_of(snapshot, partition, epoch))
    bumped = state.replace(
        controller_epoch=snapshot.controller_epoch,
        leader_epoch=epoch,
        layout=Layout.goal(snapshot.topic).stored,
        initial_partition_count=snapshot.topic.initial_partition_count,
        before=Before(layout, state.leader_epoch),
        lineage=lineage,
        lineage_times=timed(lineage, {**state.lineage_times, epoch: snapshot.now_ms}),
        floor=floor,
    )
    return Step("bump", {partition: bumped})


def _create(snapshot: Snapshot, partition: int) -> Step:
    """A state with its first leader.

    Its leader epoch is above the last epoch of this partition number (rules 3, 7), also in deleted topics of this name.
    """
    in_sync = snapshot.electable[partition]
    epoch = max(snapshot.topic.last_leader_epochs.get(partition, NO_EPOCH) + 1, snapshot.first_leader_epoch)
    lineage = entries_of(snapshot, partition, epoch)
    created = PartitionState(
        snapshot.controller_epoch,
        in_sync[0],
        epoch,
        in_sync,
        layout=Layout.goal(snapshot.topic).stored,
        initial_partition_count=snapshot.topic.initial_partition_count,
        lineage=lineage,
        lineage_times=timed(lineage, {epoch: snapshot.now_ms}),
    )
    return Step("create", {partition: created})


def entries_of(snapshot: Snapshot, partition: int, epoch: int) -> tuple[LineageEntry, ...]:
    """The entry of a gainer at a leader epoch: each of its losers with the last epoch before the loser's bump."""
    losers = snapshot.moves.losers_of.get(partition, ())
    return (LineageEntry(epoch, {loser: last_epoch(snapshot, loser) for loser in losers}),) if losers else ()


def last_epoch(snapshot: Snapshot, loser: int) -> int:
    """The loser's last leader epoch under the previous layout, from its own znode. No election changes this value."""
    before = snapshot.states[loser].before
    assert before is not None
    return before.leader_epoch


# ---------------------------------------------------------------- removal


def _leave(snapshot: Snapshot, found: Mapping[int, Phase]) -> Step | None:
    """Begin to remove the highest partitions."""
    leaving = removal.leaving(snapshot, found)
    return Step("leave", leaving, removal.with_ends(snapshot, leaving)) if leaving else None


def _forget(snapshot: Snapshot, found: Mapping[int, Phase]) -> Step | None:
    """End the removal of partitions whose replicas are all deleted."""
    gone = removal.gone(snapshot, found)
    return Step("forget", topic=removal.without(snapshot, gone), deleted=gone) if gone else None


STEPS: Final[Mapping[Phase, Callable[[Snapshot, int], Step]]] = MappingProxyType(
    {Phase.BUMP: _bump, Phase.GAIN: _bump, Phase.CREATE: _create}
)
"""The step of each phase with a step. Removals are joined: see ``removal``."""
