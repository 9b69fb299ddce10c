"""The groups of a cluster: the members, positions and lags of each, and its waits after a resize."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from anabranch import Admin, ErrorCode, KafkaError, TopicDescription, TopicPartition
from anabranch.client.admin.types import MemberDescription
from anabranch.client.group.coordinator_link import OffsetAndMetadata
from anabranch.client.net.offsets import one_epoch_each
from anabranch.ordered_resize.explain import Wait
from anabranch.protocol.sentinels import NO_OFFSET
from anabranch.view.retained import MAX_KEY, WAITS_KEY, waits
from anabranch.view.topics import (
    ANSWER_WITHIN_MS,
    WITHHOLD_KEY,
    WithheldRecords,
    is_resized,
    known_offsets,
    lineages,
    withheld_records,
)
from anabranch.view.unread import unread
from anabranch.view.waits import BlockedBy, GroupOnTopic

EXPIRING_WITHIN_MS = 600_000
"""A wait is shown as expiring if retention removes awaited records within this time.

Controllers warn by ``retention.warning.ms``, which has the same default.
"""


class GroupPartition(NamedTuple):
    """A partition that a group reads. Offsets and numbers of records are None where they are not known."""

    topic: str
    partition: int
    committed_offset: int | None = None
    high_watermark: int | None = None
    lag: int | None = None
    """The readable records after the commit; None without a commit."""
    member: str | None = None
    client_id: str | None = None
    host: str | None = None
    log_start_offset: int | None = None
    expired: int | None = None
    """The records after the commit that were removed."""
    uncommitted: int | None = None
    """The readable records of a partition without a commit."""
    lag_seconds: float | None = None
    """The age of the first readable record after the commit."""


class AwaitedMember(NamedTuple):
    """A member that has not joined a rebalance again."""

    member: str
    client_id: str
    host: str
    awaited_ms: int
    wait_left_ms: int | None


class GroupWait(NamedTuple):
    """``partition`` waits until the group has processed the records of ``waits_for`` up to the end of ``epoch``."""

    topic: str
    partition: int
    from_epoch: int
    waits_for: int
    epoch: int
    position: int | None
    committed: int | None
    until: int | None
    """The end offset of ``epoch``, exclusive."""
    member: str | None
    client_id: str | None
    blocked: bool
    """Whether the partition cannot deliver any record before the wait is over."""
    expiring: bool
    """Whether retention removes awaited records within ``EXPIRING_WITHIN_MS``."""

    @property
    def left(self) -> int | None:
        """The records that the group has to process before the wait is over; None while that is unknown.

        A member reports its position only now and then, so its commit may be ahead of the reported position.
        """
        known = [offset for offset in (self.position, self.committed) if offset is not None]
        return None if self.until is None or not known else max(0, self.until - max(known))

    @property
    def sentence(self) -> str:
        """The wait in words."""
        until, position, committed = (
            NO_OFFSET if offset is None else offset for offset in (self.until, self.position, self.committed)
        )
        wait = Wait(self.partition, self.from_epoch, self.waits_for, self.epoch, until, position, self.member)
        states = [name for name, is_so in (("blocked", self.blocked), ("expiring", self.expiring)) if is_so]
        return f"{self.topic}: {wait.sentence(committed)}" + (f" ({', '.join(states)})" if states else "")


class DescribedGroup(NamedTuple):
    """A group. ``members`` is their number, ``assignor`` the name of the protocol that they chose."""

    group: str
    state: str
    assignor: str
    coordinator: int
    members: int
    awaited_members: list[AwaitedMember]
    partitions: list[GroupPartition]
    withheld: list[WithheldRecords]
    """The partitions that withhold records from stock consumers, perhaps of other groups, until this group has read."""
    waits: list[GroupWait]


async def describe_groups(admin: Admin, group_ids: list[str]) -> tuple[list[DescribedGroup], list[str]]:
    """The groups that exist, and the names of those that do not. Lags in seconds are left unknown."""
    described: list[DescribedGroup] = []
    absent = []
    for group_id, group in (await admin.describe_groups(group_ids)).items():
        committed = await admin.list_group_offsets(group_id)
        if group.state == "Dead" and not committed:
            absent.append(group_id)
            continue
        owners = {tp: member for member in group.members for tp in member.partitions}
        named = {*committed, *owners}
        existing = {topic.name for topic in await admin.list_topics()}
        topics = await admin.describe_topics(sorted({tp.topic for tp in named} & existing))
        in_topics = {TopicPartition(t.name, info.partition) for t in topics.values() for info in t.partitions}
        partitions = sorted(named | in_topics)
        starts = await _offsets(admin, partitions, topics, "earliest")
        ends = await _offsets(admin, list(starts), topics, "latest")  # not again from a silent leader
        rows = []
        for tp in partitions:
            offset = committed[tp].offset if tp in committed else None
            start, end = starts.get(tp), ends.get(tp)
            left = unread(offset, start, end)
            if tp not in named and not left.uncommitted:
                continue
            member = owners.get(tp)
            rows.append(
                GroupPartition(
                    topic=tp.topic,
                    partition=tp.partition,
                    committed_offset=offset,
                    high_watermark=end,
                    lag=left.lag,
                    member=member.member_id if member else None,
                    client_id=member.client_id if member else None,
                    host=member.host if member else None,
                    log_start_offset=start,
                    expired=left.expired,
                    uncommitted=left.uncommitted,
                )
            )
        withheld = await _withheld_for(admin, group_id, topics)
        waits_of_group = [
            wait
            for name, topic in sorted(topics.items())
            for wait in await _waits(
                admin,
                group_id,
                topic,
                owners,
                _of_topic(name, committed),
                {found.partition for found in withheld if found.topic == name},
            )
        ]
        described.append(
            DescribedGroup(
                group=group_id,
                state=group.state,
                assignor=group.protocol,
                coordinator=group.coordinator.id,
                members=len(group.members),
                awaited_members=[
                    AwaitedMember(m.member_id, m.client_id, m.host, m.awaited_ms, m.wait_left_ms)
                    for m in group.members
                    if m.awaited_ms is not None
                ],
                partitions=rows,
                withheld=withheld,
                waits=waits_of_group,
            )
        )
    return described, absent


def _of_topic(name: str, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[int, int]:
    """The committed offsets of one topic, by partition."""
    return {tp.partition: offset.offset for tp, offset in committed.items() if tp.topic == name}


async def _offsets(
    admin: Admin, partitions: list[TopicPartition], topics: Mapping[str, TopicDescription], spec: str
) -> dict[TopicPartition, int]:
    """The offsets for ``spec`` of the partitions that exist and have leaders."""
    led = {TopicPartition(t.name, info.partition) for t in topics.values() for info in t.partitions if info.leader >= 0}
    return await known_offsets(admin, [tp for tp in partitions if tp in led], spec)


async def _withheld_for(admin: Admin, group_id: str, topics: Mapping[str, TopicDescription]) -> list[WithheldRecords]:
    """The partitions in which leaders withhold records from stock consumers until this group has read.

    The stock consumers may belong to other groups.
    """
    resized = [name for name, topic in sorted(topics.items()) if is_resized(topic)]
    configs = await admin.describe_configs(topics=resized, keys=[WITHHOLD_KEY]) if resized else {}
    return [
        found
        for name in resized
        for found in await withheld_records(admin, topics[name], configs[name])
        if found.group == group_id
    ]


async def _waits(
    admin: Admin,
    group_id: str,
    topic: TopicDescription,
    owners: Mapping[TopicPartition, MemberDescription],
    committed: Mapping[int, int],
    withheld: Collection[int],
) -> list[GroupWait]:
    """The waits between partitions of one topic; empty when the topic was never resized.

    ``committed``: the group's offsets, by partition. ``withheld``: partitions that withhold records.
    """
    if not is_resized(topic):
        return []
    name = topic.name
    led = {info.partition for info in topic.partitions if info.leader >= 0}
    starts = await known_offsets(admin, [TopicPartition(name, p) for p in sorted(led)], "earliest")
    found_waits = await _found_waits(admin, group_id, topic, starts, owners, committed, withheld)
    kept_from = await _kept_from(
        admin, name, {TopicPartition(name, w.wait.on) for w in found_waits if w.wait.on in led}
    )
    rows = []
    for wait, is_blocked in found_waits:
        on = TopicPartition(name, wait.on)
        position, member = max(wait.position, committed.get(wait.on, 0), starts.get(on, 0)), owners.get(on)
        rows.append(
            GroupWait(
                topic=name,
                partition=wait.partition,
                from_epoch=wait.from_epoch,
                waits_for=wait.on,
                epoch=wait.epoch,
                position=wait.position if wait.position >= 0 else None,
                committed=committed.get(wait.on),
                until=wait.offset if wait.offset >= 0 else None,
                member=wait.owner,
                client_id=member.client_id if member else None,
                blocked=is_blocked,
                expiring=position < min(kept_from.get(wait.on, 0), wait.offset if wait.offset > 0 else sys.maxsize),
            )
        )
    return rows


async def _found_waits(
    admin: Admin,
    group_id: str,
    topic: TopicDescription,
    starts: Mapping[TopicPartition, int],
    owners: Mapping[TopicPartition, MemberDescription],
    committed: Mapping[int, int],
    withheld: Collection[int],
) -> list[BlockedBy]:
    """The waits in one topic. ``starts``: the log start offsets of the partitions whose leaders respond.

    The commit of an owner that reports no position is its position: a stock client processes what it commits. Such an
    owner waits for nothing, unless the leader withholds records.
    """
    name = topic.name
    try:
        positions = await admin.group_positions(group_id, [TopicPartition(name, p.partition) for p in topic.partitions])
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        positions = {}  # unknown below level 2 of group_coordinator; waits for a position are then shown
    numbers = [info.partition for info in topic.partitions]
    stock = {tp.partition for tp, found in positions.items() if found.owner_reports is False}
    group = GroupOnTopic(
        await lineages(admin, name, numbers),
        {
            tp.partition: committed.get(tp.partition, NO_OFFSET) if tp.partition in stock else found.position
            for tp, found in positions.items()
        },
        {tp.partition: start for tp, start in starts.items()},
        {tp.partition: member.member_id for tp, member in owners.items() if tp.topic == name},
        stock - set(withheld),
    )
    if removed := group.unknown(numbers):
        for p, answer in (await lineages(admin, name, removed)).items():
            group.on_lineage(p, answer)
    asked: set[tuple[int, int]] = set()
    epochs = {info.partition: info.leader_epoch for info in topic.partitions}
    while found := group.ends_to_ask(asked):
        asked.update(found)
        over = [(TopicPartition(name, p), epoch) for p, epoch in found if (name, p) in starts and epochs[p] > epoch]
        for chosen in one_epoch_each(over):
            for tp, end in (await admin.epoch_ends(chosen, within_ms=ANSWER_WITHIN_MS)).items():
                if end.end_offset >= 0:
                    group.on_end(tp.partition, chosen[tp], end.end_offset)
    return group.waits()


async def _kept_from(admin: Admin, topic: str, partitions: set[TopicPartition]) -> dict[int, int]:
    """By partition, the first offset that retention keeps for longer than ``EXPIRING_WITHIN_MS``."""
    if not partitions:
        return {}
    keys = ["cleanup.policy", "retention.ms", WAITS_KEY, MAX_KEY]
    entries = (await admin.describe_configs(topics=[topic], keys=keys))[topic]
    retention_ms = int(entries["retention.ms"].value or -1)
    if "delete" not in (entries["cleanup.policy"].value or "") or retention_ms < 0:
        return {}
    if waits(entries):
        retention_ms += int(entries[MAX_KEY].value or 0)
    ends = await known_offsets(admin, sorted(partitions), "latest")
    when = max(0, int(time.time() * 1000) - retention_ms + EXPIRING_WITHIN_MS)
    kept = await admin.list_offsets(dict.fromkeys(ends, when), within_ms=ANSWER_WITHIN_MS)
    return {tp.partition: kept[tp].offset if kept[tp].offset >= 0 else end for tp, end in ends.items()}
