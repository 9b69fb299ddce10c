"""Fetches of stock consumers: the log seems to end at the partition's cap (``broker/stock_consumer_facts.py``)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from anabranch.broker.handlers.fetch_read import FetchRead, ReadLimits
from anabranch.broker.replication.delayed_fetch import DelayedFetch
from anabranch.broker.replication.fetch_session import FetchSession
from anabranch.broker.replication.layout_admission import DeliveryRules, StockConsumerRule
from anabranch.broker.replication.purgatory import Purgatory
from anabranch.ordered_resize.layout import Layout
from anabranch.ordered_resize.withheld_from_stock_consumers import NOTHING, StockCap
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tests.support.broker.replica_cluster import KEY, ReplicaCluster

HOLD = DeliveryRules(stock_consumers=StockConsumerRule.WITHHOLD)
RESIZED = Layout(2, 1, 1)


@pytest.fixture
def cluster() -> ReplicaCluster:
    """Offsets 0 to 2 are of epoch 1; offsets 3 and 4 are of epoch 2, in which the topic was resized."""
    cluster = ReplicaCluster(1)
    cluster.elect(1, 1, [1])
    cluster.append(1, b"a", b"b", b"c")
    cluster[1].partition.layout = RESIZED
    cluster[1].partition.delivery = HOLD
    cluster.elect(1, 2, [1])
    cluster.append(1, b"d", b"e")
    return cluster


def serve(cluster: ReplicaCluster, epoch: int, until: float = math.inf, at_least: int = -1) -> None:
    cluster[1].partition.stock_cap = StockCap(epoch, until, at_least)


def session_of(cluster: ReplicaCluster, offset: int) -> FetchSession:
    session = FetchSession(Purgatory(cluster.clock), 7, 0.0)
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    session.add(FetchRequest(topics=[FetchTopic(topic="t", partitions=[asked])]))
    return session


def read_of(cluster: ReplicaCluster, session: FetchSession, replica_id: int = -1, **limits: Any) -> FetchRead:
    given = {"read_committed": False, "full": True, "reports_divergence": True, "is_stock": replica_id == -1, **limits}
    replicas: Any = cluster[1]
    read = FetchRead(replicas, cluster.throttle, cluster.metrics, session, ReadLimits(replica_id, -1, 1 << 20, **given))
    read.run()
    return read


def fetched(cluster: ReplicaCluster, offset: int = 0, **limits: Any) -> tuple[int, PartitionData]:
    """Return how many bytes of records the response has, and the response."""
    answer = read_of(cluster, session_of(cluster, offset), **limits).response().responses[0].partitions[0]
    return len(answer.records or b""), answer


def test_a_held_consumer_is_given_batches_up_to_the_cap(cluster: ReplicaCluster) -> None:
    all_of_it, _ = fetched(cluster, is_stock=False)
    assert fetched(cluster)[0] == 0, "the cap is not known yet"
    serve(cluster, 1)
    first, answer = fetched(cluster)
    assert 0 < first < all_of_it
    assert (answer.high_watermark, answer.last_stable_offset, answer.error_code) == (3, 3, 0)
    serve(cluster, 2)
    whole, answer = fetched(cluster)
    assert whole == all_of_it and answer.high_watermark == 5


def test_a_held_consumer_with_read_committed_is_given_the_same_batches(cluster: ReplicaCluster) -> None:
    serve(cluster, 1)
    size, answer = fetched(cluster, read_committed=True)
    assert size == fetched(cluster)[0] and answer.last_stable_offset == 3


def test_an_expired_cap_serves_only_records_that_no_group_can_wait_for(cluster: ReplicaCluster) -> None:
    serve(cluster, 2, until=cluster.clock.monotonic() + 3, at_least=1)
    assert fetched(cluster)[1].high_watermark == 5
    cluster.clock.seconds += 3
    assert fetched(cluster)[1].high_watermark == 3


def test_the_high_watermark_is_not_below_a_reader_above_the_cap(cluster: ReplicaCluster) -> None:
    serve(cluster, 1)
    size, answer = fetched(cluster, offset=4)
    assert (size, answer.error_code, answer.high_watermark) == (0, 0, 4)


def test_anabranch_consumers_followers_and_debugging_consumers_are_not_held(cluster: ReplicaCluster) -> None:
    assert fetched(cluster, is_stock=False)[1].high_watermark == 5
    for replica_id in (1, -2):
        assert (
            len(read_of(cluster, session_of(cluster, 0), replica_id).response().responses[0].partitions[0].records) > 0
        )


def test_only_resized_topics_with_the_hold_config_hold_consumers(cluster: ReplicaCluster) -> None:
    partition = cluster[1].partition
    partition.layout = Layout(1, 0, 1)
    assert fetched(cluster)[1].high_watermark == 5
    partition.layout, partition.delivery = RESIZED, DeliveryRules()
    assert fetched(cluster)[1].high_watermark == 5
    partition.delivery, partition.ordered_delivery = HOLD, False
    assert fetched(cluster)[1].high_watermark == 5
    partition.ordered_delivery = True
    assert fetched(cluster)[1].high_watermark == 0


def test_a_held_fetch_waits_and_is_answered_when_the_cap_moves(cluster: ReplicaCluster) -> None:
    serve(cluster, 1)
    purgatory = Purgatory(cluster.clock)
    session = session_of(cluster, 3)
    read = read_of(cluster, session)
    assert read.withheld == {KEY} and read.size_bytes == 0
    answers: list[FetchResponse] = []
    DelayedFetch.park(purgatory, 10.0, read, 1).then(answers.append)
    serve(cluster, 2)
    cluster[1].partition.notify()
    session.answer_parked()
    assert len(answers[0].responses[0].partitions[0].records or b"") > 0 and not read.withheld


def test_a_reader_at_the_end_of_the_log_is_not_held(cluster: ReplicaCluster) -> None:
    serve(cluster, 2)
    assert not read_of(cluster, session_of(cluster, 5)).withheld


def test_a_leader_keeps_its_cap_in_its_next_epoch_and_loses_it_as_a_follower(cluster: ReplicaCluster) -> None:
    serve(cluster, 2)
    cluster.elect(1, 3, [1])
    cluster.append(1, b"f")
    assert fetched(cluster)[1].high_watermark == 5, "the cap of the new epoch is not known"
    cluster[1].partition.make_follower(2, 4, [2], [1, 2])
    cluster[1].partition.make_leader(5, [1], [1])
    assert cluster[1].partition.stock_cap == NOTHING
