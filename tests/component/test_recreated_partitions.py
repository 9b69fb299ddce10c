"""The controller keeps the end of a removed partition for its next incarnation (see ``test_recreated_logs``)."""

from __future__ import annotations

import pytest

from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from tests.support.controller.controller_cluster import ControllerCluster, Log
from tests.support.resize.resize_rules import TOPIC, finished, hold_records, resized

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]


def bases_sent(cluster: ControllerCluster, partition: int) -> set[int]:
    """The base offsets of the partition's newest incarnation in LeaderAndIsr requests."""
    sent = [
        state
        for broker in cluster.brokers.values()
        for request in broker.sent(LeaderAndIsrRequest)
        for topic in request.topic_states
        for state in topic.partition_states
        if state.partition_index == partition
    ]
    newest = max(state.incarnation for state in sent)
    return {state.base_offset for state in sent if state.incarnation == newest}


async def removed(cluster: ControllerCluster, end: int) -> None:
    """Create partition 4, let it have ``end`` records, and remove it by a merge."""
    await resized(cluster, 5)
    hold_records(cluster, range(4, 5), end)
    await resized(cluster, 4)
    hold_records(cluster, range(4, 5), end, end)
    await cluster.until(lambda: finished(cluster, 4))


async def test_the_controller_keeps_the_end_of_a_removed_partition(cluster: ControllerCluster) -> None:
    await resized(cluster, 5)
    assert bases_sent(cluster, 4) == {0}
    hold_records(cluster, range(4, 5), 40)
    await resized(cluster, 4)
    hold_records(cluster, range(4, 5), 40, 40)
    await cluster.until(lambda: finished(cluster, 4))
    assert (await cluster.topic(TOPIC)).last_offsets == {4: 40}
    await resized(cluster, 6)
    assert (bases_sent(cluster, 4), bases_sent(cluster, 5)) == ({40}, {0})
    assert (await cluster.topic(TOPIC)).last_offsets == {4: 40}, "the end is kept as long as the topic exists"


async def test_the_highest_reported_end_counts(cluster: ControllerCluster) -> None:
    """Transaction markers may follow the last record. Replicas out of sync may have fewer or more records."""
    await resized(cluster, 5)
    hold_records(cluster, range(4, 5), 40)
    await resized(cluster, 4)
    cluster.brokers[2].logs[TOPIC, 4] = Log(43, 40, 40)
    for other in (1, 3):
        cluster.brokers[other].logs[TOPIC, 4] = Log(41, 40, 40)
    await cluster.until(lambda: finished(cluster, 4))
    assert (await cluster.topic(TOPIC)).last_offsets == {4: 43}


async def test_the_end_that_the_leader_reported_is_kept_if_no_replica_knows_it_any_more(
    cluster: ControllerCluster,
) -> None:
    """The replicas deleted the log and restarted, and then the controller asks them again."""
    for broker in cluster.brokers.values():
        broker.forgets_ends = True
    await removed(cluster, 40)
    assert (await cluster.topic(TOPIC)).last_offsets == {4: 40}


async def test_the_recorded_end_never_falls(cluster: ControllerCluster) -> None:
    await removed(cluster, 40)
    await removed(cluster, 40)  # created again at 40, without new records
    assert (await cluster.topic(TOPIC)).last_offsets == {4: 40}
    await removed(cluster, 12)  # on brokers whose log began at 0
    assert (await cluster.topic(TOPIC)).last_offsets == {4: 40}
    await removed(cluster, 55)
    assert (await cluster.topic(TOPIC)).last_offsets == {4: 55}
