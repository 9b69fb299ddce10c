"""A member's standing in its group, as the coordinator's answers to joins, heartbeats and commits change it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from anabranch.client.errors import ErrorCode, KafkaError
from anabranch.client.group.coordinator_link import CoordinatorLink
from anabranch.client.group.group_member import GroupMember, MembershipFailure, MemberState, Reaction, react
from anabranch.client.subscription.subscription import Subscription

_log = logging.getLogger(__name__)


class MemberStanding:
    """Shared by the parts of one membership."""

    def __init__(self, link: CoordinatorLink, subscription: Subscription, group_instance_id: str | None) -> None:
        self._link = link
        self._subscription = subscription
        self._group_instance_id = group_instance_id
        self.member = GroupMember()
        self.failure = MembershipFailure()
        self.is_joining = False
        self.is_lost = False
        """Whether the member has lost its partitions, and the user's task has not given them up yet."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the member has lost its place in the group."""

    def is_stable_in(self, generation_id: int) -> bool:
        """Whether this is the present generation, and no join of this member is running."""
        return self.member.state is MemberState.STABLE and self.member.generation_id == generation_id

    def note_error(self, error: KafkaError) -> Reaction:
        """Change the member's state as an error demands, and return the reaction."""
        reaction = react(error.code)
        _log.info("group %s: %s (reaction: %s)", self._link.group_id, error, reaction.name.lower().replace("_", " "))
        if reaction is Reaction.FIND_COORDINATOR:
            self._link.moved()
        elif reaction in (Reaction.REJOIN_WITHOUT_PARTITIONS, Reaction.REJOIN_AS_NEW):
            self._lose(keep_member_id=reaction is not Reaction.REJOIN_AS_NEW)
        elif reaction is Reaction.REJOIN:
            self.member.rejoin_needed = True
        elif reaction is Reaction.FAIL and error.code is ErrorCode.FENCED_INSTANCE_ID:
            self._lose()
        return reaction

    def fail(self, error: KafkaError) -> None:
        """Let the user's next call raise the error."""
        self.failure.note(self._link.group_id, error, self._group_instance_id)

    def _lose(self, *, keep_member_id: bool = False) -> None:
        self.member.forget(keep_member_id=keep_member_id)
        self.on_lost()
        self.is_lost = bool(self._subscription.partitions)
