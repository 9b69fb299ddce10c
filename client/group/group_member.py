"""A member of a consumer group (classic protocol): its states, and its reaction to each error code. No IO.

It follows Kafka's ``AbstractCoordinator`` and ``ConsumerCoordinator``.
"""

from __future__ import annotations

import enum

from anabranch.client.errors import ErrorCode, KafkaError, error_for
from anabranch.protocol.sentinels import NO_GENERATION
from anabranch.protocol.transitions import enter

UNKNOWN_MEMBER = ""


class MemberState(enum.Enum):
    """The states of a member. ``VALID_PREVIOUS_STATES`` has each state's possible previous states."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


VALID_PREVIOUS_STATES: dict[MemberState, frozenset[MemberState]] = {
    MemberState.UNJOINED: frozenset(MemberState),
    MemberState.JOINING: frozenset(
        {MemberState.UNJOINED, MemberState.STABLE, MemberState.SYNCING, MemberState.JOINING}
    ),
    MemberState.SYNCING: frozenset({MemberState.JOINING}),
    MemberState.STABLE: frozenset({MemberState.SYNCING}),
}


class Reaction(enum.Enum):
    """The reaction of a member to an error."""

    RETRY = "retry"
    """Send the same request again after a pause."""
    FIND_COORDINATOR = "find coordinator"
    REJOIN = "rejoin"
    """Join again with the present member id."""
    REJOIN_WITHOUT_PARTITIONS = "rejoin without partitions"
    """The generation is over: the member's partitions are lost, join again with the present member id."""
    REJOIN_AS_NEW = "rejoin as new"
    """The group has forgotten this member: its partitions are lost, join without a member id."""
    FAIL = "fail"

    @property
    def is_rejoin(self) -> bool:
        """Whether the member joins again at once."""
        return self in (Reaction.REJOIN, Reaction.REJOIN_WITHOUT_PARTITIONS, Reaction.REJOIN_AS_NEW)


_COMMON: dict[ErrorCode, Reaction] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Reaction.RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Reaction.FIND_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: Reaction.FIND_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION: Reaction.FIND_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: Reaction.FIND_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS: Reaction.REJOIN,
    ErrorCode.MEMBER_ID_REQUIRED: Reaction.REJOIN,
    ErrorCode.UNKNOWN_MEMBER_ID: Reaction.REJOIN_AS_NEW,
    # A static member without its id would take its own place. A coordinator that does not know the id says so next.
    ErrorCode.ILLEGAL_GENERATION: Reaction.REJOIN_WITHOUT_PARTITIONS,
}


class GroupMember:
    """Identity and state of this member."""

    __slots__ = ("generation_id", "leader", "member_id", "protocol_name", "rejoin_needed", "state")

    def __init__(self) -> None:
        self.state = MemberState.UNJOINED
        self.generation_id = NO_GENERATION
        self.member_id = UNKNOWN_MEMBER
        self.protocol_name: str | None = None
        self.leader = False
        self.rejoin_needed = True

    def become(self, state: MemberState) -> None:
        """Change state. Raises ``IllegalTransitionError``."""
        self.state = enter("a member", self.state, state, VALID_PREVIOUS_STATES)

    def joined(self, generation_id: int, member_id: str, protocol_name: str | None, leader: bool) -> None:
        """Process the response to JoinGroup."""
        self.generation_id = generation_id
        self.member_id = member_id
        self.protocol_name = protocol_name
        self.leader = leader
        self.become(MemberState.SYNCING)

    def synced(self) -> None:
        """Process the response to SyncGroup: the assignment belongs to this generation."""
        self.become(MemberState.STABLE)
        self.rejoin_needed = False

    def forget(self, *, keep_member_id: bool = False) -> None:
        """Note that this client is not in the group's generation any more."""
        self.become(MemberState.UNJOINED)
        self.generation_id = NO_GENERATION
        if not keep_member_id:
            self.member_id = UNKNOWN_MEMBER
        self.leader = False
        self.rejoin_needed = True


class MembershipFailure:
    """The error that ended a membership, for the user's next call."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: KafkaError | None = None

    @property
    def is_final(self) -> bool:
        """Whether every call raises the error: another consumer has this member's place in the group (KIP-345).

        To join again would take the place back, and the two consumers would fence each other for ever.
        """
        return self.error is not None and self.error.code is ErrorCode.FENCED_INSTANCE_ID

    def note(self, group_id: str, error: KafkaError, group_instance_id: str | None) -> None:
        """Keep the error, with the names that a coordinator's response lacks."""
        message = f"group {group_id}: {error.message}"
        if error.code is ErrorCode.FENCED_INSTANCE_ID:
            message += f"; another consumer joined with group_instance_id {group_instance_id!r}, so close this one"
        self.error = error_for(error.code, message)

    def take(self) -> KafkaError:
        """The error, for the caller to raise; forgotten unless it is final."""
        assert self.error is not None
        error = self.error.with_traceback(None)
        if not self.is_final:
            self.error = None
        return error


def react(error: ErrorCode) -> Reaction:
    """The reaction of a member to an error of JoinGroup, SyncGroup, Heartbeat or OffsetCommit."""
    known = _COMMON.get(error)
    if known is not None:
        return known
    return Reaction.RETRY if error.retriable else Reaction.FAIL
