"""One partition of the offsets topic in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.counted import CountedGroups
from anabranch.broker.coordinator.durable import DurableState
from anabranch.broker.coordinator.group import Group, MemberMemory
from anabranch.protocol.sentinels import NO_EPOCH


def _ignore(_seconds: float) -> None:
    """Do nothing."""


def _none() -> int:
    return 0


def _ignore_refusal() -> None:
    """Do nothing."""


SMALL_MEMBER_BYTES = 10_000
"""A quarter of ``group.members.max.bytes`` is for joins that need no more. Most members have few topics."""


@dataclass(slots=True, eq=False)
class Shard:
    """The groups of one partition. ``durable`` is their state in the log, ``groups`` is their present state.

    Every group with a record in the log is in ``groups``. A group in ``groups`` need not have a record yet.
    """

    config: GroupConfig
    durable: DurableState = field(default_factory=DurableState)
    groups: dict[str, Group] = field(default_factory=dict)
    counted: CountedGroups = field(default_factory=CountedGroups)
    memory: MemberMemory = field(default_factory=MemberMemory)
    memory_elsewhere: Callable[[], int] = _none
    """The memory of the members in the other partitions that this broker coordinates."""
    on_refused: Callable[[], None] = _ignore_refusal
    """Called when a JoinGroup or SyncGroup is refused because groups take too much memory."""
    leader_epoch: int = NO_EPOCH
    """The leader epoch in which the partition was loaded."""
    position_answers: int = 0
    """The number of answers to members' polls for positions since the load. No leader epoch is loaded twice."""
    on_waited: Callable[[float], None] = _ignore
    """Called when a member's wait for a position ends, with the seconds that the wait took."""

    def has_room(self, more_bytes: int) -> bool:
        """Whether members or assignments may take so much more memory (``group.members.max.bytes``)."""
        most = self.config.members_max_bytes
        if most < 0 or more_bytes <= 0:
            return True
        if more_bytes > SMALL_MEMBER_BYTES:
            most -= most // 4
        return self.memory.taken_bytes + self.memory_elsewhere() + more_bytes <= most

    def rebuild(self, group_id: str, monotonic_ms: int) -> None:
        """Build a group again from its durable state, if there is any; the members' sessions start now."""
        if (before := self.groups.pop(group_id, None)) is not None:
            self.memory.taken_bytes -= before.kept_bytes
            before.memory = MemberMemory()  # actions that follow writes may still change the group
        stored = self.durable.generations.get(group_id)
        if stored is None and not self.durable.offsets_of(group_id):
            return
        group = self.groups[group_id] = Group.from_durable(group_id, stored, self.memory)
        for member in group.members.values():
            group.keep_alive(member, monotonic_ms)
