"""ConsumerGroupPosition over a real socket: a hand-over between two members of one broker's group (KIP-253)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.consumer_protocol import ConsumerProtocolAssignment, TopicPartition
from anabranch.protocol.generated.join_group import JoinGroupRequest
from anabranch.protocol.message import encode_versioned
from anabranch.runtime.channel import Channel
from tests.support.broker import group_requests
from tests.support.broker.broker_harness import DEADLINE_S, OneBroker, one_broker

pytestmark = pytest.mark.trio

TOPIC = "t"
PARENT, CHILD = 1, 5
INCARNATION = 40
"""The incarnation of partition 0; the other partitions have the next numbers."""
LONG_MS = int(DEADLINE_S * 1000)


@asynccontextmanager
async def group_of_two(tmp_path: Path) -> AsyncIterator[tuple[OneBroker, str, str]]:
    """A broker, and two members in generation 2: the owner of the parent and the owner of the child."""
    async with one_broker(tmp_path, {"group.initial.rebalance.delay.ms": "0"}) as broker:
        await broker.create_topic("__consumer_offsets", 1)
        topic_id = await broker.create_topic(TOPIC, CHILD + 1)
        await broker.update_metadata(TOPIC, topic_id, CHILD + 1, incarnation=INCARNATION)
        second: list[Any] = []

        async def join_second() -> None:
            async with connection(broker) as channel:
                second.append(await channel.request(joining(""), version=3, timeout_s=DEADLINE_S))

        with trio.fail_after(DEADLINE_S):
            first = await join_first(broker)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(join_second)
                while await heartbeat(broker, first) != ErrorCode.REBALANCE_IN_PROGRESS:
                    await trio.sleep(0.02)  # polls: the second member joins
                await broker.request(joining(first), version=3)
        owner, waiter = first, second[0].member_id
        shares = {
            member: encode_versioned(
                ConsumerProtocolAssignment(assigned_partitions=[TopicPartition(topic=TOPIC, partitions=[index])]), 1
            )
            for member, index in ((owner, PARENT), (waiter, CHILD))
        }
        for member in (owner, waiter):  # the first member leads
            syncing = group_requests.sync(member, 2, shares)
            assert (await broker.request(syncing, version=3)).error_code == ErrorCode.NONE
        yield broker, owner, waiter


def joining(member_id: str) -> JoinGroupRequest:
    return group_requests.join(member_id, session_ms=LONG_MS, rebalance_ms=LONG_MS)


async def join_first(broker: OneBroker) -> str:
    """The member id of the first member, alone in generation 1."""
    while True:
        answer = await broker.request(joining(""), version=3)
        if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            member_id: str = answer.member_id
            return member_id
        await trio.sleep(0.02)  # polls: the coordinator's partition is loaded


async def heartbeat(broker: OneBroker, member_id: str) -> int:
    return int((await broker.request(group_requests.heartbeat(member_id, 1))).error_code)


@asynccontextmanager
async def connection(broker: OneBroker) -> AsyncIterator[Channel]:
    async with Channel.open(broker.env.network, broker.host, broker.port, client_id="member") as channel:
        yield channel


def poll(member_id: str, *, wants: bool = False, position: int = -1, max_wait_ms: int = LONG_MS) -> Any:
    parent = (TOPIC, PARENT)
    given = {"reports": {parent: position}, "incarnation": INCARNATION + PARENT, "max_wait_ms": max_wait_ms}
    return group_requests.poll(member_id, 2, *([parent] if wants else []), **given)


def parent_in(response: Any) -> tuple[int, bool]:
    assert response.error_code == ErrorCode.NONE
    (partition,) = response.topics[0].partitions
    assert (partition.partition_index, partition.incarnation) == (PARENT, INCARNATION + PARENT)
    return partition.position, partition.need_position


async def test_the_owner_is_asked_for_its_position_and_the_waiting_member_gets_it(tmp_path: Path) -> None:
    answers: list[tuple[int, bool]] = []

    async def wait_for_parent(broker: OneBroker, member_id: str) -> None:
        async with connection(broker) as channel:
            answers.append(parent_in(await channel.request(poll(member_id, wants=True), timeout_s=DEADLINE_S)))

    async with group_of_two(tmp_path) as (broker, owner, waiter), connection(broker) as channel:
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_parent, broker, waiter)
                assert parent_in(await channel.request(poll(owner), timeout_s=DEADLINE_S)) == (-1, True)
                assert answers == []
                await channel.request(poll(owner, position=100, max_wait_ms=0), timeout_s=DEADLINE_S)
    assert answers == [(100, False)]


async def test_a_request_behind_a_waiting_poll_is_handled_only_after_it(tmp_path: Path) -> None:
    """The next request is a LeaveGroup. If it were handled first, the waiting poll would be refused."""
    answers: list[Any] = []

    async with group_of_two(tmp_path) as (broker, owner, _), connection(broker) as channel:

        async def ask(request: Any) -> None:
            answers.append(await channel.request(request, timeout_s=DEADLINE_S))

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                await channel.request(poll(owner, max_wait_ms=0), timeout_s=DEADLINE_S)
                nursery.start_soon(ask, poll(owner, max_wait_ms=300))
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(ask, group_requests.leave((owner, None)))
    assert [answer.error_code for answer in answers] == [ErrorCode.NONE, ErrorCode.NONE]
    assert answers[0].topics == []
    assert answers[1].members[0].error_code == ErrorCode.NONE
