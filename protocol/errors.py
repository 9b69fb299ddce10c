"""Kafka's error codes, the client's action for each, and the exceptions that carry them.

Codes and names are Kafka's up to 3.9 (``org.apache.kafka.common.protocol.Errors``); 25310 is KIP-253's. A code is
retriable when Kafka's exception for it is a ``RetriableException``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple


class ClientAction(enum.Enum):
    """A client's action when a response carries an error code."""

    FAIL = "fail"
    """Report the error to the caller. Some callers act on the code itself: rejoin a group, reset an offset."""
    RETRY = "retry"
    """Send the same request to the same broker after ``retry.backoff.ms``."""
    REFRESH_METADATA = "refresh metadata"
    """Retry after new metadata: the partition may have another leader (Kafka's InvalidMetadataException)."""
    FIND_COORDINATOR = "find coordinator"
    """Retry after FindCoordinator: the group or transaction may have another coordinator."""


_FAIL = ClientAction.FAIL
_RETRY = ClientAction.RETRY
_REFRESH = ClientAction.REFRESH_METADATA
_FIND = ClientAction.FIND_COORDINATOR


class ErrorCode(enum.IntEnum):
    """An error code as it stands in a response (int16), with the client's action and a sentence for people."""

    client_action: ClientAction
    message: str

    def __new__(cls, code: int, client_action: ClientAction, message: str) -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.client_action = client_action
        member.message = message
        return member

    UNKNOWN_SERVER_ERROR = -1, _FAIL, "the broker failed in a way it did not expect: see its log"
    NONE = 0, _FAIL, "no error"
    OFFSET_OUT_OF_RANGE = 1, _FAIL, "the offset is outside the offsets of the partition"
    CORRUPT_MESSAGE = 2, _RETRY, "the records fail their checksum, have a wrong size or are otherwise damaged"
    UNKNOWN_TOPIC_OR_PARTITION = 3, _REFRESH, "this broker does not have the topic or partition"
    INVALID_FETCH_SIZE = 4, _FAIL, "the fetch size is not valid"
    LEADER_NOT_AVAILABLE = 5, _REFRESH, "the partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = (
        6,
        _REFRESH,
        "this broker is not the leader of the partition, or not a replica for a request that any replica may answer",
    )
    REQUEST_TIMED_OUT = 7, _RETRY, "the request timed out"
    BROKER_NOT_AVAILABLE = 8, _FAIL, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, _REFRESH, "this broker does not have the replica yet"
    MESSAGE_TOO_LARGE = 10, _FAIL, "the record batch is larger than max.message.bytes allows"
    STALE_CONTROLLER_EPOCH = 11, _FAIL, "the request comes from a controller that has been replaced"
    OFFSET_METADATA_TOO_LARGE = 12, _FAIL, "the metadata string of the committed offset is too long"
    NETWORK_EXCEPTION = 13, _REFRESH, "the connection broke before a response came"
    COORDINATOR_LOAD_IN_PROGRESS = 14, _RETRY, "the coordinator is still loading its state"
    COORDINATOR_NOT_AVAILABLE = 15, _FIND, "there is no coordinator at the moment"
    NOT_COORDINATOR = 16, _FIND, "this broker is not the coordinator"
    INVALID_TOPIC_EXCEPTION = 17, _FAIL, "the topic name is not valid, or the topic may not be used this way"
    RECORD_LIST_TOO_LARGE = 18, _FAIL, "the records are larger than a segment may be"
    NOT_ENOUGH_REPLICAS = 19, _RETRY, "fewer replicas are in sync than min.insync.replicas asks for"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        _RETRY,
        "the records were appended, but fewer replicas are in sync than min.insync.replicas asks for",
    )
    INVALID_REQUIRED_ACKS = 21, _FAIL, "acks must be 0, 1 or -1"
    ILLEGAL_GENERATION = 22, _FAIL, "the generation is not the group's current one"
    INCONSISTENT_GROUP_PROTOCOL = (
        23,
        _FAIL,
        "the member shares no protocol with the other members, or its protocol type differs",
    )
    INVALID_GROUP_ID = 24, _FAIL, "the group id is not valid"
    UNKNOWN_MEMBER_ID = 25, _FAIL, "the group does not know this member"
    INVALID_SESSION_TIMEOUT = (
        26,
        _FAIL,
        "the session timeout is not between group.min.session.timeout.ms and group.max.session.timeout.ms",
    )
    REBALANCE_IN_PROGRESS = 27, _FAIL, "the group is rebalancing: join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, _FAIL, "the offset commit is too large"
    TOPIC_AUTHORIZATION_FAILED = 29, _FAIL, "not authorised for the topic"
    GROUP_AUTHORIZATION_FAILED = 30, _FAIL, "not authorised for the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, _FAIL, "not authorised for the cluster"
    INVALID_TIMESTAMP = 32, _FAIL, "the timestamp is outside the range that the topic accepts"
    UNSUPPORTED_SASL_MECHANISM = 33, _FAIL, "the SASL mechanism is not enabled"
    ILLEGAL_SASL_STATE = 34, _FAIL, "the request is not valid in this state of the SASL exchange"
    UNSUPPORTED_VERSION = 35, _FAIL, "this version of the API is not supported"
    TOPIC_ALREADY_EXISTS = 36, _FAIL, "a topic of this name exists"
    INVALID_PARTITIONS = 37, _FAIL, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = 38, _FAIL, "the replication factor is below 1 or larger than the number of brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, _FAIL, "the replica assignment is not valid"
    INVALID_CONFIG = 40, _FAIL, "the configuration is not valid"
    NOT_CONTROLLER = 41, _RETRY, "this broker is not the controller"
    INVALID_REQUEST = 42, _FAIL, "the request contradicts itself or lacks something"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, _FAIL, "the message format of the records does not support this"
    POLICY_VIOLATION = 44, _FAIL, "the request breaks a policy"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, _FAIL, "the sequence number does not follow the last one of this producer"
    DUPLICATE_SEQUENCE_NUMBER = 46, _FAIL, "the sequence number was used before"
    INVALID_PRODUCER_EPOCH = 47, _FAIL, "the producer's epoch is older than the current one"
    INVALID_TXN_STATE = 48, _FAIL, "the transaction is not in a state that allows this"
    INVALID_PRODUCER_ID_MAPPING = 49, _FAIL, "the producer id is not the one of this transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, _FAIL, "the transaction timeout is larger than transaction.max.timeout.ms"
    CONCURRENT_TRANSACTIONS = 51, _RETRY, "the producer's last transaction has not ended yet"
    TRANSACTION_COORDINATOR_FENCED = 52, _FAIL, "a newer transaction coordinator has taken over"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _FAIL, "not authorised for the transactional id"
    SECURITY_DISABLED = 54, _FAIL, "security features are disabled"
    OPERATION_NOT_ATTEMPTED = 55, _FAIL, "not tried, since another operation of the request failed"
    KAFKA_STORAGE_ERROR = 56, _REFRESH, "the broker's disk failed or is full"
    LOG_DIR_NOT_FOUND = 57, _FAIL, "the broker does not have this log directory"
    SASL_AUTHENTICATION_FAILED = 58, _FAIL, "SASL authentication failed"
    UNKNOWN_PRODUCER_ID = 59, _FAIL, "the broker does not know this producer id, or has forgotten it"
    REASSIGNMENT_IN_PROGRESS = 60, _FAIL, "the partition is being reassigned"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, _FAIL, "delegation tokens are not enabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, _FAIL, "the delegation token was not found"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _FAIL, "the delegation token belongs to another principal"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        _FAIL,
        "delegation tokens need an authenticated connection of another kind",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _FAIL, "not authorised for the delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, _FAIL, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, _FAIL, "this type of principal is not supported"
    NON_EMPTY_GROUP = 68, _FAIL, "the group has members"
    GROUP_ID_NOT_FOUND = 69, _FAIL, "there is no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, _RETRY, "the broker does not know the fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, _RETRY, "the epoch of the fetch session is not the expected one"
    LISTENER_NOT_FOUND = 72, _REFRESH, "the leader has no listener of the name this connection uses"
    TOPIC_DELETION_DISABLED = 73, _FAIL, "delete.topic.enable is false"
    FENCED_LEADER_EPOCH = 74, _REFRESH, "the leader epoch in the request is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, _RETRY, "the leader epoch in the request is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, _FAIL, "the client does not support the compression of the records"
    STALE_BROKER_EPOCH = 77, _FAIL, "the broker epoch in the request is of an earlier registration of the broker"
    OFFSET_NOT_AVAILABLE = 78, _RETRY, "the new leader's high watermark is not known yet"
    MEMBER_ID_REQUIRED = 79, _FAIL, "join again with the member id of this response"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _REFRESH, "the preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, _FAIL, "the group has group.max.size members"
    FENCED_INSTANCE_ID = 82, _FAIL, "another member has taken over this group.instance.id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _REFRESH, "no replica that may lead is available"
    ELECTION_NOT_NEEDED = 84, _REFRESH, "the partition has the leader that was asked for"
    NO_REASSIGNMENT_IN_PROGRESS = 85, _FAIL, "the partition is not being reassigned"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _FAIL, "a member of the group subscribes to the topic"
    INVALID_RECORD = 87, _FAIL, "a record breaks a rule of the broker or the topic"
    UNSTABLE_OFFSET_COMMIT = 88, _RETRY, "an offset commit of an open transaction is pending"
    THROTTLING_QUOTA_EXCEEDED = 89, _RETRY, "a quota is used up: wait for the throttle time"
    PRODUCER_FENCED = 90, _FAIL, "a newer producer with the same transactional id has taken over"
    RESOURCE_NOT_FOUND = 91, _FAIL, "the resource does not exist"
    DUPLICATE_RESOURCE = 92, _FAIL, "the request names a resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, _FAIL, "the credential does not meet the rules"
    INCONSISTENT_VOTER_SET = 94, _FAIL, "the voter sets differ"
    INVALID_UPDATE_VERSION = 95, _FAIL, "the update version is not valid"
    FEATURE_UPDATE_FAILED = 96, _FAIL, "the features could not be updated"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, _FAIL, "the forwarded principal could not be read"
    SNAPSHOT_NOT_FOUND = 98, _FAIL, "the snapshot was not found"
    POSITION_OUT_OF_RANGE = 99, _FAIL, "the position is outside of the snapshot"
    UNKNOWN_TOPIC_ID = 100, _REFRESH, "this broker does not know the topic id"
    DUPLICATE_BROKER_REGISTRATION = 101, _FAIL, "the broker id is registered by another process"
    BROKER_ID_NOT_REGISTERED = 102, _FAIL, "the broker id is not registered"
    INCONSISTENT_TOPIC_ID = 103, _REFRESH, "the topic id of the log differs from the one in the request"
    INCONSISTENT_CLUSTER_ID = 104, _FAIL, "the cluster id in the request is not this cluster's"
    TRANSACTIONAL_ID_NOT_FOUND = 105, _FAIL, "the transactional id was not found"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _RETRY, "the topic ids of the fetch session changed"
    INELIGIBLE_REPLICA = 107, _FAIL, "a replica in the new ISR may not be in it"
    NEW_LEADER_ELECTED = 108, _FAIL, "the change of the ISR was applied and another replica leads now"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _FAIL, "the offset is only in tiered storage"
    FENCED_MEMBER_EPOCH = 110, _FAIL, "the member's epoch was fenced"
    UNRELEASED_INSTANCE_ID = 111, _FAIL, "another member still holds this group.instance.id"
    UNSUPPORTED_ASSIGNOR = 112, _FAIL, "the assignor is not supported by the group"
    STALE_MEMBER_EPOCH = 113, _FAIL, "the member's epoch is older than the group's"
    MISMATCHED_ENDPOINT_TYPE = 114, _FAIL, "the request went to the wrong kind of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, _FAIL, "this kind of endpoint is not supported"
    UNKNOWN_CONTROLLER_ID = 116, _FAIL, "the controller id is not known"
    UNKNOWN_SUBSCRIPTION_ID = 117, _FAIL, "the telemetry subscription is not the client's current one"
    TELEMETRY_TOO_LARGE = 118, _FAIL, "the telemetry push is too large"
    INVALID_REGISTRATION = 119, _FAIL, "the registration is not valid"
    TRANSACTION_ABORTABLE = 120, _FAIL, "the transaction must be aborted"
    INVALID_RECORD_STATE = 121, _FAIL, "the record is not in a state that allows this"
    SHARE_SESSION_NOT_FOUND = 122, _RETRY, "the broker does not know the share session"
    INVALID_SHARE_SESSION_EPOCH = 123, _RETRY, "the epoch of the share session is not the expected one"
    FENCED_STATE_EPOCH = 124, _FAIL, "the share state epoch is older than the current one"
    INVALID_VOTER_KEY = 125, _FAIL, "the voter's key differs from the one it registered"
    DUPLICATE_VOTER = 126, _FAIL, "the voter is in the set already"
    VOTER_NOT_FOUND = 127, _FAIL, "the voter is not in the set"
    INVALID_PARTITION_METADATA = (
        25310,
        _REFRESH,
        "the request was made with a partition layout that is not the topic's current one",
    )

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later without an action of the caller."""
        return self.client_action is not ClientAction.FAIL

    @property
    def refreshes_metadata(self) -> bool:
        """Whether a retry can succeed only after new metadata."""
        return self.client_action is ClientAction.REFRESH_METADATA

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """The member for a code in a response; ``UNKNOWN_SERVER_ERROR`` for an unknown code."""
        return _BY_CODE.get(code, cls.UNKNOWN_SERVER_ERROR)


_BY_CODE: dict[int, ErrorCode] = {member.value: member for member in ErrorCode}


MAX_MESSAGE_CHARS = 1000
"""A longer message of an error is cut to this length, and its full length is added."""


class KafkaError(Exception):
    """An error with a code. ``message`` is the given detail, or else the code's own sentence.

    A long message is cut short: it may quote a value as long as a request, but a string in a response is limited.
    """

    code: ErrorCode
    message: str

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        self.code = code
        self.message = message or code.message
        if len(self.message) > MAX_MESSAGE_CHARS:
            self.message = f"{self.message[:MAX_MESSAGE_CHARS]}... ({len(self.message)} characters)"
        super().__init__(code, self.message)

    def __str__(self) -> str:
        return f"{self.code.name} ({self.code.value}): {self.message}"


class RecordError(NamedTuple):
    """One record of a refused batch (KIP-467): its index in the batch, and the reason."""

    batch_index: int
    message: str


class RefusedRecordsError(KafkaError):
    """A batch was refused; ``records`` are the records at fault, if they are known."""

    def __init__(self, code: ErrorCode, message: str = "", records: Sequence[RecordError] = ()) -> None:
        self.records = records
        super().__init__(code, message)


class RetriableError(KafkaError):
    """The same request may succeed later."""


class InvalidMetadataError(RetriableError):
    """The request may succeed after new metadata."""


class CoordinatorMovedError(RetriableError):
    """The request may succeed after FindCoordinator."""


_CLASS_BY_ACTION: dict[ClientAction, type[KafkaError]] = {
    ClientAction.FAIL: KafkaError,
    ClientAction.RETRY: RetriableError,
    ClientAction.REFRESH_METADATA: InvalidMetadataError,
    ClientAction.FIND_COORDINATOR: CoordinatorMovedError,
}


def error_for(code: int, message: str | None = None) -> KafkaError:
    """The exception for an error code in a response; its class corresponds to the client's action."""
    member = ErrorCode.of(code)
    if member.value != code and not message:
        message = f"unknown error code {code}"
    return _CLASS_BY_ACTION[member.client_action](member, message or "")
