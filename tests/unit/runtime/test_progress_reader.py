"""Questions about the progress of groups to other brokers, and what their answers prove."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from anabranch.protocol.generated.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from anabranch.protocol.generated.topic_readers import (
    TopicReadersRequest,
    TopicReadersResponse,
    TopicReadersResponseCoordinator,
    TopicReadersResponseGroup,
    TopicReadersResponseTopic,
)
from anabranch.protocol.sentinels import EARLIEST_TIMESTAMP
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import ChannelTimeoutError
from anabranch.runtime.env import Env
from anabranch.runtime.progress_reader import ProgressReader
from anabranch.zk_schemas.broker_registration import Endpoint
from sim.clock import SimClock
from sim.network import SimFabric

PEER, TIMEOUT_S = 2, 1.0
ASKED = TopicReadersRequest(topics=[])


class Answering(ProgressReader):
    """Answers each broker's requests from a list."""

    def __init__(self, answers: Mapping[int, Sequence[Any]]) -> None:
        env = Env(SimClock(), SimFabric(random.Random(1)).node("own"), random.Random(1))
        super().__init__(env, "own", lambda _: None, TIMEOUT_S)
        self._answers = {broker_id: list(of_broker) for broker_id, of_broker in answers.items()}

    async def ask(self, broker_id: int, body: Any) -> Any:
        if not self._answers.get(broker_id):
            return await super().ask(broker_id, body)
        return self._answers[broker_id].pop(0)


def led(**topics: str) -> TopicReadersResponse:
    """An answer of the coordinator of partitions 0 and 3; ``topics``: a group by topic."""
    return TopicReadersResponse(
        coordinators=[
            TopicReadersResponseCoordinator(partition_index=0, confirmed_ms_ago=100),
            TopicReadersResponseCoordinator(partition_index=3, confirmed_ms_ago=2_000),
        ],
        topics=[
            TopicReadersResponseTopic(name=name, groups=[TopicReadersResponseGroup(group_id=id)])
            for name, id in topics.items()
        ],
    )


@pytest.mark.trio
async def test_requests_to_a_broker_share_one_connection_until_it_fails(autojump_clock: MockClock) -> None:
    fabric = SimFabric(random.Random(1), delay_s=lambda: 0.01)
    env = Env(SimClock(), fabric.node("own"), random.Random(1))
    reader = ProgressReader(env, "broker-1-holds", {PEER: Endpoint("PLAINTEXT", "peer", 1)}.get, TIMEOUT_S)
    listener = await fabric.node("peer").listen("0.0.0.0", 1)
    accepted: list[Any] = []

    async def accept() -> None:
        while True:
            accepted.append(await listener.accept())

    async def ask_without_an_answer() -> None:
        with pytest.raises(ChannelTimeoutError):
            await reader.ask(PEER, ASKED)

    async with trio.open_nursery() as nursery:
        reader.open(nursery)
        nursery.start_soon(accept)
        for count in (1, 2):
            async with trio.open_nursery() as asking:
                for _ in range(3):
                    asking.start_soon(ask_without_an_answer)
            assert len(accepted) == count
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_broker_is_a_coordinator_as_long_as_all_its_answers_prove(autojump_clock: MockClock) -> None:
    now = SimClock().monotonic()
    found = await Answering({PEER: [led(t="g"), led(u="h")]}).coordinated(PEER, [ASKED, ASKED])
    assert found.as_of == pytest.approx({0: now - 0.1, 3: now - 2})
    names = {topic: [group.group_id for group in groups] for topic, groups in found.readers.items()}
    assert names == {"t": ["g"], "u": ["h"]}
    later = TopicReadersResponse(
        coordinators=[TopicReadersResponseCoordinator(partition_index=3, confirmed_ms_ago=500)], topics=[]
    )
    found = await Answering({PEER: [led(), later]}).coordinated(PEER, [ASKED, ASKED])
    assert found.as_of == pytest.approx({3: now - 2})


@pytest.mark.trio
async def test_a_coordinator_that_does_not_answer_costs_no_other_answer(autojump_clock: MockClock) -> None:
    answers, errors = await Answering({3: [led(t="g")]}).coordinated_by_all([PEER, 3], [ASKED])
    assert {broker: list(answer.readers) for broker, answer in answers.items()} == {3: ["t"]}
    assert {broker: str(error) for broker, error in errors.items()} == {
        PEER: "broker 2 is not live, or has no listener for brokers"
    }


@pytest.mark.trio
async def test_offsets_that_a_leader_refuses_are_left_out(autojump_clock: MockClock) -> None:
    partitions = [
        ListOffsetsPartitionResponse(partition_index=0, offset=7),
        ListOffsetsPartitionResponse(partition_index=1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]
    answer = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=partitions)])
    found = await Answering({PEER: [answer]}).offsets(PEER, {"t": [(0, -1), (1, -1)]}, EARLIEST_TIMESTAMP)
    assert found == {TopicPartition("t", 0): 7}


@pytest.mark.trio
async def test_each_end_belongs_to_the_epoch_that_was_asked_for(autojump_clock: MockClock) -> None:
    """A leader names the newest epoch that has records, so its answer does not repeat the question."""
    ends = [
        EpochEndOffset(partition=0, leader_epoch=2, end_offset=7),
        EpochEndOffset(partition=0, leader_epoch=2, end_offset=7),
        EpochEndOffset(partition=1, leader_epoch=-1, end_offset=-1),
        EpochEndOffset(partition=2, error_code=ErrorCode.FENCED_LEADER_EPOCH),
    ]
    answer = OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="t", partitions=ends)])
    asked = [(0, 9, 2), (0, 9, 4), (1, 9, 2), (2, 9, 2)]
    assert await Answering({PEER: [answer]}).epoch_ends(PEER, "t", asked) == {(0, 2): 7, (0, 4): 7}
    assert await Answering({}).epoch_ends(PEER, "t", []) == {}
