"""The table from each API about one group to its decision, and to the answer if the group is not coordinated here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from anabranch.broker.coordinator import join, membership, offsets, position_poll, sync
from anabranch.broker.coordinator.broker_services import RequestOrigin, Topics
from anabranch.broker.coordinator.outcome import Turn
from anabranch.broker.coordinator.responses import join_error, sync_error
from anabranch.broker.coordinator.token import Token
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.consumer_group_position import (
    ConsumerGroupPositionRequest,
    ConsumerGroupPositionResponse,
)
from anabranch.protocol.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from anabranch.protocol.generated.join_group import JoinGroupRequest, JoinGroupResponse
from anabranch.protocol.generated.leave_group import LeaveGroupRequest, LeaveGroupResponse
from anabranch.protocol.generated.offset_commit import OffsetCommitRequest
from anabranch.protocol.generated.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from anabranch.protocol.generated.sync_group import SyncGroupRequest, SyncGroupResponse

POSITIONS_LEVEL = 2
"""The level of the feature ``group_coordinator`` from which on positions are answered."""


class Asked(NamedTuple):
    """A request about one group, and what its decision may read."""

    request: Any
    origin: RequestOrigin
    topics: Topics
    new_member_id: Callable[[], str]


class ApiDecision(NamedTuple):
    """How one API is answered."""

    decide: Callable[[Turn, Token, Asked], None]
    """Adds the answer for the token, and the writes, to the turn."""
    refuse: Callable[[Asked, ErrorCode], Any]
    """The answer if another broker coordinates the group, or its partition is being loaded."""
    is_empty_valid: bool = False
    """Whether the empty group id names a group."""
    level: int = 0
    """The level of the feature ``group_coordinator`` from which on the API is answered."""


def _refuse_join(asked: Asked, error: ErrorCode) -> JoinGroupResponse:
    return join_error(asked.origin.api_version, asked.request.member_id, error)


def _refuse_sync(_asked: Asked, error: ErrorCode) -> SyncGroupResponse:
    # The rebalance of this request is lost with the old coordinator: the client has to join again.
    is_loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return sync_error(ErrorCode.REBALANCE_IN_PROGRESS if is_loading else error)


def _refuse_heartbeat(_asked: Asked, error: ErrorCode) -> HeartbeatResponse:
    # While the group loads, the answer is NONE, because sessions start after the load.
    is_loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else error)


DECISIONS: Mapping[type, ApiDecision] = {
    JoinGroupRequest: ApiDecision(
        lambda turn, token, asked: join.join_group(turn, token, asked.origin, asked.request, asked.new_member_id()),
        _refuse_join,
    ),
    SyncGroupRequest: ApiDecision(
        lambda turn, token, asked: sync.sync_group(turn, token, asked.origin.api_version, asked.request), _refuse_sync
    ),
    HeartbeatRequest: ApiDecision(
        lambda turn, token, asked: membership.heartbeat(turn, token, asked.request), _refuse_heartbeat
    ),
    LeaveGroupRequest: ApiDecision(
        lambda turn, token, asked: membership.leave_group(turn, token, asked.origin.api_version, asked.request),
        lambda _asked, error: LeaveGroupResponse(error_code=error),
    ),
    ConsumerGroupPositionRequest: ApiDecision(
        lambda turn, token, asked: position_poll.poll_positions(turn, token, asked.request, asked.topics.incarnation),
        lambda _asked, error: ConsumerGroupPositionResponse(error_code=error),
        level=POSITIONS_LEVEL,
    ),
    OffsetCommitRequest: ApiDecision(
        lambda turn, token, asked: offsets.commit_offsets(turn, token, asked.request, asked.topics),
        lambda asked, error: offsets.refuse_commit(asked.request, error),
        is_empty_valid=True,
    ),
    OffsetDeleteRequest: ApiDecision(
        lambda turn, token, asked: offsets.delete_offsets(turn, token, asked.request, asked.topics.contains),
        lambda _asked, error: OffsetDeleteResponse(error_code=error),
    ),
}
