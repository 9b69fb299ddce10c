"""Error codes: Kafka's numbers, and a client's reaction to each."""

from __future__ import annotations

import pickle
from typing import Any

import kafka.errors
import pytest

from anabranch.protocol.errors import (
    ClientAction,
    CoordinatorMovedError,
    ErrorCode,
    InvalidMetadataError,
    KafkaError,
    RetriableError,
    error_for,
)
from anabranch.protocol.types import TopicPartition

ORACLE: dict[int, Any] = {
    value.errno: value
    for value in vars(kafka.errors).values()
    if isinstance(value, type) and isinstance(getattr(value, "errno", None), int)
}


def test_error_codes_are_without_gaps() -> None:
    assert [code.value for code in ErrorCode] == [*range(-1, 128), 25310]


def test_every_code_has_a_message() -> None:
    assert all(code.message for code in ErrorCode)


DIFFERS = {ErrorCode.CORRUPT_MESSAGE}
"""kafka-python does not retry after a corrupt record, but Kafka's CorruptRecordException is a RetriableException."""


@pytest.mark.parametrize("code", [code for code in ErrorCode if code.value in ORACLE and code.value > 0])
def test_codes_are_retriable_as_in_kafka_python(code: ErrorCode) -> None:
    assert (bool(ORACLE[code.value].retriable) == code.retriable) is (code not in DIFFERS)


def test_invalid_partition_metadata_makes_a_client_refresh_its_metadata() -> None:
    """wire.md: 25310 is retriable and makes the client refresh its metadata."""
    assert ErrorCode(25310) is ErrorCode.INVALID_PARTITION_METADATA
    assert ErrorCode.INVALID_PARTITION_METADATA.client_action is ClientAction.REFRESH_METADATA


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, InvalidMetadataError),
        (ErrorCode.REQUEST_TIMED_OUT, RetriableError),
        (ErrorCode.NOT_COORDINATOR, CoordinatorMovedError),
        (ErrorCode.POLICY_VIOLATION, KafkaError),
    ],
)
def test_error_for_picks_the_class(code: ErrorCode, cls: type[KafkaError]) -> None:
    error = error_for(code)
    assert type(error) is cls
    assert (error.code, error.message) == (code, code.message)


def test_an_unknown_code_is_a_server_error() -> None:
    error = error_for(9999)
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "9999" in str(error)


def test_an_error_shows_its_code_and_survives_pickling() -> None:
    error = KafkaError(ErrorCode.INVALID_CONFIG, "segment.bytes: 1 is below 14")
    assert str(error) == "INVALID_CONFIG (40): segment.bytes: 1 is below 14"
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.message) == (error.code, error.message)


def test_topic_partitions_are_shown_with_a_dash_and_sorted_by_number() -> None:
    assert str(TopicPartition("t", 3)) == "t-3"
    assert sorted([TopicPartition("t", 10), TopicPartition("t", 9)])[0].partition == 9
