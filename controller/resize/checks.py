"""Whether a topic may be resized, and why not: one judgement for requests and for edits of the znode by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from controller.context import Context
from controller.image import TopicImage
from controller.resize import plan
from controller.resize.steps import brokers_without_resize
from controller.store import MAX_BYTES, MAX_OPERATIONS
from controller.topic_config import topic_values
from protocol.errors import ErrorCode, KafkaError
from protocol.key_placement import ancestor_below
from protocol.topic_names import INTERNAL_TOPICS
from runtime.env import CreateOp, SetOp
from runtime.zk_requests import operation_bytes
from zk_schemas import paths
from zk_schemas.features import ORDERED_RESIZE
from zk_schemas.partition_state import NO_LEADER, Layout, PartitionState
from zk_schemas.topic import TopicZnode

MAX_PARTITIONS = 1 << 16
"""No assignment of more fits into a topic's znode."""
DRAIN_KEY = "delete.records.when.drained"


async def check(context: Context, topic: TopicImage, count: int) -> None:
    """Raises ``KafkaError``: INVALID_PARTITIONS for a count that is never right, POLICY_VIOLATION for a bad moment,
    REASSIGNMENT_IN_PROGRESS.
    """
    _check_count(topic, count)
    if moving := topic.moving:
        raise KafkaError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"Partitions {listed(moving)} of {topic.name} are being reassigned; resize it when that is done, or take"
            " the reassignment back.",
        )
    if context.image.features.level(ORDERED_RESIZE) < 1:
        raise _not_now(
            f"The feature {ORDERED_RESIZE} is not finalized: once every broker supports it,"
            f" `anabranch features upgrade --all` does so."
        )
    lacking = brokers_without_resize(context)
    if lacking:
        raise _not_now(f"Brokers {listed(lacking)} do not know ordered resize; upgrade or stop them first.")
    if topic.unreadable:
        raise _not_now(f"The states of partitions {listed(sorted(topic.unreadable))} cannot be read: see the log.")
    if unborn := plan.unborn(topic):
        raise _not_now(f"Partitions {listed(unborn)} have not had a leader yet; the resize can begin when they have.")
    if count > topic.znode.undeleted_partition_count:
        _check_grow(topic, count, context.image.brokers)
    else:
        _check_settled(topic)
        check_shrink(topic, count, await topic_values(context, topic.name))


def is_under_way(topic: TopicImage, count: int) -> bool:
    """Whether a resize to ``count`` has something left to write, so that asking for it again is no other resize."""
    if count != plan.goal(topic) or topic.unreadable:
        return False
    return bool(plan.new_partitions(topic) or plan.waiting(topic)) or not plan.is_written(topic)


def unfinished(topic: TopicImage) -> str:
    """What a resize waits for, in words."""
    going = plan.marked(topic)
    unsealed = [index for index in going if (state := topic.state(index)) is not None and state.sealed_offset < 0]
    if offline := _offline(topic):
        return f"partitions {listed(offline)} have no leader"
    if new := plan.new_partitions(topic) or plan.waiting(topic):
        return f"partitions {listed(new)} are being created"
    if unsealed:
        return f"partitions {listed(unsealed)} are being sealed"
    return "not every leader has acknowledged the layout"


def _check_count(topic: TopicImage, count: int) -> None:
    znode = topic.znode
    if topic.name in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{topic.name} is an internal topic: its partitions cannot be changed."
        )
    if count < 1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"A topic has at least one partition; {count} were asked for.")
    if count == znode.undeleted_partition_count:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partitions.")
    if count < znode.initial_partition_count:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} was created with {znode.initial_partition_count} partitions and cannot have fewer;"
            f" {count} were asked for.",
        )
    if count > MAX_PARTITIONS:
        raise _too_large(topic, count)


def _check_settled(topic: TopicImage) -> None:
    """Without a leader, one that stays holds what is added, and has not acknowledged the layout it has."""
    offline = [index for index in _offline(topic) if index < topic.znode.undeleted_partition_count]
    if offline and not plan.new_partitions(topic) and plan.is_written(topic):
        raise _not_now(f"Partitions {listed(offline)} have no leader; a resize would wait for them.")
    if not plan.is_settled(topic):
        raise _not_now(f"Another resize of {topic.name} is unfinished: {unfinished(topic)}.")


def _check_grow(topic: TopicImage, count: int, live: Collection[int]) -> None:
    going = plan.marked(topic)
    ending = [index for index in going if (state := topic.state(index)) is not None and state.being_removed]
    away = sorted({replica for index in ending for replica in topic.replicas(index) if replica not in live})
    if away:
        raise _not_now(
            f"{topic.name} cannot grow before partitions {listed(ending)} are removed, which waits for brokers"
            f" {listed(away)}: start them, or register their ids again, on an empty disk if theirs is lost."
        )
    if going:
        raise _not_now(
            f"{topic.name} cannot grow while partitions {listed(going)} are marked for deletion; they go once their"
            f" records have expired, or with {DRAIN_KEY}=true once every group has read them."
        )
    _check_settled(topic)
    if largest_count(topic, count) < count:
        raise _too_large(topic, count)


def _too_large(topic: TopicImage, count: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PARTITIONS,
        f"{topic.name} cannot have {count} partitions after one resize: the largest count that fits is"
        f" {largest_count(topic, count)}.",
    )


def check_shrink(topic: TopicImage, count: int, config: Mapping[str, object]) -> None:
    """What no moment changes of a shrink. Every counted partition has a state. Raises ``KafkaError``."""
    smallest = smallest_count(topic, count)
    if smallest > count:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name} cannot have {count} partitions after one resize: the smallest count that fits is"
            f" {smallest}.",
        )
    _check_drainable(topic.name, config)


def largest_count(topic: TopicImage, count: int) -> int:
    """The largest count up to ``count`` for which the topic's znode, and each partition's bump with its new children,
    fit into one multi.
    """
    znode = topic.znode
    undeleted = znode.undeleted_partition_count
    sample = PartitionState(
        2**31 - 1,
        NO_LEADER,
        2**31 - 1,
        [],
        layout=Layout(MAX_PARTITIONS, 2**31 - 1),
        leader_epoch_after_creation={MAX_PARTITIONS: 2**31 - 1},
    )
    child_bytes = operation_bytes(CreateOp(paths.partition_state(topic.name, MAX_PARTITIONS), sample.encode()))
    entry_bytes = len(f'"{MAX_PARTITIONS}":{topic.replicas(0)},')
    topic_bytes = len(znode.encode()) + MAX_OPERATIONS
    group_bytes: dict[int, int] = {}
    for index in range(undeleted, min(count, MAX_PARTITIONS)):
        ancestor = ancestor_below(index, znode.initial_partition_count, undeleted)
        group_bytes[ancestor] = group_bytes.get(ancestor, child_bytes * 2) + child_bytes
        topic_bytes += entry_bytes
        if max(group_bytes[ancestor], topic_bytes) > MAX_BYTES:
            return index
    return min(count, MAX_PARTITIONS)


def smallest_count(topic: TopicImage, count: int) -> int:
    """The smallest count from ``count`` up for which each survivor's bump, with the maps of what merges into it, fits
    into one multi. Every counted partition has a state.
    """
    initial, undeleted = topic.znode.initial_partition_count, topic.znode.undeleted_partition_count
    sizes = {index: _merged_bytes(topic, index) for index in range(count, undeleted)}

    def fits(lowest: int) -> bool:
        group_bytes: dict[int, int] = {}
        for index in range(lowest, undeleted):
            survivor = ancestor_below(index, initial, lowest)
            group_bytes[survivor] = group_bytes.get(survivor, _merged_bytes(topic, survivor)) + sizes[index]
        return max(group_bytes.values(), default=0) <= MAX_BYTES

    if fits(count):
        return count
    low, high = count + 1, undeleted
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _merged_bytes(topic: TopicImage, index: int) -> int:
    """What the state of a partition that is merged takes of a multi, at most."""
    state = topic.state(index)
    assert state is not None
    written = state.replace(
        leader_epoch=2**31 - 1,
        layout=Layout(MAX_PARTITIONS, 2**31 - 1),
        leader_epoch_before_deletion={MAX_PARTITIONS: 2**31 - 1},
        sealed_offset=2**63 - 1,
    )
    return operation_bytes(SetOp(paths.partition_state(topic.name, index), written.encode(), -1))


def _check_drainable(name: str, config: Mapping[str, object]) -> None:
    """A marked partition goes when it is empty, so something must empty it (hole 23)."""
    if config[DRAIN_KEY]:
        return
    policies = config["cleanup.policy"]
    assert isinstance(policies, Sequence)
    if "delete" not in policies:
        raise _not_now(
            f"{name} is compacted, so partitions marked for deletion would never get empty; set {DRAIN_KEY}=true to"
            " have them emptied once every group has read them."
        )
    if config["retention.ms"] == -1:
        raise _not_now(
            f"The records of {name} never expire (retention.ms=-1), so partitions marked for deletion would never get"
            f" empty; set {DRAIN_KEY}=true to have them emptied once every group has read them."
        )


def edit_refusal(known: TopicZnode, edited: TopicZnode) -> str | None:
    """What an edit by hand changed that is not its to change; None: it may ask for another count."""
    if edited.initial_partition_count != known.initial_partition_count:
        return "initial_partition_count cannot be changed"
    if edited.last_leader_epochs != known.last_leader_epochs:
        return "last_leader_epochs cannot be changed"
    if edited.last_offsets not in ({}, known.last_offsets):
        return "last_offsets cannot be changed"
    if len(edited.partitions) < len(known.partitions):
        return f"{len(known.partitions)} partitions cannot become {len(edited.partitions)}"
    moved = [index for index, replicas in known.partitions.items() if edited.partitions[index] != replicas]
    if moved:
        return f"the replicas of partition {moved[0]} cannot be changed"
    if odd := uneven(known.partitions, edited.partitions):
        return odd
    if (edited.adding_replicas, edited.removing_replicas) != (known.adding_replicas, known.removing_replicas):
        return "a reassignment is asked for by AlterPartitionReassignments only"
    if edited.ordered_delivery not in (None, known.ordered_delivery):
        return "ordered_delivery cannot be changed"
    if edited.topic_id != known.topic_id:
        return "the topic id cannot be changed"
    if edited.layout_version not in (known.layout_version, known.layout_version + 1):
        return f"layout_version {known.layout_version} cannot become {edited.layout_version}"
    grows = len(edited.partitions) > len(known.partitions)
    if grows and edited.undeleted_partition_count not in (known.undeleted_partition_count, len(edited.partitions)):
        return "an edit cannot add partitions and set another undeleted_partition_count"
    if not grows and edited.undeleted_partition_count > known.undeleted_partition_count:
        return "undeleted_partition_count cannot be raised: partitions are added to the assignment"
    return None


def uneven(known: Mapping[int, list[int]], edited: Mapping[int, list[int]]) -> str | None:
    """Why what an edit added to the assignment cannot be; None: it can."""
    factor = min(len(replicas) for replicas in known.values())
    odd = [index for index in sorted(edited) if index not in known and len(edited[index]) != factor]
    return f"partition {odd[0]} must have {factor} replicas, as the others have" if odd else None


def edited_count(known: TopicZnode, edited: TopicZnode) -> int:
    """The count that an edit asks for."""
    if len(edited.partitions) > len(known.partitions):
        return len(edited.partitions)
    return edited.undeleted_partition_count


def begun(known: TopicZnode, edited: TopicZnode) -> TopicZnode:
    """The znode an accepted edit leads to: a grow counts its partitions later, a shrink has a version of its own."""
    if len(edited.partitions) > len(known.partitions):
        counts = (known.undeleted_partition_count, known.layout_version)
    elif edited.undeleted_partition_count < known.undeleted_partition_count:
        counts = (edited.undeleted_partition_count, known.layout_version + 1)
    else:
        counts = (known.undeleted_partition_count, known.layout_version)
    return edited.replace(
        undeleted_partition_count=counts[0],
        layout_version=counts[1],
        last_offsets=known.last_offsets,
        ordered_delivery=known.ordered_delivery,
        absent=frozenset(),
    )


def _offline(topic: TopicImage) -> list[int]:
    """Partitions that have lost their leader."""
    states = ((index, topic.state(index)) for index in sorted(topic.partitions))
    return [index for index, state in states if state is not None and state.leader == NO_LEADER and not state.never_led]


def _not_now(message: str) -> KafkaError:
    return KafkaError(ErrorCode.POLICY_VIOLATION, message)


def listed(partitions: Sequence[object]) -> str:
    """The first ten, and how many more."""
    shown = ", ".join(map(str, partitions[:10]))
    return f"{shown} and {len(partitions) - 10} more" if len(partitions) > 10 else shown
