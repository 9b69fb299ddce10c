"""Requests that are decided in slices: nothing is lost, added or requested twice, and equal names stay together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller.admin.slices import ITEMS_AT_ONCE, Joined, Slices, gather, sliced
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
from anabranch.protocol.generated.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from anabranch.protocol.generated.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)
from anabranch.protocol.named_items import ITEMS_A_STEP
from anabranch.protocol.types import TopicPartition

IMAGE = ClusterImage(1000, 1)


class Counted(list[Any]):
    """A list that counts how many of its items were looked at."""

    looked_at = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.looked_at += 1
            yield item


def slices_of(api_key: int, body: Any) -> list[Any]:
    for _ in gather(api_key, body):
        pass
    return list(sliced(api_key, body, IMAGE))


def joined(api_key: int, body: Any, outcomes: list[Outcome]) -> Outcome:
    whole = Joined(api_key, body)
    for outcome in outcomes:
        whole.add(outcome)
    return whole.outcome()


@given(st.lists(st.integers(0, 60), max_size=200))
def test_topics_are_asked_for_once_and_answered_in_order(numbers: list[int]) -> None:
    body = CreateTopicsRequest(topics=[CreatableTopic(name=f"t{number}") for number in numbers], timeout_ms=7)
    asked = [topic.name for topic in body.topics]
    parts = slices_of(ApiKey.CREATE_TOPICS, body)
    names = [[topic.name for topic in part.topics] for part in parts]
    most = 2 if len(asked) > ITEMS_AT_ONCE else len(asked)
    assert Counter(chain(*names)) == {name: min(count, most) for name, count in Counter(asked).items()}
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
    parts = slices_of(ApiKey.ELECT_LEADERS, ElectLeadersRequest(topic_partitions=named, timeout_ms=7))
    asked = [(topic.topic, index) for part in parts for topic in part.topic_partitions for index in topic.partitions]
    assert sorted(asked) == sorted({(topic.topic, index) for topic in named for index in topic.partitions})
    assert all(sum(len(topic.partitions) for topic in part.topic_partitions) <= ELECTED_AT_ONCE for part in parts)
    assert all(part.timeout_ms == 7 for part in parts)


@pytest.mark.parametrize("name", ["u", "u{}"])
def test_items_are_gathered_step_by_step_and_cut_slice_by_slice(name: str) -> None:
    topics = Counted(DeleteTopicState(name=name.format(number)) for number in range(5 * ITEMS_A_STEP))
    body = DeleteTopicsRequest(topics=topics)
    before = 0
    for _ in gather(ApiKey.DELETE_TOPICS, body):
        assert topics.looked_at <= before + ITEMS_A_STEP
        before = topics.looked_at
    assert before == 5 * ITEMS_A_STEP
    body.topics = Counted(body.topics)
    next(sliced(ApiKey.DELETE_TOPICS, body, IMAGE))
    assert body.topics.looked_at <= ITEMS_AT_ONCE + 1


@pytest.mark.parametrize(("topics", "partitions"), [(5 * ITEMS_A_STEP, 1), (1, 5 * ITEMS_A_STEP)])
def test_partitions_to_elect_are_gathered_step_by_step(topics: int, partitions: int) -> None:
    named = [TopicPartitions(topic=f"t{name}", partitions=list(range(partitions))) for name in range(topics)]
    body = ElectLeadersRequest(topic_partitions=named)
    assert len(list(gather(ApiKey.ELECT_LEADERS, body))) >= 4


def test_an_election_of_all_partitions_lists_them_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Counter[str]()

    def led(_image: ClusterImage, tp: TopicPartition) -> object:
        listed[tp.topic] += 1
        return object()

    monkeypatch.setattr(ClusterImage, "led", led)
    count = 2 * ELECTED_AT_ONCE
    topics = {f"t{number}": SimpleNamespace(partitions={1: None, 0: None}) for number in range(count)}
    image = ClusterImage(1000, 1, topics=topics)  # type: ignore[arg-type]
    parts = sliced(ApiKey.ELECT_LEADERS, ElectLeadersRequest(topic_partitions=None), image)
    named = [(topic.topic, index) for topic in next(parts).topic_partitions for index in topic.partitions]
    assert len(listed) <= ELECTED_AT_ONCE // 2 + 1
    named += [(topic.topic, index) for part in parts for topic in part.topic_partitions for index in topic.partitions]
    assert named == [(name, index) for name in sorted(topics) for index in (0, 1)]


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
    assert len(slices_of(ApiKey.DELETE_TOPICS, many)) == 3


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
