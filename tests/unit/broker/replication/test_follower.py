"""Where a follower truncates its log (KIP-101, 279, 320, 595); each test is named after a known failure."""

from __future__ import annotations

import pytest

from anabranch.broker.replication.follower import FetchOutcome
from anabranch.protocol.errors import ErrorCode
from tests.support.broker.replica_cluster import ReplicaCluster


def test_a_follower_copies_its_leader() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2, 3])
    for number in range(50):
        world.append(1, b"%d" % number)
    world.catch_up(1, 2, 3)
    assert world[2].records() == world[3].records() == world[1].records()
    assert world[2].log.leader_epoch_cache.entries == world[1].log.leader_epoch_cache.entries


def test_a_deposed_leader_truncates_records_that_its_successor_never_had() -> None:
    """KIP-101, scenario 2: both replicas wrote at the same offset."""
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    world.append(1, b"both")
    world.catch_up(1, 2)
    world.append(1, b"only 1")
    world.elect(2, 1, [2])
    world.append(2, b"only 2")
    world.catch_up(2, 1)
    assert world[1].values() == [b"both", b"only 2"]
    assert world[1].log.leader_epoch_cache.entries == [(0, 0), (1, 1)]


@pytest.mark.trio
async def test_a_follower_that_restarts_keeps_committed_records() -> None:
    """KIP-101, scenario 1: the follower does not truncate to its own watermark.

    That watermark lags, so the follower would lose a committed record and then lead.
    """
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    world.append(1, b"a", b"b")
    world.fetch(2, 1, times=1)
    world.fetch(2, 1)  # the leader commits; the follower has not received the new watermark
    assert world[1].log.high_watermark == 2
    await world[2].restart(power_failure=False)
    assert world[2].log.high_watermark == 0
    world.deliver(2, 1, 0, [1, 2])
    world.fetch(2, 1)
    assert world[2].values() == [b"a", b"b"]


def test_fast_leader_changes_leave_no_divergence() -> None:
    """KIP-279 and KAFKA-6361: each leader fails before a follower has fetched from it."""
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2, 3])
    world.append(1, b"all")
    world.catch_up(1, 2, 3)
    world.elect(1, 1, [1, 2])
    world.append(1, b"1 in 1")
    world.elect(2, 2, [2, 1])
    world.append(2, b"2 in 2", b"2 in 2 again")
    world.elect(1, 3, [1])
    world.append(1, b"1 in 3")
    world.catch_up(1, 2, 3)
    assert world[2].records() == world[3].records() == world[1].records()
    assert world[1].values() == [b"all", b"1 in 1", b"1 in 3"]
    assert world[2].log.leader_epoch_cache.entries == world[1].log.leader_epoch_cache.entries


def test_a_leader_epoch_without_records_is_forgotten() -> None:
    """If the follower remembered the epoch, it would diverge from every later leader without end."""
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    world.append(1, b"a")
    world.catch_up(1, 2)
    world.elect(1, 1, [1, 2])  # 1 leads in epoch 1 and writes nothing; 2 never follows that epoch
    world.elect(2, 2, [2, 1])
    world.append(2, b"b")
    world.catch_up(2, 1)
    assert world[1].values() == [b"a", b"b"]
    assert world[1].log.leader_epoch_cache.entries == [(0, 0), (2, 1)]


def test_the_fetch_offset_of_a_diverging_follower_does_not_count() -> None:
    """KAFKA-13141: its fetch offset belongs to records that the leader does not have."""
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2, 3])
    world.append(1, b"a")
    world.append(1, b"b")
    world.elect(2, 1, [2, 1])
    world.append(2, b"x")
    world.ask(1, 2)
    assert world[2].partition.progress[1].log_end_offset == -1
    assert world[2].log.high_watermark == 0
    world.catch_up(2, 1)
    assert world[2].log.high_watermark == 1 and world[1].values() == [b"x"]


def test_the_fetch_state_of_an_earlier_leader_epoch_is_not_current() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    world.append(1, b"a")
    followed, answer = world[2].followed, world.ask(2, 1)
    assert followed is not None
    world.elect(2, 1, [2])
    assert not followed.is_current
    world.elect(1, 2, [1, 2])
    assert not followed.is_current, "in another epoch the fetch state is new, though the leader is the same"
    assert answer.records


def test_a_follower_in_an_older_epoch_is_fenced_and_in_a_newer_one_retries() -> None:
    world = ReplicaCluster()
    world.elect(1, 1, [1, 2])
    world.elect(1, 2, [1, 2], deliver=[1])
    assert world.fetch(2, 1) is FetchOutcome.FENCED
    world.elect(1, 3, [1, 2], deliver=[2])
    assert world.ask(2, 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert world.fetch(2, 1) is FetchOutcome.RETRY_LATER


def test_a_follower_that_ends_below_the_leaders_log_start_starts_its_log_there() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1])
    for number in range(20):
        world.append(1, b"%d" % number)
    world[1].log.delete_records_before(10)
    world.catch_up(1, 2)
    assert (world[2].log.log_start_offset, world[2].log.log_end_offset) == (10, 20)
    assert world[2].records() == world[1].records()


def append_by(world: ReplicaCluster, leader: int, producer_id: int, sequence: int) -> int:
    value = b"%d of %d" % (sequence, producer_id)
    return world.append(leader, value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


@pytest.mark.trio
@pytest.mark.parametrize("behind", [0, 3], ids=["new", "behind"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_follower_that_starts_its_log_anew_knows_producers_without_records(behind: int, restarts: bool) -> None:
    """The follower takes over such a producer.

    Otherwise a batch whose response was lost is written twice once this replica leads.
    """
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    for sequence in range(3):
        append_by(world, 1, 7, sequence)
    if behind:
        world.catch_up(1, 2)
    append_by(world, 1, 7, 3)
    append_by(world, 1, 8, 0)
    world.elect(1, 1, [1])
    world[1].log.delete_records_before(4)
    world.deliver(2, 1, 1, [1])
    world.catch_up(1, 2)
    assert (world[2].log.log_start_offset, world[2].log.log_end_offset) == (4, 5)
    if restarts:
        await world[2].restart(power_failure=False)
    world.elect(2, 2, [2])
    assert [append_by(world, 2, 7, sequence) for sequence in range(4)] == [0, 1, 2, 3]
    assert append_by(world, 2, 8, 0) == 4
    assert append_by(world, 2, 7, 4) == 5


def test_a_follower_moves_its_log_start_no_further_than_its_log_end() -> None:
    """The follower asks its leader for producers.

    They are the only source for producers of records that it never fetches.
    """
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    world.append(1, b"a", b"b")
    world.catch_up(1, 2)
    followed = world[2].followed
    assert followed is not None
    answer = world.ask(2, 1)
    answer.log_start_offset = 5
    assert followed.take(2, answer) is FetchOutcome.MOVED
    assert (world[2].log.log_start_offset, world[2].log.log_end_offset) == (2, 2)


def test_the_log_start_of_the_leader_reaches_the_follower() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    for number in range(20):
        world.append(1, b"%d" % number)
    world.catch_up(1, 2)
    world[1].log.delete_records_before(10)
    assert world.fetch(2, 1) is FetchOutcome.MOVED, "the next fetch reports it to the leader"
    assert world[2].log.log_start_offset == 10


def test_a_follower_truncates_to_the_end_of_an_unclean_leader() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1])
    world.append(1, b"a", b"b")
    world.elect(3, 1, [3])  # after the unclean election, replica 3 has no record
    world.catch_up(3, 1)
    assert world[1].values() == []
    world.append(3, b"c")
    world.catch_up(3, 1)
    assert world[1].records() == world[3].records() == [(0, 1, b"c")]


def created_at(world: ReplicaCluster, base: int, *replicas: int) -> None:
    for replica in replicas:
        world[replica].log.truncate_fully_and_start_at(base)
        world[replica].partition.base_offset = base


def test_replicas_of_a_partition_created_again_begin_at_its_base_offset() -> None:
    world = ReplicaCluster()
    created_at(world, 40, 1, 2, 3)
    world.elect(1, 3, [1, 2, 3])
    world.catch_up(1, 2, 3)
    assert world[1].log.high_watermark == 40
    assert world.append(1, b"first") == 40
    world.catch_up(1, 2, 3)
    world.elect(2, 4, [1, 2, 3])
    world.catch_up(2, 1, 3)
    assert [world[replica].records() for replica in (1, 2, 3)] == [[(40, 3, b"first")]] * 3
    assert {world[replica].log.end_offset_for_epoch(1) for replica in (1, 2, 3)} == {(1, 40)}


def test_a_replica_created_at_another_offset_moves_to_its_leaders_log_start() -> None:
    """A broker of an earlier version creates the replica at offset 0."""
    for leader, begins_at in ((1, 40), (2, 0)):
        world = ReplicaCluster(2)
        created_at(world, 40, 1)
        world.elect(leader, 3, [leader])
        other = 3 - leader
        world.append(leader, b"first")
        world.catch_up(leader, other)
        assert world[other].records() == [(begins_at, 3, b"first")]
        assert world[other].log.log_start_offset == begins_at
