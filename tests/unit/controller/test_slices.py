"""Requests that are decided in slices: nothing is lost, added or asked twice, and same names stay together."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.admin.outcome import Outcome
from controller.admin.slices import ITEMS_AT_ONCE, PARTITIONS_AT_ONCE, joined, sliced
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)
from protocol.generated.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.generated.delete_topics import DeleteTopicsRequest
from protocol.generated.elect_leaders import ElectLeadersRequest


@given(st.lists(st.integers(0, 60), max_size=200))
def test_topics_are_asked_for_once_and_answered_in_order(numbers: list[int]) -> None:
    body = CreateTopicsRequest(topics=[CreatableTopic(name=f"t{number}") for number in numbers], timeout_ms=7)
    parts = sliced(ApiKey.CREATE_TOPICS, body)
    names = [[topic.name for topic in part.topics] for part in parts]
    asked = [topic.name for topic in body.topics]
    assert sorted(name for part in names for name in part) == sorted(asked)
    assert all(part.timeout_ms == 7 for part in parts)
    if len(asked) > ITEMS_AT_ONCE:
        assert all(len(set(part)) <= ITEMS_AT_ONCE for part in names)
        assert sum(len(set(part)) for part in names) == len(set(asked)), "a name is in one slice only"
    outcomes = [
        Outcome(CreateTopicsResponse(topics=[CreatableTopicResult(name=name) for name in dict.fromkeys(part)]), [], 7)
        for part in names
    ]
    whole = joined(ApiKey.CREATE_TOPICS, outcomes)
    assert [topic.name for topic in whole.response.topics] == list(dict.fromkeys(asked))
    assert whole.timeout_ms == 7


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=6))
def test_reassignments_are_answered_by_topic(counts: list[tuple[int, int]]) -> None:
    topics = [
        ReassignableTopic(name=f"t{name}", partitions=[ReassignablePartition(partition_index=i) for i in range(count)])
        for name, count in counts
    ]
    body = AlterPartitionReassignmentsRequest(topics=topics)
    parts = sliced(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body)
    assert all(sum(len(topic.partitions) for topic in part.topics) <= PARTITIONS_AT_ONCE for part in parts)
    whole = joined(ApiKey.ALTER_PARTITION_REASSIGNMENTS, [Outcome(reassigned(part)) for part in parts])
    expected = joined(ApiKey.ALTER_PARTITION_REASSIGNMENTS, [Outcome(reassigned(body)), Outcome(reassigned_none())])
    assert shown(whole.response) == shown(expected.response) or len(parts) == 1


def reassigned(body: Any) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[ReassignablePartitionResponse(partition_index=p.partition_index) for p in topic.partitions],
            )
            for topic in body.topics
        ]
    )


def reassigned_none() -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(responses=[])


def shown(response: Any) -> dict[str, list[int]]:
    return {topic.name: [p.partition_index for p in topic.partitions] for topic in response.responses}


def test_an_error_of_the_whole_request_is_kept() -> None:
    outcomes = [
        Outcome(AlterPartitionReassignmentsResponse(responses=[])),
        Outcome(AlterPartitionReassignmentsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, responses=[])),
    ]
    whole = joined(ApiKey.ALTER_PARTITION_REASSIGNMENTS, outcomes)
    assert whole.response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_what_is_small_or_names_nothing_is_one_slice() -> None:
    for key, body in (
        (ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topic_names=["a", "a"])),
        (ApiKey.ELECT_LEADERS, ElectLeadersRequest(topic_partitions=None)),
    ):
        assert list(sliced(key, body)) == [body]
    assert len(sliced(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topic_names=[str(n) for n in range(40)]))) == 3
