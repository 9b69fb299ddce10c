"""Which step of a split or a merge comes next: pure, from a topic's znodes and from which leaders have answered.

Two rules hold everything together. A leader epoch belongs to one layout: a bump changes epoch and layout in one write,
which also puts the epoch it replaces into the maps of this resize that name the partition. Losers before gainers:
whoever loses keys has stopped taking them, acknowledged by a leader at the new layout, before anyone gains them.

What is still to do is read from the stored layouts, never from epochs: an ordinary election raises an epoch too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from controller.image import TopicImage
from protocol.key_placement import ancestor_below, is_doubled
from zk_schemas.partition_state import DURING_DELETE, NO_LEADER, Layout, PartitionState


@dataclass(frozen=True, slots=True)
class Change:
    """The next state of a partition, with the states of others that must be written in the same multi."""

    partition: int
    state: PartitionState
    with_it: dict[int, PartitionState] = field(default_factory=dict)
    create: bool = False


def new_partitions(topic: TopicImage) -> list[int]:
    """What a grow adds: assigned beyond the undeleted count, and never led.

    When some are recorded, they alone: partitions that were assigned after the grow began wait for the next one.
    """
    undeleted = topic.znode.undeleted_partition_count
    new = [index for index in sorted(topic.znode.partitions) if index >= undeleted and _never_led(topic, index)]
    recorded = [state.layout.undeleted_partition_count for state in _states(topic, new) if state.layout is not None]
    end = min(recorded, default=len(topic.znode.partitions))
    return [index for index in new if index < end]


def waiting(topic: TopicImage) -> list[int]:
    """Gainers of a grow that have no first leader yet: counted already, recorded, never led."""
    undeleted = topic.znode.undeleted_partition_count
    states = ((index, topic.state(index)) for index in range(undeleted))
    return [index for index, state in states if state is not None and state.never_led]


def marked(topic: TopicImage) -> list[int]:
    """Partitions marked for deletion: led once, beyond the undeleted count."""
    undeleted = topic.znode.undeleted_partition_count
    return [index for index in sorted(topic.partitions) if index >= undeleted and not _never_led(topic, index)]


def unborn(topic: TopicImage) -> list[int]:
    """Counted partitions that were never led, whether by a grow or since the topic was created."""
    return [index for index in range(topic.znode.undeleted_partition_count) if _never_led(topic, index)]


def is_resizing(topic: TopicImage) -> bool:
    """Whether anything of a resize is left to do, the draining of marked partitions included."""
    if len(topic.znode.partitions) > topic.znode.undeleted_partition_count:
        return True
    return topic.znode.layout_version > 0 and not is_settled(topic)


def goal(topic: TopicImage) -> int:
    """The count that the topic has, or that the grow under way leads to."""
    new = new_partitions(topic)
    return new[-1] + 1 if new else topic.znode.undeleted_partition_count


def was_resized(topic: TopicImage) -> bool:
    """Whether the topic was resized ever, the resize that is under way included."""
    return topic.znode.layout_version > 0 or is_resizing(topic)


def is_settled(topic: TopicImage) -> bool:
    """Whether the last resize is finished but for the draining: every survivor has the layout and has answered."""
    if not topic.znode.layout_version and not new_partitions(topic):
        return True
    return (
        not new_partitions(topic)
        and not waiting(topic)
        and all(state.sealed_offset >= 0 for state in _states(topic, marked(topic)))
        and survivors_told(topic)
    )


def is_written(topic: TopicImage) -> bool:
    """Whether every undeleted partition has the topic's layout, and it is known of the others where they end."""
    layout = Layout(topic.znode.undeleted_partition_count, topic.znode.layout_version)
    return all(topic.layout(index) == layout for index in range(layout[0])) and all_sealed(topic)


def survivors_told(topic: TopicImage) -> bool:
    """Whether each undeleted partition has the topic's layout and its leader has answered so."""
    layout = Layout(topic.znode.undeleted_partition_count, topic.znode.layout_version)
    return all(topic.layout(index) == layout and topic.told(index) for index in range(layout.undeleted_partition_count))


# ---------------------------------------------------------------- grow


def grow_layout(topic: TopicImage, new: Sequence[int]) -> Layout:
    """What a grow leads to. ``new`` is not empty."""
    return Layout(new[-1] + 1, topic.znode.layout_version + 1)


def records_of_new(topic: TopicImage, controller_epoch: int) -> list[Change]:
    """Grow, step 1: a state for each new partition, which names the ancestor that will lose keys to it.

    Ancestors are those below the count before the grow, so that a crash between two writes never makes a new partition
    the ancestor of another (hole 1). The epoch of the ancestor is not known yet: -1.
    """
    znode, new = topic.znode, new_partitions(topic)
    changes = []
    for index in new:
        if topic.state(index) is None:
            ancestor = ancestor_below(index, znode.initial_partition_count, znode.undeleted_partition_count)
            state = PartitionState(
                controller_epoch,
                NO_LEADER,
                znode.last_leader_epochs.get(index, -1),
                [],
                layout=grow_layout(topic, new),
                leader_epoch_after_creation={ancestor: -1},
            )
            changes.append(Change(index, state, create=True))
    return changes


def bumps_of_losers(topic: TopicImage, controller_epoch: int) -> list[Change]:
    """Grow, step 2: each existing partition that has not the new layout gets it, and its children learn the epoch."""
    new = new_partitions(topic)
    layout = grow_layout(topic, new)
    children: dict[int, list[int]] = {}
    for child in new:
        for ancestor in _known(topic, child).leader_epoch_after_creation:
            children.setdefault(ancestor, []).append(child)
    changes = []
    for index in range(topic.znode.undeleted_partition_count):
        state = topic.state(index)
        if state is None or topic.layout(index) == layout:
            continue
        epochs = {index: state.leader_epoch}
        told = {
            child: _known(topic, child).replace(leader_epoch_after_creation=epochs) for child in children.get(index, ())
        }
        changes.append(Change(index, _bumped(state, layout, controller_epoch), told))
    return changes


def announced_count(topic: TopicImage) -> int:
    """The count that producers without a layout may place by once the partitions a grow adds are recorded; -1: none.

    Until the losers have the new layout each key of theirs must stay where it is, or have a partition that nobody leads
    yet. That holds of ``hash % count`` where the counts before and after are the initial one times powers of two.
    """
    znode, new = topic.znode, new_partitions(topic)
    if not new or not znode.ordered_delivery or any(topic.state(index) is None for index in new):
        return -1
    counts = (znode.undeleted_partition_count, new[-1] + 1)
    return counts[1] if all(is_doubled(znode.initial_partition_count, count) for count in counts) else -1


def losers_began(topic: TopicImage) -> bool:
    """Whether some partition has the layout of the grow already. Some are to be added."""
    layout = grow_layout(topic, new_partitions(topic))
    return any(topic.layout(index) == layout for index in range(topic.znode.undeleted_partition_count))


def gainers_may_be_led(topic: TopicImage, gainers: Sequence[int]) -> bool:
    """Grow, step 3: whether a leader of every partition that loses keys to them has answered at its new layout.

    That a registration is gone is no answer: its broker may still serve (hole 8).
    """
    ancestors = {ancestor for state in _states(topic, gainers) for ancestor in state.leader_epoch_after_creation}
    return all(topic.told(ancestor) for ancestor in sorted(ancestors))


def first_leader(
    state: PartitionState, replicas: Sequence[int], electable: Collection[int], controller_epoch: int
) -> PartitionState | None:
    """The first leader of a gainer: its electable replicas are in sync, the first leads. None: there is none."""
    in_sync = [replica for replica in replicas if replica in electable]
    if not in_sync:
        return None
    return state.replace(
        leader=in_sync[0], isr=in_sync, leader_epoch=state.leader_epoch + 1, controller_epoch=controller_epoch
    )


# ---------------------------------------------------------------- shrink


def records_of_marked(topic: TopicImage, controller_epoch: int) -> list[Change]:
    """Shrink, step 1: each marked partition names the survivor that gains its keys and that one's epoch now.

    The bump of the survivor raises the epoch; until then consumers go on below it.
    """
    znode = topic.znode
    changes = []
    for index in marked(topic):
        state = topic.state(index)
        assert state is not None
        if not state.leader_epoch_before_deletion:
            survivor = ancestor_below(index, znode.initial_partition_count, znode.undeleted_partition_count)
            epoch = _known(topic, survivor).leader_epoch
            changes.append(
                Change(
                    index,
                    state.replace(leader_epoch_before_deletion={survivor: epoch}, controller_epoch=controller_epoch),
                )
            )
    return changes


def bumps_of_marked(topic: TopicImage, controller_epoch: int) -> list[Change]:
    """Shrink, step 2: each marked partition gets the layout under which it takes nothing, until sealed (hole 6)."""
    layout = Layout(topic.znode.undeleted_partition_count, topic.znode.layout_version)
    return [
        Change(index, _bumped(_known(topic, index), layout, controller_epoch))
        for index in marked(topic)
        if _known(topic, index).sealed_offset < 0 and topic.layout(index) != layout
    ]


def all_sealed(topic: TopicImage) -> bool:
    """Whether it is known of every marked partition where it ends (hole 3)."""
    return all(state.sealed_offset >= 0 for state in _states(topic, marked(topic)))


def bumps_of_survivors(topic: TopicImage, controller_epoch: int) -> list[Change]:
    """Shrink, step 3: each survivor gets the new layout, which raises the maps of what this shrink marked.

    Those marked by an earlier shrink keep theirs: they were beyond the survivor's count already.
    """
    layout = Layout(topic.znode.undeleted_partition_count, topic.znode.layout_version)
    merged: dict[int, list[int]] = {}
    for gone in marked(topic):
        for survivor in _known(topic, gone).leader_epoch_before_deletion:
            merged.setdefault(survivor, []).append(gone)
    changes = []
    for index in range(layout.undeleted_partition_count):
        state, before = topic.state(index), topic.layout(index)
        if state is None or before == layout:
            continue
        raised = {
            gone: _known(topic, gone).replace(leader_epoch_before_deletion={index: state.leader_epoch})
            for gone in merged.get(index, ())
            if gone < before.undeleted_partition_count
        }
        changes.append(Change(index, _bumped(state, layout, controller_epoch), raised))
    return changes


def removed(state: PartitionState, controller_epoch: int) -> PartitionState:
    """The state that ends a drained partition: from now on nobody leads it, and its removal alone goes on."""
    return state.replace(leader=DURING_DELETE, controller_epoch=controller_epoch)


def _bumped(state: PartitionState, layout: Layout, controller_epoch: int) -> PartitionState:
    return state.replace(leader_epoch=state.leader_epoch + 1, layout=layout, controller_epoch=controller_epoch)


def _never_led(topic: TopicImage, index: int) -> bool:
    state = topic.state(index)
    return state is None or state.never_led


def _known(topic: TopicImage, index: int) -> PartitionState:
    state = topic.state(index)
    assert state is not None
    return state


def _states(topic: TopicImage, indexes: Sequence[int]) -> list[PartitionState]:
    return [state for index in indexes if (state := topic.state(index)) is not None]
