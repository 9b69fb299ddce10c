"""Topics with their partitions, offsets and configs, and the layouts of resized topics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from anabranch import Admin, ConfigEntry, ErrorCode, KafkaError, TopicDescription, TopicPartition
from anabranch.client.admin.types import ConfigSource, PartitionLineage
from anabranch.client.cluster import PartitionInfo
from anabranch.ordered_resize.explain import Wait
from anabranch.ordered_resize.facts import Lineage
from anabranch.ordered_resize.lineage import Merge, has_keys, last_merges, leader_epochs_after_creation, split_epoch
from anabranch.view.autoscale import Autoscaling, autoscaling, is_on
from anabranch.view.retained import RetainedRecords, retained_records, waits
from anabranch.zk_schemas.znode import format_id

ANSWER_WITHIN_MS = 3_000
"""The time limit for brokers' responses: no broker responds for a partition that was just removed."""
WITHHOLD_KEY = "ordered.delivery.stock.consumers"
IN_USE, MARKED, NEW = "in use", "marked", "new"

Committed = Mapping[str, Mapping[int, int]]
"""Committed offsets by group and partition, of the groups that read a topic."""


class WithheldRecords(NamedTuple):
    """A partition in which stock consumers wait, or have waited, for a group to process partition ``on``.

    They get no records from ``from_epoch`` on. Unknown numbers are -1.
    """

    topic: str
    partition: int
    from_epoch: int
    is_withheld: bool
    group: str
    on: int
    epoch: int
    end_offset: int
    position: int
    waited_ms: int
    is_let_go: bool
    """Whether the leader no longer waits for the group."""

    @property
    def sentence(self) -> str:
        wait = Wait(
            self.partition, self.from_epoch, self.on, self.epoch, self.end_offset, self.position, group=self.group
        )
        return wait.withheld(self.waited_ms // 1000, is_over=not self.is_withheld, is_let_go=self.is_let_go)


class DescribedPartition(NamedTuple):
    """A partition of a topic. Offsets, epochs and times are None where they are not known or do not apply."""

    partition: int
    state: str
    """``IN_USE``, ``MARKED`` or ``NEW``."""
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    log_start_offset: int | None
    high_watermark: int | None
    created_from: int | None
    """The partition that it was split from."""
    leader_epoch_after_creation: int | None
    split_ms: int | None
    merged_into: int | None
    leader_epoch_before_deletion: int | None
    merged_ms: int | None
    lineage: list[tuple[int, dict[int, int]]]
    """By leader epoch of this partition, the partitions that lost keys to it, each with its own epoch."""
    records_left: int | None
    """The records of a marked partition."""
    to_drain: dict[str, int | None]
    """By group, the offsets of a marked partition that the group has yet to read."""


class DescribedTopic(NamedTuple):
    """A topic. The counts and the layout version are -1 where a broker of another project reports none."""

    name: str
    topic_id: str
    internal: bool
    initial_partition_count: int
    undeleted_partition_count: int
    layout_version: int
    ordered_delivery: bool
    configs: dict[str, str | None]
    """The configs that are set for the topic itself."""
    partitions: list[DescribedPartition]
    autoscale: Autoscaling | None
    retained: list[RetainedRecords]
    withheld: list[WithheldRecords]
    resize: str | None
    """Why resizes of the topic wait, or why it is frozen."""


async def describe_topics(admin: Admin, names: list[str]) -> list[DescribedTopic]:
    """The topics ``names``, or all topics."""
    wanted = names or [listing.name for listing in await admin.list_topics()]
    described = await admin.describe_topics(wanted)
    configs = await admin.describe_configs(topics=wanted)
    found = []
    for name in wanted:
        topic = described[name]
        known = {}
        if is_resized(topic):
            known = existing(await lineages(admin, name, (p.partition for p in topic.partitions)))
        committed = await committed_offsets(admin, name) if marked_partitions(topic) else {}
        ends, merges = await offsets(admin, topic), last_merges(known)
        found.append(
            DescribedTopic(
                name=name,
                topic_id=format_id(topic.topic_id),
                internal=topic.internal,
                initial_partition_count=topic.initial_partition_count,
                undeleted_partition_count=topic.undeleted_partition_count,
                layout_version=topic.layout_version,
                ordered_delivery=topic.ordered_delivery,
                configs=_overrides(configs[name]),
                partitions=[
                    _partition(topic, one, ends.get(one.partition), known, merges.get(one.partition), committed)
                    for one in topic.partitions
                ],
                autoscale=await autoscaling(admin, topic, configs[name]) if is_on(configs[name]) else None,
                retained=await retained_records(admin, topic) if waits(configs[name]) else [],
                withheld=await withheld_records(admin, topic, configs[name]),
                resize=await unfinished_resize(admin, topic) if names or is_resized(topic) else None,
            )
        )
    return found


async def withheld_records(
    admin: Admin, topic: TopicDescription, configs: Mapping[str, ConfigEntry]
) -> list[WithheldRecords]:
    """Each wait of stock consumers for a group, by partition; empty if the topic withholds nothing."""
    key = configs.get(WITHHOLD_KEY)
    if key is None or key.value != "withhold" or not is_resized(topic):
        return []
    try:
        withheld = await admin.withheld_partitions(topic)
    except KafkaError:  # a broker is older or a leader is not available; the rest can still be shown
        return []
    return [
        WithheldRecords(topic.name, p, found.served_epoch + 1, found.is_withheld, *wait)
        for p, found in sorted(withheld.items())
        for wait in found.waits
    ]


async def unfinished_resize(admin: Admin, topic: TopicDescription) -> str | None:
    """The reasons why resizes of the topic wait, or why the topic is frozen; None if there are none."""
    count = topic.undeleted_partition_count
    if count < 0 or topic.internal:
        return None
    try:
        waits = await admin.create_partitions({topic.name: count}, validate_only=True)
    except KafkaError as error:
        return str(error) if error.code is ErrorCode.POLICY_VIOLATION else None
    return waits.get(topic.name)


def is_resized(topic: TopicDescription) -> bool:
    """Whether the topic has a layout other than its first; a plain Kafka broker reports no layouts."""
    return topic.layout_version > 0


def marked_partitions(topic: TopicDescription) -> list[int]:
    """The partitions that are deleted when they are drained."""
    if topic.undeleted_partition_count < 0:
        return []
    return [p.partition for p in topic.partitions if p.partition >= topic.undeleted_partition_count]


async def lineages(admin: Admin, topic: str, partitions: Iterable[int]) -> dict[int, PartitionLineage]:
    """The lineages of these partitions: which partitions had their keys before. Unknown lineages are left out."""
    asked = [TopicPartition(topic, p) for p in partitions]
    return {tp.partition: known for tp, known in (await admin.lineages(asked, timeout_ms=ANSWER_WITHIN_MS)).items()}


def existing(known: Mapping[int, PartitionLineage]) -> dict[int, Lineage]:
    """The lineages of the partitions that exist."""
    return {p: answer.lineage for p, answer in known.items() if answer.lineage is not None}


async def offsets(admin: Admin, topic: TopicDescription) -> dict[int, tuple[int, int]]:
    """(log start offset, high watermark) of each partition whose leader responds."""
    led = [TopicPartition(topic.name, p.partition) for p in topic.partitions if p.leader >= 0]
    earliest = await known_offsets(admin, led, "earliest")
    latest = await known_offsets(admin, led, "latest")
    return {tp.partition: (earliest[tp], latest[tp]) for tp in led if tp in earliest and tp in latest}


async def known_offsets(admin: Admin, partitions: list[TopicPartition], spec: str) -> dict[TopicPartition, int]:
    """The offsets for ``spec`` of the partitions whose leaders respond."""
    if not partitions:
        return {}
    found = await admin.list_offsets(dict.fromkeys(partitions, spec), within_ms=ANSWER_WITHIN_MS)
    return {tp: answer.offset for tp, answer in found.items() if answer.offset >= 0}


async def committed_offsets(admin: Admin, topic: str) -> dict[str, dict[int, int]]:
    """The committed offsets of each group that reads ``topic``. These groups decide whether a partition is drained.

    A group reads the topic if it has committed offsets in the topic, or if its members have partitions of the topic.
    """
    found: dict[str, dict[int, int]] = {}
    for group in await admin.list_groups():
        committed = await admin.list_group_offsets(group.group_id)
        of_topic = {tp.partition: offset.offset for tp, offset in committed.items() if tp.topic == topic}
        if of_topic or await _holds(admin, group.group_id, topic):
            found[group.group_id] = of_topic
    return found


async def _holds(admin: Admin, group: str, topic: str) -> bool:
    """Whether members of the group have partitions of the topic; False when an assignment cannot be parsed."""
    with contextlib.suppress(ValueError):
        members = (await admin.describe_groups([group]))[group].members
        return any(tp.topic == topic for member in members for tp in member.partitions)
    return False


def _partition(
    topic: TopicDescription,
    info: PartitionInfo,
    ends: tuple[int, int] | None,
    known: Mapping[int, Lineage],
    merge: Merge | None,
    committed: Committed,
) -> DescribedPartition:
    p = info.partition
    lineage = known.get(p)
    is_marked = 0 <= topic.undeleted_partition_count <= p
    state = MARKED if is_marked else NEW if info.leader < 0 and not info.isr else IN_USE
    start, end = ends if ends is not None else (None, None)
    split: dict[int, int] = {}
    split_ms = None
    if lineage is not None:
        split = leader_epochs_after_creation(p, lineage.entries)
        split_ms = lineage.times_ms.get(split_epoch(p, lineage.entries))
    merged = merge if is_marked and not (lineage is not None and has_keys(lineage, merge)) else None
    return DescribedPartition(
        partition=p,
        state=state,
        leader=_known(info.leader),
        leader_epoch=info.leader_epoch,
        replicas=list(info.replicas),
        isr=list(info.isr),
        log_start_offset=start,
        high_watermark=end,
        created_from=next(iter(split), None),
        leader_epoch_after_creation=next(iter(split.values()), None),
        split_ms=split_ms,
        merged_into=merged.into if merged is not None else None,
        leader_epoch_before_deletion=merged.epoch - 1 if merged is not None else None,
        merged_ms=known[merged.into].times_ms.get(merged.epoch) if merged is not None else None,
        lineage=[(epoch, dict(losers)) for epoch, losers in lineage.entries] if lineage is not None else [],
        records_left=end - start if is_marked and start is not None and end is not None else None,
        to_drain={group: remaining(end, start, of_topic.get(p)) for group, of_topic in committed.items()}
        if is_marked
        else {},
    )


def remaining(end_offset: int | None, log_start_offset: int | None, committed: int | None) -> int | None:
    """How many offsets of a marked partition a group has yet to read; None when the partition's end is unknown."""
    if end_offset is None or log_start_offset is None:
        return None
    return max(0, end_offset - max(log_start_offset, committed if committed is not None else 0))


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def _overrides(entries: Mapping[str, ConfigEntry]) -> dict[str, str | None]:
    """The configs that are set for the topic itself."""
    return {e.name: e.value for e in entries.values() if e.source == ConfigSource.DYNAMIC_TOPIC_CONFIG}
