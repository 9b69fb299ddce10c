"""One join of a group: JoinGroup, the assignment by the leader, SyncGroup; and when another join is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import anyio
import anyio.lowlevel

from anabranch.client.config import ConsumerConfig
from anabranch.client.errors import ErrorCode, KafkaError, error_for
from anabranch.client.group.assignors import Assignor
from anabranch.client.group.coordinator_link import CoordinatorLink
from anabranch.client.group.group_member import GroupMember, MemberState
from anabranch.client.group.group_protocol import (
    PROTOCOL_TYPE,
    AssignedLayout,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    read_layouts,
    refuse_unsubscribed,
)
from anabranch.client.group.led_assignment import LedAssignment, spans_of
from anabranch.client.net.metadata import Metadata
from anabranch.client.subscription.subscription import Subscription
from anabranch.protocol.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from anabranch.protocol.generated.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from anabranch.protocol.message import Message
from anabranch.protocol.types import TopicPartition

_JOIN_MARGIN_MS = 5_000
"""A coordinator answers JoinGroup after up to the rebalance timeout; Kafka's client waits this much longer."""
_NEVER_RESIZED = AssignedLayout(version=0, total=0)
_LEADER_REFRESH_S = 2.0
"""Seconds for which a leader waits for newer metadata before it assigns partitions by its present metadata."""


class Join:
    """Joins as ``member``, and remembers the assignment that it led or got."""

    def __init__(
        self,
        config: ConsumerConfig,
        link: CoordinatorLink,
        assignors: tuple[Assignor, ...],
        subscription: Subscription,
        metadata: Metadata,
        member: GroupMember,
    ) -> None:
        self._config = config
        self._link = link
        self._assignors = assignors
        self._subscription = subscription
        self._metadata = metadata
        self._member = member
        self.is_cooperative = all(assignor.cooperative for assignor in assignors)
        self.led: LedAssignment | None = None
        """The assignment of all members, if this member is the leader and no other assignment is needed."""
        self.owners: dict[TopicPartition, str] = {}
        """The owner of each partition, if this member is the leader."""
        self.assigned_layouts: dict[str, AssignedLayout] | None = None
        """If another member is the leader: the layouts on which its assignment is based; None if it sent no layouts."""

    async def join_and_sync(self) -> tuple[TopicPartition, ...]:
        """Join, and return the assigned partitions. Raises ``KafkaError``, and ``ValueError`` if they are malformed."""
        member, config = self._member, self._config
        member.become(MemberState.JOINING)
        topics = self._subscription.topics
        member.rejoin_needed = False  # a rejoin requested after this line needs another join
        request = JoinGroupRequest(
            group_id=self._link.group_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            member_id=member.member_id,
            group_instance_id=config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=self._protocols(topics),
        )
        timeout_ms = max(config.request_timeout_ms, config.max_poll_interval_ms + _JOIN_MARGIN_MS)
        joined: JoinGroupResponse = await self._ask(request, timeout_ms)
        if joined.error_code:
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                member.member_id = joined.member_id
            raise error_for(joined.error_code)
        member.joined(joined.generation_id, joined.member_id, joined.protocol_name, joined.leader == joined.member_id)
        assignments = await self._assign(joined) if member.leader else []
        if not member.leader:
            self.led = None
            self.owners = {}
        sync = SyncGroupRequest(
            group_id=self._link.group_id,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=member.protocol_name,
            assignments=assignments,
        )
        synced: SyncGroupResponse = await self._ask(sync, timeout_ms)
        if synced.error_code:
            raise error_for(synced.error_code)
        partitions = decode_assignment(synced.assignment)
        refuse_unsubscribed(partitions, topics)
        rejoin = member.rejoin_needed
        self.assigned_layouts = None if member.leader else read_layouts(synced.assignment)
        member.synced()
        member.rejoin_needed = rejoin or self._subscription.topics != topics
        return partitions

    async def _ask(self, request: Message, timeout_ms: float) -> Any:
        response = await self._link.request(request, timeout_ms=timeout_ms)
        await anyio.lowlevel.checkpoint_if_cancelled()  # the member may have left since the answer arrived
        return response

    def _protocols(self, topics: Iterable[str]) -> list[JoinGroupRequestProtocol]:
        owned = self._subscription.partitions if self.is_cooperative else ()
        generation_id = self._member.generation_id
        return [
            JoinGroupRequestProtocol(
                name=assignor.name,
                metadata=encode_subscription(
                    topics,
                    owned,
                    user_data=assignor.user_data(generation_id),
                    generation_id=generation_id,
                    rack_id=self._config.client_rack,
                ),
            )
            for assignor in self._assignors
        ]

    async def _assign(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """Assign partitions to all members, as the group's leader.

        Metadata is refreshed first: another member may know a newer layout than this member.
        """
        assignor = next((a for a in self._assignors if a.name == joined.protocol_name), None)
        if assignor is None:
            raise error_for(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the group chose the assignor {joined.protocol_name!r}, which this member did not offer",
            )
        members = {m.member_id: decode_subscription(m.metadata, m.group_instance_id) for m in joined.members}
        topics = sorted({topic for member in members.values() for topic in member.topics})
        for topic in topics:
            self._metadata.ensure(topic)
        if any(topic not in self._metadata.cluster.topics for topic in topics):
            await self._metadata.refresh()
        else:
            with anyio.move_on_after(_LEADER_REFRESH_S), contextlib.suppress(KafkaError):
                await self._metadata.refresh()
        cluster = self._metadata.cluster
        led = self.led = LedAssignment.make(assignor, members, spans_of(cluster, topics))
        self.owners = led.owners()
        layouts = {
            topic: AssignedLayout(cluster.topics[topic].layout_version, span.total)
            for topic, span in led.spans.items()
            if cluster.is_resized(topic)
        }
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(partitions, layouts))
            for member_id, partitions in led.partitions.items()
        ]

    def needs_assignment(self) -> bool:
        """Whether the leader should assign partitions again, because this member knows a newer layout.

        At a merge a cooperative leader keeps the assignment if it can. So the other members ask only if partitions are
        new or removed. They do not rely on the leader alone: the leader may read no partition of the topic, or be a
        restarted static member that does not know that it leads.
        """
        used = self.assigned_layouts
        if used is None:
            return False
        cluster = self._metadata.cluster
        resized = [name for name in self._subscription.topics if cluster.is_resized(name)]
        return any(
            cluster.topics[name].layout_version > layout.version
            and (not self.is_cooperative or 0 < span.total != layout.total)
            for name, span in spans_of(cluster, resized).items()
            for layout in [used.get(name, _NEVER_RESIZED)]
        )

    def refit(self) -> None:
        """Fit the led assignment to the present metadata. It is None then if another assignment is needed."""
        if self.led is not None:
            self.led = self.led.for_spans(spans_of(self._metadata.cluster, self.led.spans))
