"""Replication quotas (KIP-73)."""

from __future__ import annotations

import pytest

from anabranch.broker.replication.fetcher import ReplicaFetcher
from anabranch.broker.replication.follower import FollowedPartition
from anabranch.broker.replication.throttle import MAX_PAUSE_S, UNLIMITED, ReplicationQuota
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.fetch import EpochEndOffset, PartitionData
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.real_trio import TrioNetwork
from tests.support.broker.replica_cluster import KEY, ReplicaCluster
from tests.support.log.log_fixture import ManualClock
from tests.unit.broker.replication.test_fetcher import CONFIG

LISTED, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def quota(clock: ManualClock, rate: int = 1000, replicas: list[str] | None = None) -> ReplicationQuota:
    listed = ["0:7"] if replicas is None else replicas
    return ReplicationQuota(7, clock, lambda: rate, lambda _topic: listed)


def test_a_listed_replica_waits_until_the_rate_has_caught_up() -> None:
    clock = ManualClock()
    throttle = quota(clock)
    assert not throttle.is_throttled(LISTED)
    throttle.used(LISTED, 3000)
    assert throttle.is_throttled(LISTED)
    assert throttle.retry_at() == MAX_PAUSE_S
    clock.seconds = 2.5
    assert throttle.retry_at() == pytest.approx(3.0)
    clock.seconds = 2.9
    assert throttle.is_throttled(LISTED)
    clock.seconds = 3.001
    assert not throttle.is_throttled(LISTED)


def test_a_rate_that_is_raised_ends_the_wait() -> None:
    clock, rates = ManualClock(), [1]
    throttle = ReplicationQuota(7, clock, lambda: rates[0], lambda _topic: ["*"])
    throttle.used(LISTED, 1 << 20)
    rates[0] = 1 << 20
    clock.seconds = throttle.retry_at()
    assert clock.seconds <= MAX_PAUSE_S
    assert not throttle.is_throttled(LISTED)


def test_a_throttled_follower_fetches_once_the_rate_allows_it_and_not_before() -> None:
    cluster = ReplicaCluster()
    rates = [1000]
    cluster.throttle = ReplicationQuota(7, cluster.clock, lambda: rates[0], lambda _topic: ["*"])
    cluster.elect(1, 0, [1, 2])
    fetcher = ReplicaFetcher(1, CONFIG, cluster.clock, TrioNetwork(), lambda: None, lambda: 1, cluster.throttle)
    cluster[2].log.is_full = True
    fetcher.follow(cluster[2].partition)  # the partition waits from the start
    cluster[2].log.is_full = False
    cluster.throttle.used(KEY, 10_000)
    for _ in range(3):
        cluster.clock.seconds = fetcher._resume_waiting()
        assert list(fetcher._waiting) == [KEY]
    rates[0] = UNLIMITED
    cluster.clock.seconds = fetcher._resume_waiting()
    fetcher._resume_waiting()
    assert not fetcher._waiting


@pytest.mark.parametrize(("high_watermark", "waits"), [(1, False), (2, True)])
def test_a_follower_that_has_all_committed_records_is_not_throttled(high_watermark: int, waits: bool) -> None:
    """KIP-73: replicas in sync fetch without a limit. Otherwise the ISR would shrink, or producers would wait."""
    cluster = ReplicaCluster()
    cluster.throttle = ReplicationQuota(7, cluster.clock, lambda: 1000, lambda _topic: ["*"])
    cluster.elect(1, 0, [1, 2])
    cluster.append(1, b"a")
    cluster.catch_up(1, 2)
    fetcher = ReplicaFetcher(1, CONFIG, cluster.clock, TrioNetwork(), lambda: None, lambda: 1, cluster.throttle)
    fetcher.follow(cluster[2].partition)
    cluster.throttle.used(KEY, 10_000)
    followed = fetcher._followed[KEY]
    outcome = followed.take(1, PartitionData(high_watermark=high_watermark))
    fetcher._settle(KEY, followed, outcome, 0)
    assert list(fetcher._waiting) == ([KEY] if waits else [])


@pytest.mark.parametrize(
    "answer",
    [
        PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE),
        PartitionData(diverging_epoch=EpochEndOffset(epoch=0, end_offset=0)),
    ],
    ids=["out of range", "diverging"],
)
def test_a_follower_whose_log_is_cut_does_not_count_as_caught_up(answer: PartitionData) -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.append(1, b"a")
    cluster.catch_up(1, 2)
    followed = FollowedPartition(cluster[2].partition)
    followed.take(1, PartitionData(high_watermark=1))
    assert followed.is_caught_up
    followed.take(1, answer)
    assert not followed.is_caught_up


def test_idle_time_does_not_raise_the_rate_later() -> None:
    clock = ManualClock()
    throttle = quota(clock)
    clock.seconds = 100
    throttle.used(LISTED, 1000)
    assert throttle.is_throttled(LISTED)


def test_a_replica_that_is_not_listed_neither_waits_nor_counts() -> None:
    throttle = quota(ManualClock())
    throttle.used(OTHER, 10_000)
    assert not throttle.is_throttled(LISTED)
    throttle.used(LISTED, 10_000)
    assert not throttle.is_throttled(OTHER)
    assert quota(ManualClock(), replicas=[]).is_throttled(LISTED) is False


def test_a_star_lists_every_replica() -> None:
    throttle = quota(ManualClock(), replicas=["*"])
    throttle.used(OTHER, 1)
    assert throttle.is_throttled(LISTED)


def test_without_a_rate_no_replica_waits() -> None:
    throttle = quota(ManualClock(), rate=UNLIMITED)
    throttle.used(LISTED, 1 << 40)
    assert not throttle.is_throttled(LISTED)


def test_a_throttled_leader_sends_nothing_to_a_replica_out_of_sync_and_everything_to_one_in_sync() -> None:
    cluster = ReplicaCluster()
    cluster.throttle = quota(cluster.clock, replicas=["*"])
    cluster.throttle.used(LISTED, 5000)
    cluster.elect(1, 0, [1, 2])
    cluster.append(1, b"a")
    assert cluster.ask(2, 1).records
    assert not cluster.ask(3, 1).records
    cluster.clock.seconds += 6
    assert cluster.ask(3, 1).records
