"""The write rates of topics and the lags of groups, from two samples of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio

from anabranch import Admin, KafkaError, TopicPartition
from anabranch.view.cluster import all_topics
from anabranch.view.topics import known_offsets, marked_partitions
from anabranch.view.unread import total_lag


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of the cluster at one time."""

    at_s: float
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    unhealthy: Mapping[str, int] = field(default_factory=dict)
    """Partitions without a leader or with replicas out of sync, by topic."""
    marked: Mapping[str, int] = field(default_factory=dict)
    committed: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)


class TopicActivity(NamedTuple):
    topic: str
    partitions: int
    records_per_second: float
    """The records written."""
    unhealthy: int
    """Partitions without a leader or with replicas out of sync."""
    marked: int


class GroupActivity(NamedTuple):
    group: str
    state: str
    lag: int
    records_per_second: float
    """The records that were committed."""
    seconds_left: float | None
    """The time to catch up at this rate; None if the lag does not shrink."""


async def take_sample(admin: Admin) -> Sample:
    topics = [topic for topic in await all_topics(admin) if not topic.internal]
    led = [TopicPartition(t.name, info.partition) for t in topics for info in t.partitions if info.leader >= 0]
    starts = await known_offsets(admin, led, "earliest")
    ends = await known_offsets(admin, list(starts), "latest")
    groups = await admin.list_groups()
    committed: dict[str, dict[TopicPartition, int]] = {}
    for group in groups:
        try:
            offsets = await admin.list_group_offsets(group.group_id)
        except KafkaError:  # the group's coordinator moves; the next round has the group again
            continue
        committed[group.group_id] = {tp: at.offset for tp, at in offsets.items()}
    return Sample(
        anyio.current_time(),
        ends,
        {t.name: sum(i.leader < 0 or len(i.isr) < len(i.replicas) for i in t.partitions) for t in topics},
        {t.name: len(marked_partitions(t)) for t in topics},
        committed,
        {group.group_id: group.state for group in groups},
        starts,
    )


def topic_activity(before: Sample, now: Sample) -> list[TopicActivity]:
    """The topics in descending order of their write rates. In a new partition all records count."""
    seconds = max(now.at_s - before.at_s, 0.001)
    rows = []
    for name, bad in now.unhealthy.items():
        ends = {tp: end for tp, end in now.ends.items() if tp.topic == name}
        is_new = not any(tp.topic == name for tp in before.ends)
        written = 0 if is_new else sum(max(0, end - before.ends.get(tp, 0)) for tp, end in ends.items())
        rows.append(TopicActivity(name, len(ends), round(written / seconds, 1), bad, now.marked.get(name, 0)))
    return sorted(rows, key=lambda row: (-row.records_per_second, row.topic))


def group_activity(before: Sample, now: Sample) -> list[GroupActivity]:
    """The groups in descending order of their lags."""
    seconds = max(now.at_s - before.at_s, 0.001)
    rows = []
    for group, committed in now.committed.items():
        lag = total_lag(committed, now.starts, now.ends)
        known = before.committed.get(group, {})
        read = sum(max(0, offset - known[tp]) for tp, offset in committed.items() if tp in known)
        lag_before = total_lag(known, before.starts, before.ends)
        gained = (lag_before - lag) / seconds
        left = 0.0 if lag == 0 else round(lag / gained, 1) if gained > 0 else None
        rows.append(GroupActivity(group, now.states.get(group, ""), lag, round(read / seconds, 1), left))
    return sorted(rows, key=lambda row: (-row.lag, row.group))
