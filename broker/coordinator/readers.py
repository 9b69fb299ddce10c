"""Serves TopicReaders and OffsetFetch for groups with stock members (``ordered.delivery.stock.consumers=withhold``).

A leader asks for the groups that read a topic and for their positions (TopicReaders, 25302). It serves stock consumers
only while the answer is younger than ``stock.consumer.lease.ms``. The first OffsetFetch of a new group is answered when
the group has been counted for longer than this lease. By then every leader that may serve the group counts the group,
even a deposed leader.

When a resize creates a partition, the coordinator commits the partition's first offset for each existing group that has
no commit there. Without this commit, ``auto.offset.reset=latest`` would skip records that were written before a member
knew the partition. In a revived partition there is no such commit, because its groups have read the partition before.

If all members of a group keep the order themselves, the group is not counted and nothing is committed for it.

A controller asks for every group that may read a topic, with its commits and positions. Its question counts no group.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from anabranch.broker.coordinator.awaited_positions import NOTHING_KNOWN
from anabranch.broker.coordinator.broker_services import Topics
from anabranch.broker.coordinator.counted import Creation
from anabranch.broker.coordinator.durable import CoordinatorRecord, OffsetRecord, StoredOffset
from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.offsets import CommitEnded, committed_now
from anabranch.broker.coordinator.outcome import Turn
from anabranch.broker.coordinator.position_owners import known_of, owner_of
from anabranch.broker.coordinator.position_poll import ask_owners, may_be_wanted
from anabranch.broker.coordinator.shard import Shard
from anabranch.protocol.generated.offset_fetch import OffsetFetchRequestTopic, OffsetFetchRequestTopics
from anabranch.protocol.generated.topic_readers import TopicReadersRequestQuestion as Question
from anabranch.protocol.generated.topic_readers import (
    TopicReadersRequestTopic,
    TopicReadersResponseGroup,
    TopicReadersResponsePartition,
)
from anabranch.protocol.sentinels import NO_EPOCH, NO_INCARNATION, NO_OFFSET, NO_TIMESTAMP
from anabranch.protocol.subscriptions import CONSUMER_PROTOCOL_TYPE, assigned_partitions, subscribed_topics
from anabranch.protocol.types import TopicPartition

NamedTopic: TypeAlias = OffsetFetchRequestTopic | OffsetFetchRequestTopics

MARGIN = 1.1
"""An allowance for clocks of brokers, which run at slightly different speeds."""
WITHOUT_COMMIT_MS = 60_000
"""How long a group counts after it fetched offsets, if it has no commit in the topic and no member that reads it."""
KNOWN_WITHIN_MS = 5_000
"""The longest time that a member's OffsetFetch waits until this broker knows a partition, or until the group's
beginning in that partition is committed."""
LOOK_AGAIN_MS = 50
REBALANCE = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)


# ---------------------------------------------------------------- answers to leaders


class GroupAnswer(Protocol):
    """A group's answer: ``look`` at all items of the question, ``ask`` once, then ``add`` all; in parts of any size."""

    response: TopicReadersResponseGroup

    def look(self, turn: Turn, items: Sequence[Any]) -> None: ...
    def ask(self, turn: Turn) -> None: ...
    def add(self, turn: Turn, items: Sequence[Any]) -> None: ...


def candidates(turn: Turn, topic: TopicReadersRequestTopic, group_ids: Collection[str]) -> list[str]:
    """The groups that may read the topic; of a controller's question only those of ``group_ids``, unless it is empty.

    A leader's question is noted.
    """
    shard = turn.shard
    if topic.questions:
        return [name for name in group_ids if name in shard.groups] if group_ids else list(shard.groups)
    now_ms = turn.now.monotonic_ms
    shard.counted.note_asked(topic.name, now_ms, now_ms - _lease_ms(turn))
    _forget_idle(turn, topic.name)
    return [*shard.groups, *_without_members(shard, topic.name)]


def counted_groups(turn: Turn, topic: str) -> list[Group]:
    """Groups that leaders have to count for a topic, including groups that have only fetched offsets so far."""
    shard = turn.shard
    _forget_idle(turn, topic)
    found = [group for group in shard.groups.values() if _is_counted(shard, group, topic)]
    return [*found, *map(Group, _without_members(shard, topic))]


def _without_members(shard: Shard, topic: str) -> list[str]:
    """Groups that have only fetched offsets so far."""
    return [name for name, of in shard.counted.since.items() if topic in of and name not in shard.groups]


def _is_counted(shard: Shard, group: Group, topic: str) -> bool:
    if group.state is GroupState.DEAD:
        return False
    if topic in shard.counted.since.get(group.group_id, ()):
        return True
    if group.members and all(member.polls_positions for member in group.members.values()):
        return False
    return _reads(shard, group, topic)


def _reads(shard: Shard, group: Group, topic: str) -> bool:
    return (
        group.group_id in shard.durable.committers.get(topic, ())
        or any(tp.topic == topic for tp in group.pending_commits)
        or (bool(group.members) and topic in (group.subscribed_topics or ()))
    )


def _forget_idle(turn: Turn, topic: str) -> None:
    shard, counted = turn.shard, turn.shard.counted.since
    for group_id, of_group in list(counted.items()):
        since_ms = of_group.get(topic)
        if since_ms is None or turn.now.monotonic_ms - since_ms < WITHOUT_COMMIT_MS:
            continue
        group = shard.groups.get(group_id)
        if group is None or not _reads(shard, group, topic):
            del of_group[topic]
            if not of_group:
                del counted[group_id]


class LeaderAnswer:
    """A group's answer to a leader. Owners that report are asked for their positions."""

    def __init__(self, shard: Shard, group: Group, topic: str, topics: Topics) -> None:
        self._group, self._topic, self._topics = group, topic, topics
        self._reported: dict[TopicPartition, int] = {}
        life = shard.counted.since.get(group.group_id, {}).get(topic, NO_TIMESTAMP)
        self.response = TopicReadersResponseGroup(group_id=group.group_id, life=life)

    def look(self, turn: Turn, items: Sequence[int]) -> None:
        for index in items:
            tp = TopicPartition(self._topic, index)
            if _is_reported(turn.shard, self._group, tp):
                self._reported[tp] = self._topics.incarnation(*tp)

    def ask(self, turn: Turn) -> None:
        if self._reported:
            ask_owners(turn, self._group, self._reported)

    def add(self, turn: Turn, items: Sequence[int]) -> None:
        for index in items:
            tp = TopicPartition(self._topic, index)
            is_reported = tp in self._reported
            if is_reported:
                position = _report(self._group, tp, self._topics)
            else:
                position = _commit(turn.shard, self._group, tp, self._topics)
            if position != NO_OFFSET or is_reported:
                self.response.partitions.append(
                    TopicReadersResponsePartition(partition_index=index, position=position, is_reported=is_reported)
                )


def for_leader(turn: Turn, group_id: str, topic: TopicReadersRequestTopic, topics: Topics) -> LeaderAnswer | None:
    """The answer about a group, still without partitions; None if leaders do not count it."""
    group = turn.shard.groups.get(group_id) or Group(group_id)
    return LeaderAnswer(turn.shard, group, topic.name, topics) if _is_counted(turn.shard, group, topic.name) else None


def _is_reported(shard: Shard, group: Group, tp: TopicPartition) -> bool:
    """Whether the partition's owner reports positions. During a rebalance, any member that reports may be the owner."""
    if group.state is GroupState.STABLE:
        owner = group.members.get(owner_of(shard, group, tp) or "")
        return owner is not None and owner.polls_positions
    return any(member.polls_positions for member in group.members.values())


def _report(group: Group, tp: TopicPartition, topics: Topics) -> int:
    report = group.positions.reports.get(tp)
    is_current = report is not None and report.incarnation == topics.incarnation(*tp)
    return report.position if report is not None and is_current else NO_OFFSET


def _commit(shard: Shard, group: Group, tp: TopicPartition, topics: Topics, incarnation: int = NO_INCARNATION) -> int:
    """The committed offset; -1 without a commit, and if the commit is of another incarnation than the given one."""
    committed = shard.durable.offsets_of(group.group_id).get(tp)
    found = None if committed is None else committed_now(tp, committed, topics)
    if found is None or (incarnation >= 0 and found.incarnation not in (NO_INCARNATION, incarnation)):
        return NO_OFFSET
    return found.offset


# ---------------------------------------------------------------- answers to the controller


class ControllerAnswer:
    """A group's answer to the controller, with commits and positions.

    Without ``knows_positions`` members cannot report their positions, and so no commit shows what they have processed.
    """

    def __init__(
        self, response: TopicReadersResponseGroup, group: Group, topic: str, topics: Topics, *, is_subscribed: bool,
        knows_positions: bool,
    ) -> None:  # fmt: skip
        self.response = response
        self._group, self._topic, self._topics = group, topic, topics
        self._is_subscribed, self._knows_positions = is_subscribed, knows_positions
        self._due: dict[TopicPartition, int] = {}

    def look(self, turn: Turn, items: Sequence[Question]) -> None:
        for question in items:
            tp = TopicPartition(self._topic, question.partition_index)
            if 0 <= question.ask_from <= max(self._commit(turn, tp, question), 0):
                self._due[tp] = question.incarnation

    def ask(self, turn: Turn) -> None:
        ask_owners(turn, self._group, self._due)  # once: each call takes as long as all that were asked for before

    def add(self, turn: Turn, items: Sequence[Question]) -> None:
        for question in items:
            tp = TopicPartition(self._topic, question.partition_index)
            known = NOTHING_KNOWN
            if self._knows_positions:
                known = known_of(turn.shard, self._group, tp, question.incarnation)
            self.response.partitions.append(
                TopicReadersResponsePartition(
                    partition_index=tp.partition,
                    position=known.position,
                    is_reported=self._is_subscribed and known.awaits_report,
                    committed_offset=self._commit(turn, tp, question),
                    need_position=may_be_wanted(self._group, tp) or not self._knows_positions,
                )
            )

    def _commit(self, turn: Turn, tp: TopicPartition, question: Question) -> int:
        return _commit(turn.shard, self._group, tp, self._topics, question.incarnation)


def for_controller(
    turn: Turn, group_id: str, topic: TopicReadersRequestTopic, topics: Topics, *, knows_positions: bool = True
) -> ControllerAnswer | None:
    """The answer about a group, still without partitions; None if it does not read the topic and may not read it."""
    shard = turn.shard
    group = shard.groups.get(group_id)
    if group is None:
        return None
    has_committed = group_id in shard.durable.committers.get(topic.name, ())
    is_subscribed, unreadable_member = _subscription(shard, group, topic.name)
    is_reading = is_subscribed or has_committed or any(tp.topic == topic.name for tp in group.pending_commits)
    in_rebalance = group.protocol_type == CONSUMER_PROTOCOL_TYPE and group.state in REBALANCE
    if not (is_reading or unreadable_member or in_rebalance):
        return None
    response = TopicReadersResponseGroup(
        group_id=group_id,
        is_reading=is_reading,
        has_committed=has_committed,
        is_settled=group.state in (GroupState.STABLE, GroupState.EMPTY),
        unreadable_member=unreadable_member,
    )
    return ControllerAnswer(
        response, group, topic.name, topics, is_subscribed=is_subscribed, knows_positions=knows_positions
    )


def _subscription(shard: Shard, group: Group, topic: str) -> tuple[bool, str]:
    """Whether a member of a stable group subscribes to the topic, and a member if this is not known because of it.

    Some clients cut a subscription short. The part before the cut is read. If a subscription cannot be read at all, the
    topics of the group's assignment count.
    """
    if group.state is not GroupState.STABLE or group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return False, ""
    if group.subscribed_topics is not None:
        return topic in group.subscribed_topics, ""
    generation, unreadable_member = shard.durable.generations[group.group_id], ""
    named, assigned = set[str](), set[str]()
    for member in group.members.values():
        subscribed = subscribed_topics([member.metadata(group.protocol_name or "")])
        named |= subscribed or set()
        unreadable_member = member.member_id if subscribed is None else unreadable_member
        assignment = generation.assignment_of(member.member_id, member.group_instance_id)
        assigned |= {tp.topic for tp in assigned_partitions(assignment)}
    return topic in named | assigned, "" if assigned else unreadable_member


# ---------------------------------------------------------------- where members begin


def count_group(turn: Turn, group_id: str, asked: Iterable[NamedTopic], topics: Topics) -> None:
    """Count the group as a reader of these topics from now on, if it does not count yet."""
    for topic in asked:
        if topics.withholds(topic.name):
            turn.shard.counted.since.setdefault(group_id, {}).setdefault(topic.name, turn.now.monotonic_ms)


def begins_at_ms(turn: Turn, group_id: str, asked: Iterable[OffsetFetchRequestTopics], topics: Topics) -> int:
    """The time (monotonic ms) from which OffsetFetch may be answered to a counted group.

    A leader that has not asked this coordinator about a topic yet will count the group when it asks. But in a resized
    topic such a leader may still use an answer of the previous coordinator, so the fetch waits in any case.
    """
    now_ms, counted = turn.now.monotonic_ms, turn.shard.counted
    at_ms = now_ms
    for topic in asked:
        if topics.withholds(topic.name):
            since_ms = counted.since[group_id][topic.name]
            if counted.was_asked(topic.name, now_ms - _lease_ms(turn)) or topics.is_resized(topic.name):
                at_ms = max(at_ms, since_ms + _lease_ms(turn))
    return at_ms


def _lease_ms(turn: Turn) -> int:
    """After this time no leader uses an answer any more."""
    return int(turn.config.stock_consumer_lease_ms * MARGIN)


class Beginning(enum.Enum):
    """The state of a group's commits in the partitions for which it asks."""

    KNOWN = "no commit is missing"
    UNWRITTEN = "the beginning in a new partition is not committed yet"
    NO_PARTITION = "this broker does not know a partition, which may be new"


def beginning(turn: Turn, group_id: str, asked: Iterable[OffsetFetchRequestTopics], topics: Topics) -> Beginning:
    """Return the present state. If the commit of a beginning failed, the beginning is written again."""
    partitions = [
        TopicPartition(topic.name, index)
        for topic in asked
        if topics.withholds(topic.name)
        for index in topic.partition_indexes
    ]
    if any(tp in turn.shard.counted.unwritten.get(group_id, ()) for tp in partitions):
        write_beginnings(turn, group_id, topics)
    if any(tp in turn.shard.counted.unwritten.get(group_id, ()) for tp in partitions):
        return Beginning.UNWRITTEN
    is_known = all(topics.contains(*tp) or topics.merged_away(*tp) for tp in partitions)
    return Beginning.KNOWN if is_known else Beginning.NO_PARTITION


# ---------------------------------------------------------------- beginnings


def note_created(turn: Turn, group_ids: Iterable[str], created: Mapping[TopicPartition, Creation]) -> None:
    """Note that these groups need a commit at the first offset of partitions that were created."""
    for group_id in group_ids:
        committed = turn.shard.durable.offsets_of(group_id)
        new = {tp: creation for tp, creation in created.items() if tp not in committed}
        if new:
            turn.shard.counted.unwritten.setdefault(group_id, {}).update(new)


def write_beginnings(turn: Turn, group_id: str, topics: Topics) -> None:
    """Commit the group's beginnings, except in partitions that were removed or have a commit, even one in flight."""
    shard = turn.shard
    unwritten = shard.counted.unwritten.get(group_id, {})
    committed = shard.durable.offsets_of(group_id)
    for tp, creation in list(unwritten.items()):
        if tp in committed or topics.incarnation(*tp) != creation.incarnation:
            del unwritten[tp]
    if not unwritten:
        shard.counted.unwritten.pop(group_id, None)
        return
    group = shard.groups.get(group_id)
    if group is None:
        group = shard.groups[group_id] = Group(group_id, shard.memory)
    if group.state is GroupState.DEAD:
        return
    records: list[CoordinatorRecord] = []
    partitions = []
    for tp, creation in unwritten.items():
        if tp not in group.pending_commits:
            value = StoredOffset(creation.base_offset, NO_EPOCH, "", turn.now.wall_ms, incarnation=creation.incarnation)
            records.append(OffsetRecord(group_id, tp, value))
            partitions.append(tp)
            group.commit_started(tp, value)
    if records:
        turn.out.write(group_id, records, CommitEnded(group, partitions))
