"""Where a follower truncates its log (KIP-101, 279, 320, 595); each test is named after a known failure."""

from __future__ import annotations

import pytest

from anabranch.broker.replication.follower import FetchOutcome
from anabranch.protocol.errors import ErrorCode
from tests.support.broker.replica_cluster import ReplicaCluster


def test_a_follower_copies_its_leader() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    for number in range(50):
        cluster.append(1, b"%d" % number)
    cluster.catch_up(1, 2, 3)
    assert cluster[2].records() == cluster[3].records() == cluster[1].records()
    assert cluster[2].log.leader_epoch_cache.entries == cluster[1].log.leader_epoch_cache.entries


def test_a_deposed_leader_truncates_records_that_its_successor_never_had() -> None:
    """KIP-101, scenario 2: both replicas wrote at the same offset."""
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.append(1, b"both")
    cluster.catch_up(1, 2)
    cluster.append(1, b"only 1")
    cluster.elect(2, 1, [2])
    cluster.append(2, b"only 2")
    cluster.catch_up(2, 1)
    assert cluster[1].values() == [b"both", b"only 2"]
    assert cluster[1].log.leader_epoch_cache.entries == [(0, 0), (1, 1)]


@pytest.mark.trio
async def test_a_follower_that_restarts_keeps_committed_records() -> None:
    """KIP-101, scenario 1: the follower does not truncate to its own watermark.

    The follower's watermark may lag. The follower would lose a committed record, and could lead next.
    """
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.append(1, b"a", b"b")
    cluster.fetch(2, 1, times=1)
    cluster.fetch(2, 1)  # the leader commits; the follower has not received the new watermark
    assert cluster[1].log.high_watermark == 2
    await cluster[2].restart(power_failure=False)
    assert cluster[2].log.high_watermark == 0
    cluster.deliver(2, 1, 0, [1, 2])
    cluster.fetch(2, 1)
    assert cluster[2].values() == [b"a", b"b"]


def test_fast_leader_changes_leave_no_divergence() -> None:
    """KIP-279 and KAFKA-6361: each leader fails before a follower has fetched from it."""
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    cluster.append(1, b"all")
    cluster.catch_up(1, 2, 3)
    cluster.elect(1, 1, [1, 2])
    cluster.append(1, b"1 in 1")
    cluster.elect(2, 2, [2, 1])
    cluster.append(2, b"2 in 2", b"2 in 2 again")
    cluster.elect(1, 3, [1])
    cluster.append(1, b"1 in 3")
    cluster.catch_up(1, 2, 3)
    assert cluster[2].records() == cluster[3].records() == cluster[1].records()
    assert cluster[1].values() == [b"all", b"1 in 1", b"1 in 3"]
    assert cluster[2].log.leader_epoch_cache.entries == cluster[1].log.leader_epoch_cache.entries


def test_a_leader_epoch_without_records_is_forgotten() -> None:
    """If the follower remembered the epoch, the follower would diverge from every later leader without end."""
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.append(1, b"a")
    cluster.catch_up(1, 2)
    cluster.elect(1, 1, [1, 2])  # replica 1 leads in epoch 1 and writes nothing; replica 2 never follows in epoch 1
    cluster.elect(2, 2, [2, 1])
    cluster.append(2, b"b")
    cluster.catch_up(2, 1)
    assert cluster[1].values() == [b"a", b"b"]
    assert cluster[1].log.leader_epoch_cache.entries == [(0, 0), (2, 1)]


def test_the_fetch_offset_of_a_diverging_follower_does_not_count() -> None:
    """KAFKA-13141: the offset belongs to records that the leader does not have."""
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    cluster.append(1, b"a")
    cluster.append(1, b"b")
    cluster.elect(2, 1, [2, 1])
    cluster.append(2, b"x")
    cluster.ask(1, 2)
    assert cluster[2].partition.progress[1].log_end_offset == -1
    assert cluster[2].log.high_watermark == 0
    cluster.catch_up(2, 1)
    assert cluster[2].log.high_watermark == 1 and cluster[1].values() == [b"x"]


def test_the_fetch_state_of_an_earlier_leader_epoch_is_not_current() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.append(1, b"a")
    followed, answer = cluster[2].followed, cluster.ask(2, 1)
    assert followed is not None
    cluster.elect(2, 1, [2])
    assert not followed.is_current
    cluster.elect(1, 2, [1, 2])
    assert not followed.is_current, "in another epoch the fetch state is new, though the leader is the same"
    assert answer.records


def test_a_follower_in_an_older_epoch_is_fenced_and_in_a_newer_one_retries() -> None:
    cluster = ReplicaCluster()
    cluster.elect(1, 1, [1, 2])
    cluster.elect(1, 2, [1, 2], deliver=[1])
    assert cluster.fetch(2, 1) is FetchOutcome.FENCED
    cluster.elect(1, 3, [1, 2], deliver=[2])
    assert cluster.ask(2, 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert cluster.fetch(2, 1) is FetchOutcome.RETRY_LATER


def test_a_follower_that_ends_below_the_leaders_log_start_starts_its_log_there() -> None:
    cluster = ReplicaCluster.led_by(1, [1])
    for number in range(20):
        cluster.append(1, b"%d" % number)
    cluster[1].log.delete_records_before(10)
    cluster.catch_up(1, 2)
    assert (cluster[2].log.log_start_offset, cluster[2].log.log_end_offset) == (10, 20)
    assert cluster[2].records() == cluster[1].records()


def append_by(cluster: ReplicaCluster, leader: int, producer_id: int, sequence: int) -> int:
    value = b"%d of %d" % (sequence, producer_id)
    return cluster.append(leader, value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


@pytest.mark.trio
@pytest.mark.parametrize("behind", [0, 3], ids=["new", "behind"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_follower_that_starts_its_log_anew_knows_producers_without_records(behind: int, restarts: bool) -> None:
    """The follower takes over the state of producers whose records it never had.

    Otherwise this replica would write a repeated batch twice as the next leader.
    """
    cluster = ReplicaCluster.led_by(1, [1, 2])
    for sequence in range(3):
        append_by(cluster, 1, 7, sequence)
    if behind:
        cluster.catch_up(1, 2)
    append_by(cluster, 1, 7, 3)
    append_by(cluster, 1, 8, 0)
    cluster.elect(1, 1, [1])
    cluster[1].log.delete_records_before(4)
    cluster.deliver(2, 1, 1, [1])
    cluster.catch_up(1, 2)
    assert (cluster[2].log.log_start_offset, cluster[2].log.log_end_offset) == (4, 5)
    if restarts:
        await cluster[2].restart(power_failure=False)
    cluster.elect(2, 2, [2])
    assert [append_by(cluster, 2, 7, sequence) for sequence in range(4)] == [0, 1, 2, 3]
    assert append_by(cluster, 2, 8, 0) == 4
    assert append_by(cluster, 2, 7, 4) == 5


def test_a_follower_moves_its_log_start_no_further_than_its_log_end() -> None:
    """The follower asks its leader for producers.

    Only the leader knows the producers of records that the follower never fetches.
    """
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.append(1, b"a", b"b")
    cluster.catch_up(1, 2)
    followed = cluster[2].followed
    assert followed is not None
    answer = cluster.ask(2, 1)
    answer.log_start_offset = 5
    assert followed.take(2, answer) is FetchOutcome.MOVED
    assert (cluster[2].log.log_start_offset, cluster[2].log.log_end_offset) == (2, 2)


def test_the_log_start_of_the_leader_reaches_the_follower() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2])
    for number in range(20):
        cluster.append(1, b"%d" % number)
    cluster.catch_up(1, 2)
    cluster[1].log.delete_records_before(10)
    assert cluster.fetch(2, 1) is FetchOutcome.MOVED, "the next fetch reports it to the leader"
    assert cluster[2].log.log_start_offset == 10


def test_a_follower_truncates_to_the_end_of_an_unclean_leader() -> None:
    cluster = ReplicaCluster.led_by(1, [1])
    cluster.append(1, b"a", b"b")
    cluster.elect(3, 1, [3])  # after the unclean election, replica 3 has no record
    cluster.catch_up(3, 1)
    assert cluster[1].values() == []
    cluster.append(3, b"c")
    cluster.catch_up(3, 1)
    assert cluster[1].records() == cluster[3].records() == [(0, 1, b"c")]


def created_at(cluster: ReplicaCluster, base: int, *replicas: int) -> None:
    for replica in replicas:
        cluster[replica].log.truncate_fully_and_start_at(base)
        cluster[replica].partition.base_offset = base


def test_replicas_of_a_partition_created_again_begin_at_its_base_offset() -> None:
    cluster = ReplicaCluster()
    created_at(cluster, 40, 1, 2, 3)
    cluster.elect(1, 3, [1, 2, 3])
    cluster.catch_up(1, 2, 3)
    assert cluster[1].log.high_watermark == 40
    assert cluster.append(1, b"first") == 40
    cluster.catch_up(1, 2, 3)
    cluster.elect(2, 4, [1, 2, 3])
    cluster.catch_up(2, 1, 3)
    assert [cluster[replica].records() for replica in (1, 2, 3)] == [[(40, 3, b"first")]] * 3
    assert {cluster[replica].log.end_offset_for_epoch(1) for replica in (1, 2, 3)} == {(1, 40)}


def test_a_replica_created_at_another_offset_moves_to_its_leaders_log_start() -> None:
    """A broker of an earlier version creates the replica at offset 0."""
    for leader, begins_at in ((1, 40), (2, 0)):
        cluster = ReplicaCluster(2)
        created_at(cluster, 40, 1)
        cluster.elect(leader, 3, [leader])
        other = 3 - leader
        cluster.append(leader, b"first")
        cluster.catch_up(leader, other)
        assert cluster[other].records() == [(begins_at, 3, b"first")]
        assert cluster[other].log.log_start_offset == begins_at
