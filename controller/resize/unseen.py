"""What an edit changed in a topic's znode while no controller was in office, judged by the states of its partitions.

A controller in office remembers what it wrote last. One that takes office has the znodes alone, but each partition's
state stores its layout and from whom it was split off. They tell the initial count, and the undeleted count and layout
version before the edit, so what a live edit may not do is undone here as well. What nothing else proves stays as it is:
``last_leader_epochs`` and ``last_offsets``, whose partitions are gone, and another order or additional replicas in
the assignment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from controller.image import TopicImage
from controller.resize import checks, plan
from protocol.errors import KafkaError
from protocol.topic_names import INTERNAL_TOPICS
from zk_schemas.partition_state import Layout, PartitionState
from zk_schemas.topic import TopicZnode

Config: TypeAlias = Mapping[str, object]
"""Every topic key with the value in force."""
Undone: TypeAlias = tuple[str, dict[str, Any]]
"""Why, and the fields of the znode with what they were."""
ORDERED_KEY = "enable.ordered.delivery"
PROVEN = frozenset({"initial_partition_count", "undeleted_partition_count", "layout_version"})
"""What the states tell of the topic when a tool has dropped it."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The znode as it is to be, None when that cannot be told; what of it was undone, and why, in words."""

    znode: TopicZnode | None
    undone: list[str]


def needs_config(topic: TopicImage) -> bool:
    """Whether anything is to be judged by the topic's configuration: not of one that was never resized."""
    znode = topic.znode
    counts = {znode.initial_partition_count, znode.undeleted_partition_count, len(znode.partitions)}
    return znode.layout_version > 0 or topic.has_layouts() or len(counts) > 1 or counts != {initial_count(topic)}


def judge(topic: TopicImage, config: Config) -> Judgement:
    """What becomes of a topic that was just read; ``config`` may be empty unless ``needs_config``."""
    undone = []
    is_short = topic.has_layouts() and stored_layout(topic).undeleted_partition_count > len(topic.znode.partitions)
    for rule in () if topic.unreadable or is_short else _RULES:  # what cannot be read may be anything
        found = rule(topic, config)
        if found is not None:
            why, changes = found
            undone.append(why)
            topic = _with(topic, **changes)
    znode = topic.znode
    if not znode.initial_partition_count <= znode.undeleted_partition_count <= len(znode.partitions):
        return Judgement(None, [_counts(znode)])
    if stored_layout(topic).undeleted_partition_count > len(znode.partitions):
        return Judgement(None, [f"it has {len(znode.partitions)} partitions, fewer than its layout counts"])
    if (version := _ambiguous_version(topic)) is not None:
        return Judgement(None, [f"its partitions store layouts of version {version} with different counts"])
    if topic.unreadable and topic.has_layouts() and (missing := sorted(znode.absent & PROVEN)):
        unreadable = checks.listed(sorted(topic.unreadable))
        return Judgement(None, [f"{missing[0]} is missing, and the states of partitions {unreadable} cannot be read"])
    corrected = None if topic.unreadable else corrected_layout(topic)
    if corrected is not None:
        topic = _with(topic, **corrected._asdict())
    if topic.znode.ordered_delivery is None and plan.was_resized(topic):
        topic = _with(topic, ordered_delivery=bool(config[ORDERED_KEY]))
    return Judgement(topic.znode, undone)


# ---------------------------------------------------------------- what the states prove


def stored_layout(topic: TopicImage) -> Layout:
    """The newest layout that a led partition stores; the first one where none does."""
    stored = [state.layout for state in topic.states() if state.layout is not None and not state.never_led]
    first = Layout(topic.znode.initial_partition_count, 0)
    return max(stored, key=lambda layout: layout.layout_version, default=first)


def initial_count(topic: TopicImage) -> int:
    """The count that the topic was created with: the first that was split off has that number.

    When all of those are gone again, the last merge led back to it. Of a topic that was never resized all partitions
    that were led are of it, and perhaps more, which its other count tells, unless a tool dropped both.
    """
    states = _states(topic).items()
    split = [index for index, state in states if index > 0 and state.leader_epoch_after_creation]
    if split:
        return min(split)
    if topic.has_layouts():
        return stored_layout(topic).undeleted_partition_count
    znode, led = topic.znode, max(_states(topic), default=-1) + 1
    if led and "initial_partition_count" in znode.absent:
        return led
    return max(led, min(znode.initial_partition_count, znode.undeleted_partition_count))


def lost_states(topic: TopicImage) -> list[int]:
    """Partitions of a resized topic that had a state, which somebody has taken away.

    A state made anew would be another incarnation, before which brokers delete what they have of the partition.
    """
    states = _states(topic)
    if not topic.has_layouts():
        return []
    led = [index for index, state in states.items() if not state.never_led]
    counted = max(stored_layout(topic).undeleted_partition_count, max(led, default=-1) + 1)
    return [index for index in sorted(topic.partitions) if index < counted and index not in states]


def _ambiguous_version(topic: TopicImage) -> int | None:
    """A layout version with two counts, as no controller writes."""
    counts: dict[int, int] = {}
    for state in topic.states():
        if state.layout is not None and counts.setdefault(state.layout[1], state.layout[0]) != state.layout[0]:
            return state.layout.layout_version
    return None


def growing_to(topic: TopicImage) -> tuple[int, Layout] | None:
    """The count before a grow whose gainers are not all led, and the layout it leads to. None: there is no such."""
    gainers = {index: state.layout for index, state in _states(topic).items() if state.never_led and state.layout}
    return (min(gainers), gainers[min(gainers)]) if gainers else None


def corrected_layout(topic: TopicImage) -> Layout | None:
    """A layout with a version of its own, when the topic's count is unlike the stored layouts of its version.

    That is what an edit by hand leaves, which has no version. None: count and version agree.
    """
    znode, recorded = topic.znode, plan.new_partitions(topic)
    states = [state for index, state in _states(topic).items() if index not in recorded]
    stored = [state.layout for state in states if state.layout is not None and not state.never_led]
    if not stored:
        return None
    growing = any(topic.state(index) is not None for index in recorded)
    newest = max(layout.layout_version for layout in stored)
    unlike = any(
        layout.layout_version == znode.layout_version
        and layout.undeleted_partition_count != znode.undeleted_partition_count
        for layout in stored
    )
    if unlike or newest > znode.layout_version + (1 if growing else 0):
        return Layout(znode.undeleted_partition_count, max(newest, znode.layout_version) + 1)
    return None


# ---------------------------------------------------------------- what is undone


def _initial(topic: TopicImage, _config: Config) -> Undone | None:
    proven, found = initial_count(topic), topic.znode.initial_partition_count
    if proven == found:
        return None
    return f"initial_partition_count is {proven}, not {found}", {"initial_partition_count": proven}


def _version(topic: TopicImage, _config: Config) -> Undone | None:
    """A resize raises the version by one; a version that cannot be raised any more would end all resizing."""
    stored, found = stored_layout(topic), topic.znode.layout_version
    is_lost = found < stored.layout_version and "layout_version" in topic.znode.absent
    is_known = not topic.has_layouts() and topic.znode.last_leader_epochs  # it was resized, whatever its states say
    if is_known or (found <= stored.layout_version + 1 and not is_lost):
        return None
    return f"layout_version is {stored.layout_version}, not {found}", {"layout_version": stored.layout_version}


def _undeleted(topic: TopicImage, _config: Config) -> Undone | None:
    """Left too high, its new partitions would be led without an ancestor, and marked ones would take records again."""
    znode, stored = topic.znode, stored_layout(topic)
    counts = Layout(znode.undeleted_partition_count, znode.layout_version)
    if (growing := growing_to(topic)) is not None:
        before, after = Layout(growing[0], growing[1].layout_version - 1), growing[1]
        losers_done = all(state.layout == after for state in topic.states())
        if counts == before or (losers_done and counts == after):
            return None
        return _counts(znode), (after if losers_done else before)._asdict()
    marked = [index for index, state in _states(topic).items() if state.leader_epoch_before_deletion]
    if marked and marked[0] < stored.undeleted_partition_count:  # by a shrink that nobody has acknowledged yet
        asked = Layout(marked[0], stored.layout_version + 1)
        return (_counts(znode), asked._asdict()) if counts.undeleted_partition_count != marked[0] else None
    if znode.initial_partition_count <= counts.undeleted_partition_count <= stored.undeleted_partition_count:
        return None
    return _counts(znode), {"undeleted_partition_count": stored.undeleted_partition_count}


def _shrink(topic: TopicImage, config: Config) -> Undone | None:
    """A smaller count of which nothing is recorded is judged as one that is asked for now."""
    znode, stored = topic.znode, stored_layout(topic)
    count = znode.undeleted_partition_count
    if count >= stored.undeleted_partition_count or growing_to(topic) is not None:
        return None
    going = (state for index, state in _states(topic).items() if count <= index < stored.undeleted_partition_count)
    if znode.layout_version > stored.layout_version and any(state.leader_epoch_before_deletion for state in going):
        return None  # it has begun
    before = _with(topic, **stored._asdict())
    if not plan.is_written(before):
        return "another resize is unfinished", stored._asdict()
    if topic.moving:
        return "partitions are being reassigned, so it cannot shrink", stored._asdict()
    try:
        checks.check_shrink(before, count, config)
    except KafkaError as error:
        return error.message, stored._asdict()
    return None


def _added(topic: TopicImage, _config: Config) -> Undone | None:
    """Partitions of which nothing is recorded are judged as if they were asked for now."""
    znode, growing = topic.znode, growing_to(topic)
    undeleted = znode.undeleted_partition_count if growing is None else growing[1].undeleted_partition_count
    unknown = [index for index in sorted(znode.partitions) if index >= undeleted and topic.state(index) is None]
    going = plan.marked(topic)
    added = [index for index in unknown if index > max(going, default=-1)]
    if not added:
        return None
    known = {index: replicas for index, replicas in znode.partitions.items() if index < added[0]}
    if topic.name in INTERNAL_TOPICS:
        why = "it is internal and cannot grow"
    elif topic.moving:
        why = "partitions are being reassigned, so it cannot grow"
    elif going:
        why = "partitions are marked, so it cannot grow"
    elif growing is not None:
        why = "another grow is unfinished"
    elif uneven := checks.uneven(known, znode.partitions):
        why = uneven
    elif checks.largest_count(_with(topic, partitions=known), len(znode.partitions)) < len(znode.partitions):
        why = f"{len(znode.partitions)} partitions do not fit"
    else:
        return None
    return why, {"partitions": known}


def _replicas(topic: TopicImage, _config: Config) -> Undone | None:
    """A replica in sync holds what others may not have: without it the partition could be left without a leader."""
    partitions = {}
    for index, state in _states(topic).items():
        replicas = topic.znode.partitions[index]
        if missing := [replica for replica in state.isr if replica not in replicas]:
            partitions[index] = replicas + missing
    if not partitions:
        return None
    why = f"replicas of partitions {checks.listed(sorted(partitions))} are in sync and cannot be taken away"
    return why, {"partitions": topic.znode.partitions | partitions}


Rule: TypeAlias = Callable[[TopicImage, Config], Undone | None]
_RULES: tuple[Rule, ...] = (_initial, _version, _undeleted, _shrink, _added, _replicas)
"""In this order: each is asked of what the ones before it left."""


def _states(topic: TopicImage) -> dict[int, PartitionState]:
    """The states there are, by partition, ascending."""
    return {index: state for index in sorted(topic.partitions) if (state := topic.state(index)) is not None}


def _with(topic: TopicImage, **changes: Any) -> TopicImage:
    """The topic as it would be with another znode."""
    return dataclasses.replace(topic, znode=topic.znode.replace(**changes))


def _counts(znode: TopicZnode) -> str:
    return (
        f"initial_partition_count {znode.initial_partition_count}, undeleted_partition_count"
        f" {znode.undeleted_partition_count} and {len(znode.partitions)} partitions do not fit"
    )
