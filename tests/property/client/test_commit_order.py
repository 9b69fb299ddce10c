"""No commit of a consumer follows a later one of the same partition, whatever kinds are in flight or queued."""

from __future__ import annotations

import random
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.errors import ErrorCode, KafkaError, error_for
from anabranch.client.group.coordinator_link import CoordinatorLink, OffsetAndMetadata
from anabranch.protocol.generated.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from anabranch.protocol.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from sim.clock import SimClock
from tests.unit.client.scripted_group import T0, T1, Fixture
from tests.unit.client.virtual_time import in_virtual_time

KINDS = ("program", "queued", "automatic", "report", "given up", "unsubscribe")
REFUSALS = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT)


class Coordinator:
    """Applies commits as they arrive, after any delay each, and refuses some of them for a while."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.arrived: dict[TopicPartition, list[int]] = {}
        """The offsets of each partition in the order of their arrival."""

    async def request(self, _node: Any, body: Any, **_: Any) -> Any:
        await anyio.sleep(self.rng.choice((0.0, 0.01, 0.3)))  # virtual time: on its way
        if isinstance(body, FindCoordinatorRequest):
            return FindCoordinatorResponse(node_id=1, host="h", port=1)
        assert isinstance(body, OffsetCommitRequest)
        code = self.rng.choice((ErrorCode.NONE, *REFUSALS))
        topics = []
        for topic in body.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                self.arrived.setdefault(tp, []).append(p.committed_offset)
            answers = [
                OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=code)
                for p in topic.partitions
            ]
            topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=answers))
        await anyio.sleep(self.rng.choice((0.0, 0.01, 0.3)))  # virtual time: the answer
        if code is ErrorCode.REQUEST_TIMED_OUT:
            raise error_for(code, "the response is lost")
        return OffsetCommitResponse(topics=topics)


class Program:
    """A consumer whose commits have an offset of their own each, so that an arrival tells its call."""

    def __init__(self, member: Fixture, link: CoordinatorLink, rng: random.Random) -> None:
        self.member, self.link, self.rng = member, link, rng
        self.offsets = rng.sample(range(1_000, 2_000), 500)  # a later call is as often for a lower offset
        self.calls: dict[tuple[TopicPartition, int], int] = {}

    def chosen(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Offsets of one or both partitions. The position is there, too."""
        found = {tp: self.offsets.pop() for tp in self.rng.choice(([T0], [T1], [T0, T1]))}
        for tp, offset in found.items():
            self.member.subscription.state(tp).seek(offset)
            self.calls[tp, offset] = len(self.calls)
        return {tp: OffsetAndMetadata(offset) for tp, offset in found.items()}

    async def act(self, kind: str) -> None:
        coordinator, chosen = self.member.coordinator, self.chosen()
        try:
            if kind == "program":
                await coordinator.commits.commit(chosen)
            elif kind == "queued":
                call = self.link.commit_order.call()
                await anyio.sleep(self.rng.random())  # virtual time: in the queue
                await coordinator.commits.commit(chosen, call=call)
            elif kind == "automatic":
                await coordinator.poll()
            elif kind == "report":
                await coordinator.commits.commit_news([T0, T1])
            elif kind == "given up":
                with anyio.move_on_after(self.rng.random() / 10):
                    await coordinator.commits.commit(chosen)
            else:
                await coordinator.close(commit=True)
        except KafkaError:
            return


@given(st.integers(0, 2**32), st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from((0, 5, 200))), max_size=12))
def test_no_offset_follows_one_of_a_later_call(seed: int, steps: list[tuple[str, int]]) -> None:
    rng = random.Random(seed)
    found = Coordinator(rng)

    async def run(env: Env) -> Program:
        metadata: Any = type("Metadata", (), {"any_node": lambda self: None})()
        connections: Any = found
        link = CoordinatorLink(env, "g", metadata, connections, retry_backoff_ms=50, retry_backoff_max_ms=500)
        async with anyio.create_task_group() as tasks:
            any_link: Any = link
            keys = {"enable_auto_commit": True, "auto_commit_interval_ms": 0, "default_api_timeout_ms": 3_000}
            member = Fixture(tasks, any_link, clock=SimClock(), **keys)
            member.subscription.unsubscribe()
            member.subscription.assign([T0, T1])
            program = Program(member, link, rng)
            for kind, pause_ms in steps:
                tasks.start_soon(program.act, kind)
                await anyio.sleep(pause_ms / 1000)  # virtual time: between calls
        return program

    program = in_virtual_time(run)
    for tp, offsets in found.arrived.items():
        calls = [program.calls[tp, offset] for offset in offsets]
        assert calls == sorted(calls), f"{tp}: commits went out in the order {calls} of their calls"
