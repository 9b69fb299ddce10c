"""The volatile state of a group that this broker coordinates: members, waiting requests and deadlines.

It is dropped on unload. State that must survive is in ``durable.DurableState``; a group is built from it on load. This
module makes no decisions; the modules ``join``, ``sync``, ``membership``, ``offsets`` and ``expiry`` make them. All
deadlines are monotonic milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from anabranch.broker.coordinator.awaited_positions import GroupPositions
from anabranch.broker.coordinator.durable import StableGeneration, StoredOffset
from anabranch.broker.coordinator.group_state import VALID_PREVIOUS_STATES, GroupState
from anabranch.broker.coordinator.token import Token
from anabranch.protocol.sentinels import NO_TIMESTAMP
from anabranch.protocol.subscriptions import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from anabranch.protocol.transitions import enter
from anabranch.protocol.types import TopicPartition

Protocols: TypeAlias = list[tuple[str, bytes]]
"""The assignment protocols that a member supports, the preferred one first, with the member's metadata for each."""


GROUP_BYTES = 2_000
MEMBER_BYTES = 1_000
_PROTOCOL_BYTES = 150
PENDING_BYTES = 200
"""The objects of a group, of a member, of one of its protocols, and of a member id that was only sent, without text."""


def protocols_bytes(protocols: Protocols) -> int:
    """The memory that a member's protocols take."""
    return sum(_PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)


@dataclass(slots=True, eq=False)
class MemberMemory:
    """The memory that the groups with members of one partition take, in bytes."""

    taken_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ParkedJoin:
    """A JoinGroup request that waits; its version decides how a missing protocol name is written."""

    token: Token
    api_version: int


@dataclass(slots=True, eq=False)
class Member:
    """One member. Its session ends at ``deadline_ms`` unless a request of the member arrives earlier, or waits then."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    join: ParkedJoin | None = None
    sync: Token | None = None
    is_new: bool = False
    """Whether no join of the member was answered yet.
    Such a member cannot heartbeat: its waiting join times out instead."""
    polls_positions: bool = False
    """Whether the member polled for positions, or announced polls in a heartbeat: it will poll in every generation."""
    deadline_ms: int | None = None

    def metadata(self, protocol_name: str) -> bytes:
        """The member's metadata for a protocol; empty if it does not support the protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    @property
    def kept_bytes(self) -> int:
        """The memory that the member takes."""
        ids = len(self.member_id) + len(self.group_instance_id or "") + len(self.client_id) + len(self.client_host)
        return MEMBER_BYTES + ids + protocols_bytes(self.protocols)

    @property
    def is_expected_to_heartbeat(self) -> bool:
        """False while a waiting request shows that the member is alive."""
        return self.is_new or (self.join is None and self.sync is None)


@dataclass(slots=True, eq=False)
class Group:
    """The volatile state of one group; see the module."""

    group_id: str
    memory: MemberMemory = field(default_factory=MemberMemory)
    """Where the members count."""
    kept_bytes: int = 0
    """The memory of this group: 0 without members and expected member ids, otherwise with the group's own objects."""
    assigned_bytes: int = 0
    """The length of the assignments of the latest generation."""
    state: GroupState = GroupState.EMPTY
    state_timestamp_ms: int = NO_TIMESTAMP
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_members: dict[str, int] = field(default_factory=dict)
    """The member ids that were sent with MEMBER_ID_REQUIRED, each with the time at which it is forgotten."""
    pending_sync: dict[str, None] = field(default_factory=dict)
    """Members of this generation that have not sent SyncGroup yet."""
    subscribed_topics: frozenset[str] | None = None
    """All topics to which members subscribe; None if the subscriptions cannot be read."""
    new_member_added: bool = False
    rebalance_deadline_ms: int | None = None
    initial_delay_remaining_ms: int | None = None
    """By how much the wait may still be prolonged, while an empty group waits for its first members."""
    sync_deadline_ms: int | None = None
    assignment_in_flight: bool = False
    """Whether the leader's assignment of this generation is being written to the log."""
    pending_commits: dict[TopicPartition, list[StoredOffset]] = field(default_factory=dict)
    """The offset commits that are being written to the log, by partition, oldest first."""
    positions: GroupPositions = field(default_factory=GroupPositions)
    wake_ms: int | None = None
    """The time when the timer checks the group: at the group's earliest deadline, or before."""
    _protocol_counts: dict[str, int] = field(default_factory=dict)
    awaiting_join: int = 0

    @classmethod
    def from_durable(cls, group_id: str, stored: StableGeneration | None, memory: MemberMemory) -> Group:
        """Build the group for a new coordinator: Stable with the stored members, or Empty."""
        group = cls(group_id, memory)
        if stored is None:
            return group
        group.generation_id = stored.generation_id
        group.protocol_type = stored.protocol_type
        group.protocol_name = stored.protocol_name
        group.state_timestamp_ms = stored.state_timestamp_ms
        for stored_member in stored.members.values():
            group.add(
                Member(
                    member_id=stored_member.member_id,
                    group_instance_id=stored_member.group_instance_id,
                    client_id=stored_member.client_id,
                    client_host=stored_member.client_host,
                    rebalance_timeout_ms=stored_member.rebalance_timeout_ms,
                    session_timeout_ms=stored_member.session_timeout_ms,
                    protocols=[(stored.protocol_name or "", stored_member.subscription)],
                )
            )
        if group.members:
            group.note_assigned(sum(len(member.assignment) for member in stored.members.values()))
        group.leader_id = stored.leader_id if stored.leader_id in group.members else next(iter(group.members), None)
        if group.members:
            group.state = GroupState.STABLE
        group.refresh_subscribed_topics()
        return group

    def transition_to(self, target: GroupState, wall_ms: int) -> None:
        """Change the state. Raises ``IllegalTransitionError`` if the table of ``group_state`` forbids it."""
        self.state = enter(f"group {self.group_id!r}", self.state, target, VALID_PREVIOUS_STATES)
        self.state_timestamp_ms = wall_ms

    # ------------------------------------------------------------ deadlines

    def wake_by(self, deadline_ms: int) -> int:
        """Make the timer check the group at ``deadline_ms`` or earlier; returns ``deadline_ms``."""
        if self.wake_ms is None or deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms
        return deadline_ms

    def reset_wake(self) -> None:
        """Set ``wake_ms`` to the earliest of all deadlines."""
        deadlines = [m.deadline_ms for m in self.members.values() if m.deadline_ms is not None]
        deadlines.extend(self.pending_members.values())
        deadlines.extend(d for d in (self.rebalance_deadline_ms, self.sync_deadline_ms) if d is not None)
        deadlines.extend(self.positions.deadlines())
        self.wake_ms = min(deadlines, default=None)

    def keep_alive(self, member: Member, monotonic_ms: int, timeout_ms: int | None = None) -> None:
        """Start the member's session (or ``timeout_ms``) again, after a request of the member."""
        length_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        member.deadline_ms = self.wake_by(monotonic_ms + length_ms)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    # ------------------------------------------------------------ members

    def add(self, member: Member) -> None:
        """Add a member; the first one becomes the leader."""
        self.members[member.member_id] = member
        self.forget_pending(member.member_id)
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._count(member, 1)
        self.awaiting_join += member.join is not None

    def remove(self, member_id: str) -> Member | None:
        """Remove a member; the caller answers its waiting requests."""
        self.forget_pending(member_id)
        self.pending_sync.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._count(member, -1)
        self.awaiting_join -= member.join is not None
        instance_id = member.group_instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        if not self.members:
            self.note_assigned(0)
        return member

    def rename_static(self, group_instance_id: str, new_member_id: str) -> Member:
        """Give a static member a new member id. If it is the leader, it stays the leader."""
        old_member_id = self.static_members[group_instance_id]
        member = self.members.pop(old_member_id)
        self._count(member, -1)
        member.member_id = new_member_id
        self._count(member, 1)
        member.polls_positions = False  # another process, perhaps of another client
        self.members[new_member_id] = member
        self.static_members[group_instance_id] = new_member_id
        if old_member_id in self.pending_sync:
            del self.pending_sync[old_member_id]
            self.pending_sync[new_member_id] = None
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        self.positions.renamed(old_member_id, new_member_id, member.session_timeout_ms)
        return member

    def update(self, member: Member, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int) -> None:
        """Store the values of the member's new JoinGroup."""
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def expect(self, member_id: str, deadline_ms: int) -> None:
        """Expect a member with an id that it was sent, up to the deadline."""
        self.pending_members[member_id] = self.wake_by(deadline_ms)
        self._keep(PENDING_BYTES + len(member_id))

    def note_assigned(self, assigned_bytes: int) -> None:
        """Count the assignments of a generation instead of those before."""
        self._keep(assigned_bytes - self.assigned_bytes)
        self.assigned_bytes = assigned_bytes

    def forget_pending(self, member_id: str) -> None:
        """Expect a member no longer."""
        if self.pending_members.pop(member_id, None) is not None:
            self._keep(-PENDING_BYTES - len(member_id))

    def park_join(self, member: Member, join: ParkedJoin) -> ParkedJoin | None:
        """Let the member's join wait for the rebalance; returns an earlier join of the member that still waited."""
        previous = member.join
        self.awaiting_join += previous is None
        member.join = join
        return previous

    def take_join(self, member: Member) -> ParkedJoin | None:
        """Remove and return the member's waiting join."""
        join = member.join
        self.awaiting_join -= join is not None
        member.join = None
        return join

    @property
    def has_all_members_joined(self) -> bool:
        return self.awaiting_join == len(self.members) and not self.pending_members

    def _keep(self, delta_bytes: int) -> None:
        if self.kept_bytes == 0 and delta_bytes > 0:
            delta_bytes += GROUP_BYTES
        elif self.kept_bytes + delta_bytes == GROUP_BYTES:
            delta_bytes -= GROUP_BYTES
        self.kept_bytes += delta_bytes
        self.memory.taken_bytes += delta_bytes

    def _count(self, member: Member, by: int) -> None:
        self._keep(by * member.kept_bytes)
        for name in {name for name, _ in member.protocols}:
            count = self._protocol_counts.get(name, 0) + by
            if count:
                self._protocol_counts[name] = count
            else:
                self._protocol_counts.pop(name, None)

    # ------------------------------------------------------------ protocols

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols is compatible with the present members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        everyone = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._protocol_counts.get(name, 0) == everyone for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """The protocol that all support and most members prefer; on a tie, the one that the earliest member prefers."""
        everyone = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if self._protocol_counts[name] == everyone)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def refresh_subscribed_topics(self) -> None:
        """Read the topics from the members' subscriptions under the chosen protocol."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            self.subscribed_topics = None
        elif not self.members:
            self.subscribed_topics = frozenset()
        elif self.protocol_name is not None:
            name = self.protocol_name
            self.subscribed_topics = subscribed_topics(m.metadata(name) for m in self.members.values())

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to the topic; also True if the subscriptions cannot be read."""
        return self.subscribed_topics is None or topic in self.subscribed_topics

    # ------------------------------------------------------------ offset commits in flight

    def commit_started(self, partition: TopicPartition, committed: StoredOffset) -> None:
        self.pending_commits.setdefault(partition, []).append(committed)

    def commit_ended(self, partition: TopicPartition) -> None:
        """Remove the oldest pending commit: the results of writes are processed in the order of the writes."""
        pending = self.pending_commits[partition]
        del pending[0]
        if not pending:
            del self.pending_commits[partition]
