"""Requests that are decided in slices: nothing is lost, added or requested twice, and equal names stay together."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller.admin.slices import ITEMS_AT_ONCE, Joined, Slices, sliced
from anabranch.controller.image import ClusterImage
from anabranch.controller.leaders import ELECTED_AT_ONCE
from anabranch.controller.outcome import Outcome
from anabranch.controller.reassignment import PARTITIONS_PER_WRITE, TOPICS_AT_ONCE
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)
from anabranch.protocol.generated.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from anabranch.protocol.generated.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from anabranch.protocol.generated.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

IMAGE = ClusterImage(1000, 1)


def joined(api_key: int, body: Any, outcomes: list[Outcome]) -> Outcome:
    whole = Joined(api_key, body)
    for outcome in outcomes:
        whole.add(outcome)
    return whole.outcome()


@given(st.lists(st.integers(0, 60), max_size=200))
def test_topics_are_asked_for_once_and_answered_in_order(numbers: list[int]) -> None:
    body = CreateTopicsRequest(topics=[CreatableTopic(name=f"t{number}") for number in numbers], timeout_ms=7)
    parts = list(sliced(ApiKey.CREATE_TOPICS, body, IMAGE))
    names = [[topic.name for topic in part.topics] for part in parts]
    asked = [topic.name for topic in body.topics]
    assert sorted(name for part in names for name in part) == sorted(asked)
    assert all(part.timeout_ms == 7 for part in parts)
    if len(asked) > ITEMS_AT_ONCE:
        assert all(len(set(part)) <= ITEMS_AT_ONCE for part in names)
        assert sum(len(set(part)) for part in names) == len(set(asked)), "each name is in one slice only"
    outcomes = [
        Outcome(CreateTopicsResponse(topics=[CreatableTopicResult(name=name) for name in dict.fromkeys(part)]), [], 7)
        for part in names
    ]
    whole = joined(ApiKey.CREATE_TOPICS, body, outcomes)
    assert [topic.name for topic in whole.response.topics] == list(dict.fromkeys(asked))
    assert whole.timeout_ms == 7


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=6))
def test_reassignments_are_answered_by_topic(counts: list[tuple[int, int]]) -> None:
    topics = [
        ReassignableTopic(name=f"t{name}", partitions=[ReassignablePartition(partition_index=i) for i in range(count)])
        for name, count in counts
    ]
    body = AlterPartitionReassignmentsRequest(topics=topics)
    parts = list(sliced(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body, IMAGE))
    assert all(sum(len(topic.partitions) for topic in part.topics) <= PARTITIONS_PER_WRITE for part in parts)
    whole = joined(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body, [Outcome(reassigned(part)) for part in parts])
    expected: dict[str, list[int]] = {}
    for name, count in counts:
        expected.setdefault(f"t{name}", []).extend(range(count))
    assert shown(whole.response) == expected


def test_reassignments_of_many_topics_are_cut_by_topics() -> None:
    topics = [
        ReassignableTopic(name=f"t{number}", partitions=[ReassignablePartition(partition_index=0)])
        for number in range(3 * TOPICS_AT_ONCE)
    ]
    body = AlterPartitionReassignmentsRequest(topics=topics)
    assert [len(part.topics) for part in sliced(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body, IMAGE)] == [
        TOPICS_AT_ONCE
    ] * 3


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 700)), max_size=5))
def test_each_election_is_requested_in_exactly_one_slice(counts: list[tuple[int, int]]) -> None:
    named = [TopicPartitions(topic=f"t{name}", partitions=list(range(count))) for name, count in counts]
    parts = list(sliced(ApiKey.ELECT_LEADERS, ElectLeadersRequest(topic_partitions=named, timeout_ms=7), IMAGE))
    asked = [(topic.topic, index) for part in parts for topic in part.topic_partitions for index in topic.partitions]
    assert sorted(asked) == sorted({(topic.topic, index) for topic in named for index in topic.partitions})
    assert all(sum(len(topic.partitions) for topic in part.topic_partitions) <= ELECTED_AT_ONCE for part in parts)
    assert all(part.timeout_ms == 7 for part in parts)


def test_an_election_of_all_partitions_omits_partitions_that_need_no_election() -> None:
    codes = [[ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.NONE], [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]]
    for partitions, expected in ((None, [0, 80]), ([TopicPartitions(topic="t", partitions=[0])], [84, 0, 80])):
        body = ElectLeadersRequest(topic_partitions=partitions)
        outcomes = [
            Outcome(
                ElectLeadersResponse(
                    replica_election_results=[
                        ReplicaElectionResult(
                            topic="t", partition_result=[PartitionResult(error_code=code) for code in of_slice]
                        )
                    ]
                )
            )
            for of_slice in codes
        ]
        (topic,) = joined(ApiKey.ELECT_LEADERS, body, outcomes).response.replica_election_results
        assert [result.error_code for result in topic.partition_result] == expected


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


def shown(response: Any) -> dict[str, list[int]]:
    return {topic.name: [p.partition_index for p in topic.partitions] for topic in response.responses}


def test_an_error_of_the_whole_request_is_kept() -> None:
    outcomes = [
        Outcome(AlterPartitionReassignmentsResponse(responses=[])),
        Outcome(AlterPartitionReassignmentsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, responses=[])),
    ]
    whole = joined(ApiKey.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest(), outcomes)
    assert whole.response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_request_that_is_small_or_names_nothing_is_one_slice() -> None:
    body = DeleteTopicsRequest(topic_names=["a", "a"])
    assert list(sliced(ApiKey.DELETE_TOPICS, body, IMAGE)) == [body]
    (part,) = sliced(ApiKey.ELECT_LEADERS, ElectLeadersRequest(topic_partitions=None), IMAGE)
    assert part.topic_partitions == [], "the image has no partitions"
    many = DeleteTopicsRequest(topic_names=[str(n) for n in range(40)])
    assert len(list(sliced(ApiKey.DELETE_TOPICS, many, IMAGE))) == 3


def test_the_outcome_is_complete_once_every_slice_is_decided() -> None:
    names = [f"t{number}" for number in range(ITEMS_AT_ONCE + 1)]
    body = DeleteTopicsRequest(topic_names=names)
    slices = Slices(ApiKey.DELETE_TOPICS, body, IMAGE)
    outcomes = []
    for _ in range(2):
        results = [DeletableTopicResult(name=name) for name in slices.next.topic_names]
        outcomes.append(slices.take(Outcome(DeleteTopicsResponse(responses=results))))
    first, whole = outcomes
    assert first is None and whole is not None
    assert [result.name for result in whole.response.responses] == names
