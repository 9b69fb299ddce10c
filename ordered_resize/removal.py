"""When a marked partition is removed: the groups that it waits for, and the partitions that are removed next.

``delete_when_drained`` has the configuration that decides whether records are deleted before they expire. A partition
that waits for nothing is *drained*. Drained partitions are removed from the highest number down.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from anabranch.ordered_resize.explain import SOME_READER, Wait
from anabranch.ordered_resize.progress import Pair, ReadProgress
from anabranch.ordered_resize.snapshot import Phase, Snapshot
from anabranch.protocol.sentinels import LEADER_DURING_DELETE
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode

MAX_TOGETHER = 100
"""The most partitions removed in one write. Each takes two operations, and each write gives the topic a new id."""
MAX_BYTES_TOGETHER = 256 * 1024
"""The most bytes of states whose removal begins in one write. Exception: a single state with a long lineage."""


# ---------------------------------------------------------------- waits for groups


def drain_wait(progress: ReadProgress, pair: Pair) -> Wait | None:
    """The wait before all records of a marked partition may be deleted; None if every group is done with them.

    A commit may run ahead of the flush callback, so the owner's report has to reach the end too. At least one group
    must read the topic. While it is not known whether a group reads the topic, nothing is deleted. A group that
    certainly reads the topic is named before a group that may read it.
    """
    if not progress.readers:
        return Wait(on=pair.partition, epoch=pair.epoch, why=SOME_READER)
    by_group = {wait.group: wait for wait in (*progress.waits(pair), *progress.commit_waits(pair))}
    named = sorted(progress.readers, key=lambda reader: not reader.is_reading)
    return next((by_group[reader.group] for reader in named if reader.group in by_group), None)


def removal_wait(progress: ReadProgress, pair: Pair) -> Wait | None:
    """The wait before a marked partition without records may be removed; None if no group is waited for.

    Retention may remove records that a member has received but not flushed. If a live member can report its position,
    an empty log is not enough. If no member can, the log start counts, and the commits do not matter.
    """
    return next(iter(progress.waits(pair)), None)


# ---------------------------------------------------------------- the partitions that are removed


def may_begin(snapshot: Snapshot) -> bool:
    """Whether removals may begin. Before that, a gainer's bump needs the last epochs in the znodes of its losers."""
    return snapshot.is_stored


def leaving(snapshot: Snapshot, found: Mapping[int, Phase]) -> dict[int, PartitionState]:
    """The states with which the removal of the highest partitions begins.

    A partition leaves if it is drained, and if the next resize does not count it (rule 5). ``found``: their phases.
    """
    left: dict[int, PartitionState] = {}
    if not may_begin(snapshot):
        return left
    lowest = max(snapshot.topic.undeleted_partition_count, snapshot.topic.wanted or 0)
    size = 0
    for partition in sorted((p for p in snapshot.states if p >= lowest), reverse=True):
        if found[partition] in (Phase.LEAVING, Phase.DELETED):
            continue
        if found[partition] is not Phase.DRAINING or partition not in snapshot.drained or len(left) == MAX_TOGETHER:
            break
        state = snapshot.states[partition].replace(
            leader=LEADER_DURING_DELETE, controller_epoch=snapshot.controller_epoch
        )
        size += len(state.encode())
        if left and size > MAX_BYTES_TOGETHER:
            break
        left[partition] = state
    return left


def with_ends(snapshot: Snapshot, leaving: Collection[int]) -> TopicZnode | None:
    """The topic with the log ends that leaders reported; None if nothing changes.

    The ends are recorded before any replica is deleted. A broker that restarts between the deletion and its answer does
    not know the end any more.
    """
    topic = snapshot.topic
    ends = {p: end for p in leaving if (end := snapshot.ends.get(p, 0)) > topic.base_offset(p)}
    return topic.replace(last_offsets={**topic.last_offsets, **ends}) if ends else None


def gone(snapshot: Snapshot, found: Mapping[int, Phase]) -> tuple[int, ...]:
    """The fully deleted partitions that the topic forgets next, the highest number first.

    A number that was counted again meanwhile may be removed at any time, and is then created again.
    """
    counted = snapshot.topic.undeleted_partition_count
    run: list[int] = []
    is_end = True
    for partition in sorted(snapshot.states, reverse=True):
        if found[partition] is Phase.DELETED and (is_end or partition < counted) and len(run) < MAX_TOGETHER:
            run.append(partition)
        else:
            is_end = False
    return tuple(run)


def without(snapshot: Snapshot, deleted: Collection[int]) -> TopicZnode:
    """The topic without deleted partitions, with their last leader epochs and log ends (rules 5, 7)."""
    topic, counted = snapshot.topic, snapshot.topic.undeleted_partition_count
    ends = {p: max(topic.base_offset(p), snapshot.deleted[p]) for p in deleted}
    return topic.replace(
        topic_id=snapshot.new_topic_id,
        partitions={p: replicas for p, replicas in topic.partitions.items() if p not in ends or p < counted},
        adding_replicas={p: added for p, added in topic.adding_replicas.items() if p not in ends},
        removing_replicas={p: removed for p, removed in topic.removing_replicas.items() if p not in ends},
        last_leader_epochs={**topic.last_leader_epochs, **{p: snapshot.states[p].leader_epoch for p in deleted}},
        last_offsets={**topic.last_offsets, **{p: end for p, end in ends.items() if end > 0}},
    )
