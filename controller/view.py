"""Views of a topic in the image: its snapshot for ``ordered_resize``, and the progress of its resize."""

from __future__ import annotations

import uuid
from collections.abc import Container, Mapping, Sequence

from anabranch.controller.image import ClusterImage, Leftover, PartitionImage, TopicImage
from anabranch.ordered_resize import next_step, removal
from anabranch.ordered_resize.explain import request_effect, resize_waits
from anabranch.ordered_resize.layout import Layout
from anabranch.ordered_resize.snapshot import Phase, Snapshot
from anabranch.protocol.key_placement import is_doubled
from anabranch.protocol.sentinels import NO_TIMESTAMP
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import PartitionLayout as StoredLayout
from anabranch.zk_schemas.topic import TopicZnode
from anabranch.zk_schemas.znode import NO_ID


def snapshot_of(
    image: ClusterImage, topic: TopicImage, new_topic_id: uuid.UUID = NO_ID, now_ms: int = NO_TIMESTAMP
) -> Snapshot:
    """The topic at this moment.

    ``new_topic_id`` is the id that the topic gets when a removal of partitions ends. ``now_ms`` is the time of the next
    steps.
    """
    states = {p: found.state for p, found in sorted(topic.partitions.items()) if found.state is not None}
    counted = 0 if topic.frozen else topic.znode.undeleted_partition_count
    drained = {
        p: found.ending.end_offset for p, found in topic.partitions.items() if found.ending and is_drained(topic, p)
    }
    return Snapshot(
        topic.znode,
        states,
        unreadable=topic.unreadable,
        frozen=topic.frozen,
        controller_epoch=image.controller_epoch,
        first_leader_epoch=image.first_leader_epoch.epoch,
        answered={p for p in states if topic.has_acknowledged(p)},
        electable={p: _electable(image, topic, p) for p in range(counted) if p not in states and p in topic.partitions},
        drained=drained,
        ends=drained,
        deleted={
            p: found.ending.deleted_end_offset
            for p, found in topic.partitions.items()
            if found.ending is not None and _is_deleted(topic, p, found)
        },
        now_ms=now_ms,
        new_topic_id=new_topic_id,
    )


def _electable(image: ClusterImage, topic: TopicImage, partition: int) -> list[int]:
    electable = image.electable(TopicPartition(topic.name, partition))
    return [replica for replica in topic.replicas(partition) if replica in electable]


def _is_deleted(topic: TopicImage, partition: int, found: PartitionImage) -> bool:
    is_leaving = found.state is not None and found.state.being_removed
    return is_leaving and found.ending is not None and found.ending.stopped.issuperset(topic.replicas(partition))


# ---------------------------------------------------------------- progress


def was_resized(topic: TopicImage) -> bool:
    """Whether the topic was ever resized, or a resize is planned."""
    znode = topic.znode
    return znode.layout_version > 0 or znode.previous_undeleted_partition_count is not None or znode.wanted is not None


def marked(topic: TopicImage) -> list[int]:
    """Partitions marked for deletion: they exist and are not counted."""
    counted = topic.znode.undeleted_partition_count
    return [p for p in sorted(topic.partitions) if p >= counted and topic.state(p) is not None]


def is_over(topic: TopicImage) -> bool:
    """Whether the last resize is done, except for draining. True for a topic that was never resized."""
    return next_step.is_recorded(topic.znode) or next_step.is_settled(_known(topic))


def is_unfinished(topic: TopicImage) -> bool:
    """Whether some leader has not acknowledged the last resize, or a queued resize has not begun."""
    return topic.znode.wanted is not None or not is_over(topic)


def is_resizing(topic: TopicImage) -> bool:
    """Whether any part of a resize is left, including draining and a queued count."""
    return was_resized(topic) and bool(marked(topic) or is_unfinished(topic))


def is_due(topic: TopicImage) -> bool:
    """Whether the controller has anything left to do for a resize, including the record that it is over."""
    return was_resized(topic) and bool(
        topic.znode.wanted is not None or marked(topic) or not next_step.is_recorded(topic.znode)
    )


def drainable(topic: TopicImage, partitions: Container[int] | None = None) -> list[int]:
    """Marked partitions that only wait to be drained, except those that a queued resize counts again.

    ``partitions`` limits them.
    """
    if not marked(topic) or topic.frozen or topic.unreadable:
        return []
    snapshot = _known(topic)
    if not removal.may_begin(snapshot):
        return []
    return [
        p
        for p in marked(topic)
        if p >= (topic.znode.wanted or 0)
        and (partitions is None or p in partitions)
        and next_step.phase_of(snapshot, p) is Phase.DRAINING
    ]


def leftover(topic: TopicImage, index: int) -> Leftover | None:
    """A marked partition as its present leader reported it; None without a report."""
    partition = topic.partitions.get(index)
    if partition is None or partition.state is None or partition.ending is None:
        return None
    state, ending = partition.state, partition.ending
    if ending.leader_epoch != state.leader_epoch:
        return None
    tp = TopicPartition(topic.name, index)
    return Leftover(tp, state.leader, state.leader_epoch, partition.incarnation, ending.end_offset)


def is_empty(topic: TopicImage, partition: int) -> bool:
    """Whether nothing is left below the log end that the leader of a marked partition reported."""
    found = topic.partitions[partition]
    state, ending = found.state, found.ending
    if (
        state is None
        or ending is None
        or ending.leader_epoch != state.leader_epoch
        or not topic.has_acknowledged(partition)
    ):
        return False
    return ending.log_start_offset >= ending.end_offset >= 0


def is_processed(topic: TopicImage, partition: int) -> bool:
    """Whether every live member has flushed all records of an empty partition."""
    ending = topic.partitions[partition].ending
    return ending is not None and (ending.is_processed or ending.end_offset == topic.znode.base_offset(partition))


def is_drained(topic: TopicImage, partition: int) -> bool:
    return is_empty(topic, partition) and is_processed(topic, partition)


def left_on(topic: TopicImage) -> Mapping[int, Sequence[int]]:
    """The brokers that have not reported the deletion of their replica, for each partition that is being removed."""
    found = {}
    for p in marked(topic):
        state, ending = topic.state(p), topic.partitions[p].ending
        if state is not None and state.being_removed:
            stopped = ending.stopped if ending is not None else ()
            found[p] = [replica for replica in topic.replicas(p) if replica not in stopped]
    return found


def behind_on(topic: TopicImage) -> Mapping[int, Sequence[int]]:
    """The brokers that are not in sync and had not deleted the records of a marked partition when they were to."""
    found = {}
    for p in marked(topic):
        state, ending = topic.state(p), topic.partitions[p].ending
        if state is not None and ending is not None and not state.being_removed:
            found[p] = [broker for broker in ending.behind if broker not in state.isr]
    return found


def unfinished(topic: TopicImage) -> str:
    """A description of the things that a resize waits for."""
    snapshot = _known(topic)
    waits = resize_waits(snapshot, next_step.phases(snapshot), left_on(topic), behind_on(topic))
    return "; ".join(waits) or "its next step is due"


def dry_run(topic: TopicImage, asked: TopicZnode, count: int) -> str:
    """Describes the resize in progress, the queued resize, and the resize that ``count`` would replace, if any."""
    effect, znode = request_effect(topic.znode, asked, count), topic.znode
    if not effect and count != znode.undeleted_partition_count:
        return ""
    before, goal = znode.previous_undeleted_partition_count, znode.undeleted_partition_count
    is_moving = before not in (None, goal) and not is_over(topic)
    progress = f"a resize from {before} to {goal} partitions is in progress" if is_moving else ""
    return "; ".join(filter(None, (progress, unfinished(topic), effect)))


def _known(topic: TopicImage) -> Snapshot:
    """A snapshot without the facts needed only for the next steps."""
    states = {p: found.state for p, found in topic.partitions.items() if found.state is not None}
    answered = {p for p in states if topic.has_acknowledged(p)}
    return Snapshot(topic.znode, states, unreadable=topic.unreadable, frozen=topic.frozen, answered=answered)


# ---------------------------------------------------------------- layouts sent to brokers


def client_layout(topic: TopicImage) -> StoredLayout:
    """The layout by which clients place records: the old layout until some partition has the goal, then the goal.

    A leader accepts no batch placed by the goal until the batch's partition has the goal.
    """
    znode, goal = topic.znode, Layout.goal(topic.znode).stored
    before = znode.previous_undeleted_partition_count
    if before is None or before == goal.undeleted_partition_count:
        return goal
    if any(topic.layout(p) == goal for p, found in topic.partitions.items() if found.state is not None):
        return goal
    return StoredLayout(before, goal.layout_version - 1)


def announced_count(topic: TopicImage) -> int:
    """The new count, if producers without a layout may place by it before the first bump of a grow; otherwise -1.

    Until a partition has the goal, ``hash % count`` must place each key in its old partition, or in a new partition,
    which takes no records yet. This is so if the old and the new count are the initial count times powers of two.
    """
    znode, has_acknowledged = topic.znode, client_layout(topic)
    counts = (has_acknowledged.undeleted_partition_count, znode.undeleted_partition_count)
    if not znode.ordered_delivery or topic.frozen or counts[0] >= counts[1]:
        return -1
    return counts[1] if all(is_doubled(znode.initial_partition_count, count) for count in counts) else -1
