"""Error responses of the group APIs, and the errors that clients get for errors of the log."""

from __future__ import annotations

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.join_group import JoinGroupResponse
from anabranch.protocol.generated.sync_group import SyncGroupResponse

JOIN_NULLABLE_PROTOCOL_VERSION = 7
"""From this version on a missing protocol name is null; before, it is the empty string."""


def join_error(api_version: int, member_id: str, error: ErrorCode) -> JoinGroupResponse:
    """A refused JoinGroup: generation -1, no leader, no protocol."""
    return JoinGroupResponse(
        error_code=error,
        member_id=member_id,
        protocol_name=None if api_version >= JOIN_NULLABLE_PROTOCOL_VERSION else "",
    )


def sync_error(error: ErrorCode) -> SyncGroupResponse:
    """A refused SyncGroup."""
    return SyncGroupResponse(error_code=error)


_OFFSET_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}

_GROUP_APPEND_ERRORS = {
    **_OFFSET_APPEND_ERRORS,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def offset_append_error(error: ErrorCode) -> ErrorCode:
    """The error for a client whose offsets could not be written (Kafka ``storeOffsets``)."""
    return _OFFSET_APPEND_ERRORS.get(error, error)


def group_append_error(error: ErrorCode) -> ErrorCode:
    """The error for members whose generation could not be written (Kafka ``storeGroup``)."""
    return _GROUP_APPEND_ERRORS.get(error, error)
