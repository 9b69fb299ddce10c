"""Drives the pure core of the group coordinator: events in, replies and records out, no loop, no clock, no log.

``Driver`` has a shard and its log. Writes wait in ``in_flight`` until ``settle`` completes them. With
``auto_commit`` each write completes at once. Every record in ``log`` was encoded and decoded.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.broker.coordinator import admin, expiry, join, membership, offsets, position_poll, sync
from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.consumer_offsets_records import UnknownRecord, decode, encode
from anabranch.broker.coordinator.deletions import PartitionDeletion
from anabranch.broker.coordinator.durable import CoordinatorRecord, DurableState
from anabranch.broker.coordinator.outcome import CoordinatorOutcome, GroupWrite, Now, Turn, is_committed
from anabranch.broker.coordinator.shard import Shard
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from anabranch.protocol.generated.consumer_protocol import TopicPartition as AssignedPartitions
from anabranch.protocol.generated.offset_fetch import OffsetFetchRequestTopics
from anabranch.protocol.message import encode_versioned
from anabranch.protocol.types import TopicPartition
from tests.support.broker import group_requests
from tests.support.broker.group_requests import GROUP
from tests.unit.coordinator.fakes import EveryTopic

WALL_START_MS = 1_600_000_000_000


@dataclass(frozen=True)
class Context:
    """The sender of a request."""

    client_id: str | None = "c"
    client_host: str = "127.0.0.1"
    api_version: int = 7
    keeps_order: bool = False


def subscription(*topics: str) -> bytes:
    """Return a consumer's metadata in JoinGroup."""
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 1)


def assignment(*partitions: tuple[str, int]) -> bytes:
    """Return a consumer's assignment in SyncGroup."""
    assigned = [AssignedPartitions(topic=topic, partitions=[index]) for topic, index in partitions]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=assigned), 1)


@dataclass
class Driver:
    """One shard under test."""

    config: GroupConfig = field(default_factory=GroupConfig)
    auto_commit: bool = True
    ms: int = 0
    replies: dict[str, Any] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    """The tokens in the order of their answers."""
    in_flight: deque[GroupWrite] = field(default_factory=deque)
    log: list[CoordinatorRecord] = field(default_factory=list)
    missing_topics: frozenset[str] = frozenset()
    merged: frozenset[tuple[str, int]] = frozenset()
    incarnations: dict[tuple[str, int], int] = field(default_factory=dict)
    bases: dict[tuple[str, int], int] = field(default_factory=dict)
    deleted_epoch: int = -1
    ids: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        self.shard = Shard(self.config)

    # ------------------------------------------------------------ machinery

    @property
    def now(self) -> Now:
        return Now(WALL_START_MS + self.ms, self.ms)

    def turn(self) -> Turn:
        return Turn(self.shard, self.now)

    def perform(self, out: CoordinatorOutcome) -> None:
        for token, response in out.replies:
            assert isinstance(token, str)
            assert token not in self.replies, f"{token} answered twice"
            self.replies[token] = response
            self.order.append(token)
        self.in_flight.extend(out.writes)
        if self.auto_commit:
            self.settle_all()

    def settle(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Complete the oldest write, with an error or without."""
        write = self.in_flight.popleft()
        if is_committed(error):
            for record in write.records:
                self.shard.durable.replay(record)
                stored = decode(*encode(record))
                assert not isinstance(stored, UnknownRecord)
                self.log.append(stored)
        if write.then is not None:
            self.perform(write.then.resolve(self.shard, error, self.now))

    def overdue(self) -> None:
        """Let the oldest write take too long."""
        write = self.in_flight[0]
        if write.then is not None:
            out, then = write.then.overdue(self.shard, self.now)
            self.in_flight[0] = replace(write, then=then)
            self.perform(out)

    def settle_all(self) -> None:
        while self.in_flight:
            self.settle()

    def advance(self, by_ms: int) -> None:
        """Let time pass, and call each group at each of its deadlines."""
        until = self.ms + by_ms
        for _ in range(10_000):
            due = [g for g in self.shard.groups.values() if g.wake_ms is not None and g.wake_ms <= until]
            if not due:
                self.ms = until
                return
            group = min(due, key=lambda g: (g.wake_ms, g.group_id))
            assert group.wake_ms is not None
            self.ms = max(self.ms, group.wake_ms)
            turn = self.turn()
            membership.on_deadlines(turn, group)
            self.perform(turn.out)
        raise AssertionError("the group sets deadlines without end")

    def restarted(self) -> Driver:
        """Return a successor that loaded this driver's log."""
        successor = Driver(self.config, self.auto_commit, self.ms, ids=self.ids + 1000, tokens=self.tokens)
        for record in self.log:
            successor.shard.durable.replay(record)
        successor.log = list(self.log)
        for group_id in successor.shard.durable.group_ids():
            membership.adopt_group(successor.turn(), group_id)
        return successor

    def replayed(self) -> DurableState:
        """Return the state that a replay of the log gives."""
        state = DurableState()
        for record in self.log:
            state.replay(record)
        return state

    def _token(self, token: str | None) -> str:
        if token is not None:
            return token
        self.tokens += 1
        return f"t{self.tokens}"

    # ------------------------------------------------------------ requests

    def join(
        self,
        member_id: str = "",
        *,
        group: str = GROUP,
        v: int = 3,
        token: str | None = None,
        client: str = "c",
        instance: str | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = 20_000,
        protocol_type: str = "consumer",
        protocols: tuple[str, ...] = ("range",),
        metadata: bytes = b"",
        topics: tuple[str, ...] | None = None,
    ) -> str:
        token = self._token(token)
        self.ids += 1
        blob = metadata if topics is None else subscription(*topics)
        request = group_requests.join(
            member_id,
            group=group,
            instance=instance,
            session_ms=session_ms,
            rebalance_ms=rebalance_ms,
            protocol_type=protocol_type,
            protocols=protocols,
            metadata=blob,
        )
        turn = self.turn()
        join.join_group(turn, token, Context(client, api_version=v), request, str(self.ids))
        self.perform(turn.out)
        return token

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = GROUP,
        v: int = 5,
        token: str | None = None,
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
    ) -> str:
        token = self._token(token)
        named = {"protocol_type": protocol_type, "protocol_name": protocol}
        request = group_requests.sync(member_id, generation, assignments, group=group, instance=instance, **named)
        turn = self.turn()
        sync.sync_group(turn, token, v, request)
        self.perform(turn.out)
        return token

    def heartbeat(self, member_id: str, generation: int, **given: Any) -> ErrorCode:
        token = self._token(None)
        turn = self.turn()
        membership.heartbeat(turn, token, group_requests.heartbeat(member_id, generation, **given))
        self.perform(turn.out)
        return ErrorCode(self.replies[token].error_code)

    def leave(self, *members: tuple[str, str | None], group: str = GROUP, v: int = 4) -> Any:
        token = self._token(None)
        turn = self.turn()
        request = group_requests.leave(*members, group=group, member_id=members[0][0])
        membership.leave_group(turn, token, v, request)
        self.perform(turn.out)
        return self.replies[token]

    def commit(
        self,
        offsets_by_partition: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        *,
        token: str | None = None,
        metadata: str | None = "",
        leader_epoch: int = -1,
        incarnation: int = -1,
        processed: bool = False,
        **given: Any,
    ) -> str:
        token = self._token(token)
        request = group_requests.commit(
            offsets_by_partition,
            member_id,
            generation,
            committed_metadata=metadata,
            committed_leader_epoch=leader_epoch,
            incarnation=incarnation,
            is_processed=processed,
            **given,
        )
        turn = self.turn()
        offsets.commit_offsets(turn, token, request, self.topics)
        self.perform(turn.out)
        return token

    def poll(self, member_id: str, generation: int, *wants: tuple[str, int], **given: Any) -> str:
        """Send ConsumerGroupPosition, with the arguments of ``group_requests.poll``."""
        token = self._token(None)
        turn = self.turn()
        request = group_requests.poll(member_id, generation, *wants, **given)
        position_poll.poll_positions(turn, token, request, self.incarnation_of)
        self.perform(turn.out)
        return token

    @property
    def topics(self) -> EveryTopic:
        """Return the topics of the broker's metadata."""
        topics = EveryTopic()
        topics.missing, topics.merged = set(self.missing_topics), set(self.merged)
        topics.incarnations, topics.bases = self.incarnations, self.bases
        topics.deleted_epoch = self.deleted_epoch
        return topics

    def incarnation_of(self, topic: str, partition: int) -> int:
        return self.incarnations.get((topic, partition), -1)

    def exists(self, topic: str, partition: int) -> bool:
        return topic not in self.missing_topics

    def delete_offsets(self, *partitions: tuple[str, int], group: str = GROUP) -> Any:
        token = self._token(None)
        turn = self.turn()
        request = group_requests.delete_offsets(*partitions, group=group)
        offsets.delete_offsets(turn, token, request, self.exists)
        self.perform(turn.out)
        return self.replies[token]

    def delete_group(self, group: str = GROUP, *, token: str | None = None) -> str:
        token = self._token(token)
        turn = self.turn()
        admin.delete_group(turn, token, group)
        self.perform(turn.out)
        return token

    def expire(self) -> None:
        for group in list(self.shard.groups.values()):
            turn = self.turn()
            expiry.expire_offsets(turn, group)
            self.perform(turn.out)

    def remove_partitions(
        self,
        *partitions: tuple[str, int],
        deletion: PartitionDeletion = PartitionDeletion(),  # noqa: B008
    ) -> None:
        for group in list(self.shard.groups.values()):
            turn = self.turn()
            expiry.remove_partitions(turn, group, {TopicPartition(*tp): deletion for tp in partitions})
            self.perform(turn.out)

    # ------------------------------------------------------------ shortcuts

    def error(self, token: str) -> ErrorCode:
        return ErrorCode(self.replies[token].error_code)

    def commit_error(self, token: str) -> ErrorCode:
        """Return the error of a commit of one partition."""
        (topic,) = self.replies[token].topics
        (partition,) = topic.partitions
        return ErrorCode(partition.error_code)

    def committed(self, topic: str, partition: int, group: str = GROUP) -> int | None:
        found = self.shard.durable.offsets_of(group).get(TopicPartition(topic, partition))
        return None if found is None else found.offset

    def answered(self, token: str) -> dict[tuple[str, int], tuple[int, bool]] | None:
        """Return a poll's answer by partition, or None while the poll waits.

        A partition's answer is its position, and whether the member should report it.
        """
        if token not in self.replies:
            return None
        assert self.error(token) is ErrorCode.NONE
        return {
            (topic.name, found.partition_index): (found.position, found.need_position)
            for topic in self.replies[token].topics
            for found in topic.partitions
        }

    def awaited(self, token: str) -> set[tuple[str, int]]:
        """Return the partitions of a poll's answer whose position only a live member knows."""
        assert self.error(token) is ErrorCode.NONE
        topics = self.replies[token].topics
        return {(topic.name, p.partition_index) for topic in topics for p in topic.partitions if p.awaits_report}

    def rewinds(self, token: str) -> dict[tuple[str, int], int]:
        """Return the number of rewinds of each partition in the response to a poll."""
        assert self.error(token) is ErrorCode.NONE
        return {
            (topic.name, p.partition_index): p.rewinds for topic in self.replies[token].topics for p in topic.partitions
        }

    def fetched(self, group: str = GROUP, *, require_stable: bool = False) -> Any:
        """Return all committed offsets of a group."""
        return offsets.fetch_offsets(self.shard, group, None, self.topics, require_stable=require_stable)

    def fetched_one(self, partition: tuple[str, int], group: str = GROUP) -> int:
        """Return the committed offset of a partition in OffsetFetch."""
        topics = [OffsetFetchRequestTopics(name=partition[0], partition_indexes=[partition[1]])]
        (topic,) = offsets.fetch_offsets(self.shard, group, topics, self.topics, require_stable=False).topics
        return topic.partitions[0].committed_offset

    def state(self, group: str = GROUP) -> str:
        return admin.describe_group(self.shard, group, self.now).group_state

    def stable_group(
        self,
        *clients: str,
        group: str = GROUP,
        owns: dict[str, list[tuple[str, int]]] | None = None,
        **join_options: Any,
    ) -> list[str]:
        """Return the members of a stable group, one per client, the leader first.

        Each member's assignment is the member's own id, or the partitions that its client ``owns``.
        """
        tokens = [self.join(client=client, group=group, **join_options) for client in clients]
        self.advance(self.config.initial_rebalance_delay_ms)
        for _ in clients:
            self.advance(self.config.initial_rebalance_delay_ms)
        members = [self.replies[token].member_id for token in tokens]
        generation = self.replies[tokens[0]].generation_id
        for member_id in reversed(members):
            protocol = self.replies[tokens[0]].protocol_name
            options = {"protocol_type": join_options.get("protocol_type", "consumer"), "protocol": protocol}
            is_leader = member_id == members[0]
            assignments = {m: m.encode() for m in members} if is_leader else {}
            if is_leader and owns is not None:
                assignments = {m: assignment(*owns.get(client, [])) for m, client in zip(members, clients, strict=True)}
            self.sync(member_id, generation, assignments, group=group, **options)
        assert self.state(group) == "Stable"
        return members


PARENT, CHILD, OTHER = ("t", 1), ("t", 5), ("t", 2)
"""Partitions of a topic that is resized: the child gets keys of the parent."""


def two_members(driver: Driver | None = None) -> tuple[Driver, str, str]:
    """Return a driver, the parent's owner and the child's owner."""
    driver = driver or Driver()
    owner, waiter = driver.stable_group("a", "b", owns={"a": [PARENT], "b": [CHILD]})
    return driver, owner, waiter
