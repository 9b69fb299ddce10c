"""Resizes that are cancelled, and resizes requested while another is unfinished (rule 9; hole 12 of KIP-253)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_partitions import CreatePartitionsTopicResult
from anabranch.runtime.env import ZkOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import LineageEntry, PartitionLayout
from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.resize.resize_rules import TOPIC, alter, finished, hold_records, led_by, resized
from tests.support.resize.resize_states import (
    begun,
    counts,
    epochs,
    has_layout,
    is_settled,
    lineages,
    placed,
    release,
    silence,
)

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]
QUEUED = "The resize begins when the one before it is done: "
WAITS = "The resize is queued and waits: "
"""The same if the resize before is over."""


async def ask(cluster: ControllerCluster, count: int) -> CreatePartitionsTopicResult:
    result: CreatePartitionsTopicResult = (await cluster.request(alter(count, timeout_ms=100))).results[0]
    return result


async def queued(cluster: ControllerCluster, count: int, begin: str = QUEUED) -> str:
    """Queue a resize, and return why it waits. A dry run returns the same reason and writes nothing."""
    before = await counts(cluster)
    dry = (await cluster.request(alter(count, validate_only=True))).results[0]
    assert await counts(cluster) == before
    result = await ask(cluster, count)
    assert (result.error_code, dry.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert (await counts(cluster))[3] == count
    message = str(result.error_message)
    assert message.startswith(begin)
    assert message.removeprefix(begin).split(";")[0] in str(dry.error_message)
    return message.removeprefix(begin)


# ---------------------------------------------------------------- cancel


async def test_the_old_count_cancels_a_grow_while_no_gainer_is_created(
    cluster: ControllerCluster, nursery: trio.Nursery
) -> None:
    """No partition loses or gains keys. The same write removes the uncreated partitions from the assignment."""
    silence(cluster, 1)
    answers: list[Any] = []

    async def first() -> None:
        answers.append((await cluster.request(alter(6, timeout_ms=10**6))).results[0])

    nursery.start_soon(first)
    await cluster.until(lambda: has_layout(cluster, 0, 6, 1))
    await ask(cluster, 4)
    assert await counts(cluster) == (4, 2, 4, None)
    assert sorted((await cluster.topic(TOPIC)).partitions) == [0, 1, 2, 3]
    await cluster.until(lambda: answers)
    assert answers[0].error_code == ErrorCode.POLICY_VIOLATION
    assert answers[0].error_message.startswith("The resize was cancelled by another request")
    release(cluster)
    await cluster.until(lambda: finished(cluster, 4))
    assert await lineages(cluster, range(4)) == dict.fromkeys(range(4), ())
    assert await epochs(cluster, range(4)) == [2] * 4


async def test_once_a_gainer_is_created_the_old_count_is_a_new_resize(cluster: ControllerCluster) -> None:
    """Hole 12: the gainers have the keys. The new resize begins when the leaders of the gainers have responded."""
    silence(cluster, 3)
    request = placed(6, 2, [3, 2, 1])
    request.timeout_ms = 100
    await cluster.request(request)
    assert await led_by(cluster, 4, 3) and await led_by(cluster, 5, 3)
    assert await queued(cluster, 4) == (
        "partitions 4, 5 have the layout, and their leaders have not answered; the resize to 4 partitions is queued."
    )
    await trio.sleep(5)  # virtual time: longer than any wait
    assert await counts(cluster) == (6, 1, 4, 4)
    hold_records(cluster, range(4, 6), 40)
    release(cluster)
    await cluster.until(lambda: is_settled(cluster, 4, 2, 6, None))
    assert await lineages(cluster, (0, 1)) == {0: (LineageEntry(2, {4: 0}),), 1: (LineageEntry(2, {5: 0}),)}


async def test_a_cancel_during_the_write_of_a_gainer_is_judged_after_the_write(cluster: ControllerCluster) -> None:
    """A request that comes during the write of the first gainer is judged after the write."""
    write, answers = cluster.sessions[1000].multi, list[Any]()

    async def cancel() -> None:
        answers.append(await ask(cluster, 4))

    async def slow(ops: Sequence[ZkOp]) -> list[int]:
        if any(op.path == paths.partition_state(TOPIC, 4) for op in ops) and not answers:
            cluster.nursery.start_soon(cancel)
            await trio.sleep(0.05)  # virtual time: the request waits in the queue
        return await write(ops)

    cluster.sessions[1000].multi = slow  # type: ignore[method-assign]
    hold_records(cluster, range(4, 6), 40)
    await cluster.request(alter(6, timeout_ms=100))
    await cluster.until(lambda: is_settled(cluster, 4, 2, 6, None))
    assert (await lineages(cluster, (0,)))[0] == (LineageEntry(2, {4: 0}),)


async def test_draining_partitions_still_drain_after_a_cancel(cluster: ControllerCluster) -> None:
    """Partitions 4 and 5 drain when 8 partitions are requested. They still drain after the cancel, in a new layout."""
    await resized(cluster, 6)
    hold_records(cluster, range(4, 6), 40)
    await resized(cluster, 4)
    await begun(cluster, 8)
    await ask(cluster, 4)
    assert await counts(cluster) == (4, 4, 4, None)
    assert sorted((await cluster.topic(TOPIC)).partitions) == list(range(6))
    release(cluster)
    await cluster.until(lambda: is_settled(cluster, 4, 4, 4, None))
    hold_records(cluster, range(4, 6), 40, 40)
    await cluster.until(lambda: finished(cluster, 4))
    assert (await cluster.topic(TOPIC)).last_offsets == {4: 40, 5: 40}


# ---------------------------------------------------------------- the queue


async def test_only_the_last_count_requested_during_a_resize_is_carried_out(cluster: ControllerCluster) -> None:
    await begun(cluster, 6)
    for count in (5, 12, 7):
        await queued(cluster, count)
    release(cluster)
    await cluster.until(lambda: finished(cluster, 7))
    assert await counts(cluster) == (7, 2, 6, None)


async def test_of_two_concurrent_requests_the_second_is_queued(cluster: ControllerCluster) -> None:
    """The second request is judged right after the write of the first, before any step of the first resize."""
    answers: dict[int, CreatePartitionsTopicResult] = {}
    session = cluster.sessions[1000]
    multi = session.multi

    async def ask_for(count: int) -> None:
        answers[count] = (await cluster.request(alter(count))).results[0]

    async with trio.open_nursery() as both:

        async def slow(ops: Sequence[ZkOp]) -> list[int]:
            session.multi = multi  # type: ignore[method-assign]
            both.start_soon(ask_for, 9)
            await trio.sleep(1)  # virtual time: the second request waits in the queue
            return await multi(ops)

        session.multi = slow  # type: ignore[method-assign]
        both.start_soon(ask_for, 6)
    assert {count: answer.error_code for count, answer in answers.items()} == {6: 0, 9: 0}
    await cluster.until(lambda: finished(cluster, 9))
    assert await counts(cluster) == (9, 2, 6, None)


@pytest.mark.parametrize(("count", "after"), [(4, (4, 2, 4, None)), (8, (8, 2, 6, None))], ids=["cancelled", "queued"])
async def test_the_next_controller_finishes_a_cancel_and_carries_out_a_queued_count(
    cluster: ControllerCluster, count: int, after: tuple[int, int, int, int | None]
) -> None:
    await begun(cluster, 6)
    await ask(cluster, count)
    cluster.vacate()
    release(cluster)
    await cluster.start_controller(1001)
    await cluster.until(lambda: finished(cluster, count))
    assert await counts(cluster) == after


async def test_a_queued_count_waits_while_a_broker_is_missing_and_is_then_carried_out(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """While one of three brokers is stopped, no broker can have the third replica.

    The reason is logged once, and again when it occurs again. A request that could begin at once is refused. A request
    that must wait is accepted.
    """
    await begun(cluster, 6)
    await queued(cluster, 8)
    cluster.brokers[3].leave()
    await queued(cluster, 9)
    release(cluster)
    await cluster.until(lambda: is_settled(cluster, 6, 1, 4, 9))
    waits = "its resize to 9 partitions waits: Replication factor: 3 larger than available brokers: 2."
    await cluster.until(lambda: waits in caplog.text)
    refused = await ask(cluster, 7)
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    await cluster.start_broker(4)
    cluster.brokers[2].leave()
    await trio.sleep(10)  # virtual time: many events
    assert await counts(cluster) == (6, 1, 4, 9)
    assert caplog.text.count(waits) == 1
    await cluster.brokers[3].register()
    await cluster.brokers[2].register()
    await cluster.until(lambda: finished(cluster, 9))


@pytest.mark.parametrize(("count", "asked"), [(4, 6), (6, 5)], ids=["grow", "shrink"])
async def test_a_resize_waits_for_the_leader_of_a_partition_that_has_none(
    cluster: ControllerCluster, count: int, asked: int
) -> None:
    """If the resize began without the leader, keys of healthy partitions would move to partitions without a leader."""
    await cluster.start_broker(4)
    if count > 4:
        await resized(cluster, count)
    leader = (await cluster.state(TOPIC, 3)).leader
    assert await cluster.alter_isr(TOPIC, 3, [leader]) == ErrorCode.NONE
    cluster.brokers[leader].leave()
    await cluster.until(lambda: led_by(cluster, 3, -1))
    assert "partition 3 has the layout, and its leader has not answered" in await queued(cluster, asked, WAITS)
    await cluster.brokers[leader].register()
    await cluster.until(lambda: finished(cluster, asked))


# ---------------------------------------------------------------- partitions that are being removed


async def removal_held(cluster: ControllerCluster) -> None:
    """Begin the removal of partitions 4 and 5. Broker 3 has replicas of both partitions and is stopped."""
    await resized(cluster, 6)
    hold_records(cluster, range(4, 6), 40)
    await resized(cluster, 4)
    cluster.brokers[3].leave()
    hold_records(cluster, range(4, 6), 40, 40)
    await cluster.until(lambda: is_leaving(cluster, 4))


async def is_leaving(cluster: ControllerCluster, partition: int) -> bool:
    return (await cluster.state(TOPIC, partition)).being_removed


async def test_a_count_that_includes_a_partition_being_removed_waits_and_names_the_brokers(
    cluster: ControllerCluster,
) -> None:
    """Rule 6: the keys of a partition that is being removed would have no leader.

    After the removal the number is used again. The new partition begins above the last leader epoch of the old
    partition, and at the end offset of the old log. Leader epochs went up by one when broker 3 left the ISRs.
    """
    await removal_held(cluster)
    before = (await cluster.store.get(paths.partition_state(TOPIC, 5))).czxid
    for broker in (1, 2):
        assert cluster.brokers[broker].metadata()[TOPIC, 5] < 0
    assert await queued(cluster, 6, WAITS) == (
        "partitions 4, 5 are being removed, and broker 3 has replicas of them; the resize to 6 partitions is queued."
    )
    await trio.sleep(10)  # virtual time: several polls
    assert await counts(cluster) == (4, 2, 6, 6)
    await cluster.brokers[3].register()
    await cluster.until(lambda: finished(cluster, 6))
    topic, state = await cluster.topic(TOPIC), await cluster.state(TOPIC, 5)
    assert (state.leader_epoch, state.layout, state.lineage) == (3, PartitionLayout(6, 3), (LineageEntry(3, {1: 3}),))
    assert (topic.last_leader_epochs, topic.last_offsets) == ({4: 2, 5: 2}, {4: 40, 5: 40})
    assert (await cluster.store.get(paths.partition_state(TOPIC, 5))).czxid > before


async def test_a_partition_that_the_queued_count_includes_does_not_begin_to_be_removed(
    cluster: ControllerCluster,
) -> None:
    """Partitions 6 and 7 have drained before the shrink to 5 is done, and the queued grow revives them."""
    await resized(cluster, 8)
    hold_records(cluster, range(5, 8), 40)
    await resized(cluster, 6)
    incarnations = await _incarnations(cluster)
    await begun(cluster, 5)
    await queued(cluster, 8)
    hold_records(cluster, range(5, 8), 40, 40)
    await trio.sleep(10)  # virtual time: several polls
    release(cluster)
    await cluster.until(lambda: finished(cluster, 8))
    assert await _incarnations(cluster) == incarnations
    assert (await cluster.topic(TOPIC)).last_leader_epochs == {}


async def _incarnations(cluster: ControllerCluster) -> list[int]:
    return [(await cluster.store.get(paths.partition_state(TOPIC, p))).czxid for p in range(5, 8)]
