"""A decision of the coordinator has a shard, a time, and effects: records to write and requests to answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.durable import CoordinatorRecord
from anabranch.broker.coordinator.shard import Shard
from anabranch.broker.coordinator.token import Token
from anabranch.protocol.errors import ErrorCode


class Now(NamedTuple):
    """The time of a decision, in milliseconds: the wall clock for records, the monotonic clock for deadlines."""

    wall_ms: int
    monotonic_ms: int


def is_committed(error: ErrorCode) -> bool:
    """Whether a write that ended with ``error`` is committed; the client may get the error all the same."""
    return error in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


class Then(Protocol):
    """The action that follows a write, as data: it runs once the write is known to be committed or lost."""

    def resolve(self, shard: Shard, error: ErrorCode, now: Now) -> CoordinatorOutcome:
        """Run the action.

        ``error`` is the log's error or NONE; if ``is_committed(error)``, the records were replayed.
        """
        ...

    def overdue(self, shard: Shard, now: Now) -> tuple[CoordinatorOutcome, Then | None]:
        """After ``offsets.commit.timeout.ms``, answer the waiting request with REQUEST_TIMED_OUT. Called once at most.

        The write may still be committed. Returns the answers, and the action to run once the write is committed or
        lost.
        """
        ...


@dataclass(frozen=True, slots=True)
class GroupWrite:
    """Records of one group to append as one batch, and the action that follows.

    If there are no records, only the action runs, after the actions of earlier writes.
    """

    group_id: str
    records: list[CoordinatorRecord]
    then: Then | None = None


@dataclass(slots=True)
class CoordinatorOutcome:
    """The effects of one decision, in the order in which they were decided."""

    replies: list[tuple[Token, object]] = field(default_factory=list)
    writes: list[GroupWrite] = field(default_factory=list)

    def reply(self, token: Token, response: object) -> None:
        """Answer the request that ``token`` stands for."""
        self.replies.append((token, response))

    def write(self, group_id: str, records: list[CoordinatorRecord], then: Then | None = None) -> None:
        """Append ``records`` as one batch."""
        self.writes.append(GroupWrite(group_id, records, then))


@dataclass(slots=True)
class Turn:
    """One decision: its shard, its time, and the effects so far."""

    shard: Shard
    now: Now
    out: CoordinatorOutcome = field(default_factory=CoordinatorOutcome)

    @property
    def config(self) -> GroupConfig:
        return self.shard.config
