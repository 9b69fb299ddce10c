"""Resizes by the controller, refused resizes, and edits of the topic. The tests name the holes of KIP-253."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.controlled_shutdown import ControlledShutdownRequest
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.runtime.env import ZkOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import Before, LineageEntry, PartitionLayout
from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.resize.resize_rules import (
    BROKERS,
    TOPIC,
    alter,
    configure,
    edit,
    finished,
    hold_records,
    is_gone,
    refused,
    resized,
)
from tests.support.resize.resize_states import (
    befores,
    begun,
    counts,
    epochs,
    layouts,
    lineages,
    release,
    silence,
)

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]

# ---------------------------------------------------------------- grow


async def test_the_worked_example_has_its_lineages_and_leader_epochs(cluster: ControllerCluster) -> None:
    """Resizes 4 -> 6 -> 4 -> 8 with the worked example's epochs: the last grow revives draining partitions (hole 26).

    Each resize bumps each partition once.
    """
    await resized(cluster, 6)
    assert await lineages(cluster, (0, 1, 4, 5)) == {0: (), 1: (), 4: _entries(0, {0: 0}), 5: _entries(0, {1: 0})}
    assert (await layouts(cluster, range(6)), await epochs(cluster, range(6))) == (
        {PartitionLayout(6, 1)},
        [1, 1, 1, 1, 0, 0],
    )
    hold_records(cluster, range(4, 6), 40)
    await resized(cluster, 4)
    assert await lineages(cluster, (1, 5)) == {1: _entries(2, {5: 0}), 5: _entries(0, {1: 0})}
    assert await befores(cluster, (1, 5)) == {1: Before(PartitionLayout(6, 1), 1), 5: Before(PartitionLayout(6, 1), 0)}
    assert (await layouts(cluster, range(6)), await epochs(cluster, range(6))) == (
        {PartitionLayout(4, 2)},
        [2, 2, 2, 2, 1, 1],
    )
    await resized(cluster, 8)
    assert await counts(cluster) == (8, 3, 4, None)
    assert (await lineages(cluster, (5,)))[5] == (*_entries(0, {1: 0}), *_entries(2, {1: 2}))
    assert await befores(cluster, (1, 5)) == {1: Before(PartitionLayout(4, 2), 2), 5: Before(PartitionLayout(4, 2), 1)}
    assert await layouts(cluster, range(8)) == {PartitionLayout(8, 3)}
    assert await epochs(cluster, range(8)) == [3, 3, 3, 3, 2, 2, 0, 0]


def _entries(epoch: int, losers: dict[int, int]) -> tuple[LineageEntry, ...]:
    return (LineageEntry(epoch, losers),)


async def test_a_gainer_without_a_live_replica_gets_its_leader_when_a_broker_registers(
    cluster: ControllerCluster,
) -> None:
    await begun(cluster, 5)
    for broker in cluster.brokers.values():
        broker.leave()
    release(cluster)
    await cluster.until(lambda: _no_brokers(cluster))
    for broker in cluster.brokers.values():
        await broker.register()
    await cluster.until(lambda: finished(cluster, 5))


async def _no_brokers(cluster: ControllerCluster) -> bool:
    return not await cluster.store.children(paths.BROKER_IDS)


async def test_an_unclean_election_never_leads_a_partition_before_its_losers_answered(
    cluster: ControllerCluster,
) -> None:
    """A partition that is not created yet has no ISR, but does not count as a partition whose ISR is lost."""
    assert await configure(cluster, unclean_leader_election_enable="true") == ErrorCode.NONE
    await begun(cluster, 6)
    cluster.brokers[3].leave()
    await cluster.until(lambda: 3 not in _led_brokers(cluster))
    assert await cluster.store.exists(paths.partition_state(TOPIC, 4)) is None
    release(cluster)
    await cluster.brokers[3].register()
    await cluster.until(lambda: finished(cluster, 6))


def _led_brokers(cluster: ControllerCluster) -> set[int]:
    return {broker.id for broker in cluster.brokers[2].sent(UpdateMetadataRequest)[-1].live_brokers}


async def is_goal(cluster: ControllerCluster, count: int, version: int) -> bool:
    return (await counts(cluster))[:2] == (count, version)


async def test_a_waiting_resize_request_is_answered_at_once_when_the_topic_is_deleted(
    cluster: ControllerCluster, nursery: trio.Nursery
) -> None:
    silence(cluster, 1)
    answers: list[Any] = []

    async def ask() -> None:
        answers.append((await cluster.request(alter(6, timeout_ms=10**6))).results[0])

    nursery.start_soon(ask)
    await cluster.until(lambda: cluster.brokers[2].led()[TOPIC, 0] == (1, 1))
    await cluster.request(DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=100))
    await cluster.until(lambda: answers, within_s=5)
    assert answers[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "was deleted before" in answers[0].error_message
    release(cluster)
    await cluster.until(lambda: is_gone(cluster))


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(("before", "count"), [(4, 6), (6, 4)], ids=["grow", "shrink"])
async def test_a_repeated_request_waits_for_the_resize_under_way(
    cluster: ControllerCluster, nursery: trio.Nursery, before: int, count: int
) -> None:
    """A client repeats a request whose response was lost. There is only one resize."""
    if before > 4:
        await resized(cluster, before)
    version = (await cluster.topic(TOPIC)).layout_version
    silence(cluster, 1)
    answers: list[int] = []

    async def ask() -> None:
        answers.append((await cluster.request(alter(count, timeout_ms=10**6))).results[0].error_code)

    for _ in range(2):
        nursery.start_soon(ask)
    await cluster.until(lambda: is_goal(cluster, count, version + 1))
    dry = (await cluster.request(alter(count, validate_only=True))).results[0]
    assert (answers, dry.error_code) == ([], ErrorCode.NONE)
    assert "have not answered" in dry.error_message
    release(cluster)
    await cluster.until(lambda: len(answers) == 2)
    assert answers == [ErrorCode.NONE] * 2
    await cluster.until(lambda: finished(cluster, count))
    assert (await cluster.topic(TOPIC)).layout_version == version + 1
    code, message = await refused(cluster, count)
    assert (code, message) == (ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partitions.")


async def test_an_accepted_resize_is_not_undone_when_leaders_move_at_once(cluster: ControllerCluster) -> None:
    """A second check, which edits get, would refuse the resize: leaders have not responded in their new epochs yet."""
    await resized(cluster, 6)
    session = cluster.sessions[1000]
    multi = session.multi

    async def slow(ops: Sequence[ZkOp]) -> list[int]:
        session.multi = multi  # type: ignore[method-assign]
        cluster.nursery.start_soon(cluster.request, ControlledShutdownRequest(broker_id=1, broker_epoch=-1))
        await trio.sleep(1)  # virtual time: the request waits in the queue
        return await multi(ops)

    session.multi = slow  # type: ignore[method-assign]
    await resized(cluster, 5)
    assert (await cluster.topic(TOPIC)).undeleted_partition_count == 5


# ---------------------------------------------------------------- edits by hand


async def test_an_edit_by_hand_splits_and_merges(cluster: ControllerCluster) -> None:
    """KIP-253 proposes edits that extend the assignment, or raise or lower the count, and keep the layout version."""
    partitions = {str(index): list(BROKERS) for index in range(6)}
    await edit(cluster, partitions=partitions)
    await cluster.until(lambda: finished(cluster, 6))
    assert await counts(cluster) == (6, 1, 4, None)
    await edit(cluster, undeleted_partition_count=4)
    await cluster.until(lambda: finished(cluster, 4))
    assert await counts(cluster) == (4, 2, 6, None)
    await edit(cluster, undeleted_partition_count=8)
    await cluster.until(lambda: finished(cluster, 8))
    assert await counts(cluster) == (8, 3, 4, None)
