"""A leader's in-sync replicas and watermark (KIP-497), and the responses to acks=all."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

from anabranch.broker.awaited_batches import AwaitedBatches, SentBatch
from anabranch.broker.delayed_produce import AwaitedAppend, AwaitedRefusal, DelayedProduce, answer_of
from anabranch.broker.replication.purgatory import Purgatory
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.produce import PartitionProduceResponse, ProduceResponse
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition
from tests.support.broker.replica_cluster import LAG_S, ReplicaCluster
from tests.support.log.batches import batch_of


def test_the_watermark_waits_for_every_member_of_the_isr() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2, 3])
    world.append(1, b"a", b"b")
    assert world[1].log.high_watermark == 0
    world.fetch(2, 1, times=2)
    assert world[1].log.high_watermark == 0
    world.fetch(3, 1)
    assert world[1].log.high_watermark == 0, "the fetch offset only confirms the records below it"
    world.fetch(3, 1)
    assert world[1].log.high_watermark == 2


def test_the_watermark_does_not_wait_for_a_lagging_replica_outside_the_isr() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    world.append(1, b"a")
    world.catch_up(1, 2)
    assert world[1].log.high_watermark == 1


def test_a_follower_learns_the_watermark_but_keeps_it_within_its_log() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    world.append(1, b"a")
    world.catch_up(1, 2)
    assert world[2].log.high_watermark == 1
    world[3].partition.log.advance_high_watermark(1)
    assert world[3].log.high_watermark == 0


def test_the_watermark_waits_for_a_replica_of_a_pending_isr_expansion() -> None:
    """A pending expansion holds the watermark.

    KIP-497: from the moment of the request, the controller may have made the replica electable.
    """
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    world.append(1, b"a")
    world.catch_up(1, 2, 3)
    leader = world[1].partition
    assert leader.pending_isr is not None and sorted(leader.pending_isr.isr) == [1, 2, 3]
    world.append(1, b"b")
    world.clock.seconds += 2 * LAG_S
    world.live.pop(3)
    world.catch_up(1, 2)
    assert world[1].log.high_watermark == 1, "replica 3 does not have the record"
    world.catch_up(1, 3)
    assert world[1].log.high_watermark == 2


def test_the_watermark_waits_for_the_committed_isr_while_a_shrink_is_pending() -> None:
    """A pending shrink keeps the committed ISR in force.

    KAFKA-13091: the watermark moves when the shrink is committed, neither earlier nor only at the next fetch.
    """
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2, 3])
    world.append(1, b"a")
    world.catch_up(1, 2)
    world.clock.seconds += LAG_S + 1
    world.fetch(2, 1)
    leader = world[1].partition
    leader.review_isr()
    assert leader.pending_isr is not None and leader.pending_isr.isr == (1, 2)
    assert world[1].log.high_watermark == 0
    world.commit_isr(1)
    assert world[1].log.high_watermark == 1 and leader.isr == (1, 2) and leader.pending_isr is None


def test_after_a_refused_isr_change_the_isr_stays_and_the_next_change_waits() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    world.catch_up(1, 2, 3)
    leader = world[1].partition
    pending = leader.pending_isr
    assert pending is not None
    leader.isr_refused(pending)
    assert leader.pending_isr is None and leader.isr == (1, 2)
    world.append(1, b"a")
    world.catch_up(1, 2)
    assert world[1].log.high_watermark == 1, "the watermark does not wait for a replica that may not join"
    world.fetch(3, 1, times=2)
    assert leader.pending_isr is None
    world.clock.seconds += 2
    world.fetch(3, 1)
    assert leader.pending_isr is not None


def test_a_response_to_an_isr_change_of_an_earlier_leader_epoch_changes_nothing() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    world.catch_up(1, 2, 3)
    leader = world[1].partition
    old = leader.pending_isr
    assert old is not None
    world.elect(1, 1, [1, 2])
    leader.isr_refused(old)
    leader.isr_committed([1, 2, 3], leader.partition_epoch)
    assert leader.isr == (1, 2)


def test_a_replica_joins_the_isr_only_with_all_committed_records() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1])
    world.append(1, b"a")
    assert world[1].log.high_watermark == 1
    world.fetch(2, 1)
    assert world[1].partition.pending_isr is None, "the replica has no record yet"
    world.elect(1, 1, [1])
    world.fetch(2, 1)
    assert world[1].partition.pending_isr is not None


def test_a_replica_without_all_records_of_earlier_epochs_does_not_join_the_isr() -> None:
    """The watermark of a new leader lags: acknowledged records may lie beyond it."""
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    world.append(1, b"a")
    del world.live[3]  # the ISR does not wait for replica 3
    world.fetch(2, 1, times=2)
    world.fetch(3, 1)
    world.append(1, b"b")
    world.fetch(2, 1)
    world.elect(2, 1, [2, 1], deliver=[1, 2, 3])
    world.live[3] = None
    assert (world[2].log.high_watermark, world[2].log.log_end_offset, world[3].log.log_end_offset) == (1, 2, 1)
    world.fetch(3, 2)
    assert world[2].partition.pending_isr is None, (
        "the replica has all records below the watermark, but not all of the earlier epoch"
    )
    world.fetch(3, 2)
    assert world[2].partition.pending_isr is not None


def test_a_fetch_with_an_older_broker_epoch_does_not_count() -> None:
    """KIP-903: a fetch of a stopped process does not count.

    It may still be on the wire when the next process, which has lost records, already fetches.
    """
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    world.append(1, b"a")
    world.broker_epochs[2] = 7
    world.fetch(2, 1)
    assert world[1].partition.progress[2].log_end_offset == 0
    world.broker_epochs[2] = 6
    world.ask(2, 1)
    assert world[1].partition.progress[2].log_end_offset == 0
    assert world[1].log.high_watermark == 0


def test_an_isr_change_names_the_broker_epoch_of_each_replicas_last_fetch() -> None:
    world = ReplicaCluster()
    world.broker_epochs.update({2: 12, 3: 13})
    world.elect(1, 0, [1, 2])
    world.catch_up(1, 2, 3)
    pending = world[1].partition.pending_isr
    assert pending is not None and dict(zip(pending.isr, pending.broker_epochs)) == {1: -1, 2: 12, 3: 13}


def test_a_refused_replica_is_proposed_again_without_another_fetch() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    world.catch_up(1, 2, 3)
    leader = world[1].partition
    assert leader.pending_isr is not None
    leader.isr_refused(leader.pending_isr)
    leader.review_isr()
    assert leader.pending_isr is None
    world.clock.seconds += 2
    leader.review_isr()
    assert leader.pending_isr is not None


def test_a_replica_on_a_dead_broker_does_not_join_the_isr() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1])
    del world.live[2]
    world.fetch(2, 1, times=3)
    assert world[1].partition.pending_isr is None


def test_under_load_a_follower_of_a_lone_leader_joins_the_isr() -> None:
    """The watermark of a lone leader moves with each append, so a follower would always be one fetch behind it."""
    world = ReplicaCluster()
    world.elect(1, 0, [1])
    world.append(1, b"0")
    for number in range(5):
        answer = world.ask(2, 1)
        world.append(1, b"%d" % number)  # the leader appends more before the follower has appended this response
        followed = world[2].followed
        assert followed is not None
        followed.take(world[2].log.log_end_offset, answer)
    assert world[1].partition.pending_isr is not None


def test_a_follower_lags_only_when_it_does_not_fetch_new_records() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2, 3])
    world.append(1, b"a")
    world.catch_up(1, 2, 3)
    leader = world[1].partition
    world.clock.seconds += 10 * LAG_S
    leader.review_isr()
    assert leader.pending_isr is None, "nothing was written, so both have everything"
    world.append(1, b"b")
    leader.review_isr()
    assert leader.pending_isr is None, "both had everything until now"
    world.catch_up(1, 2)
    world.clock.seconds += LAG_S + 1
    leader.review_isr()
    assert leader.pending_isr is not None and leader.pending_isr.isr == (1, 2)


def test_a_follower_under_steady_load_stays_in_sync() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    for _ in range(20):
        world.append(1, b"x")
        world.clock.seconds += LAG_S / 4
        world.fetch(2, 1)
        world[1].partition.review_isr()
        assert world[1].partition.pending_isr is None


def test_acks_all_needs_min_insync_replicas() -> None:
    world = ReplicaCluster(min_insync_replicas=2)
    world.elect(1, 0, [1])
    with pytest.raises(KafkaError) as refused:
        world.append(1, b"a", all_in_sync=True)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    world.append(1, b"a")


def _awaited(world: ReplicaCluster, offset: int, *, all_in_sync: bool = True) -> AwaitedAppend:
    return AwaitedAppend(world[1].partition, offset + 1, PartitionProduceResponse(), all_in_sync=all_in_sync)


@pytest.mark.trio
async def test_a_partition_that_a_request_names_twice_is_watched_for_both_parts() -> None:
    world = ReplicaCluster(min_insync_replicas=2)
    world.elect(1, 0, [1, 2])
    world.catch_up(1, 2)
    purgatory = Purgatory(world.clock)
    parts = [_awaited(world, world.append(1, b"a", all_in_sync=True)) for _ in range(2)]
    answers: list[ProduceResponse] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(purgatory.run)
        DelayedProduce.park(purgatory, math.inf, parts, [("t", parts)]).then(answers.append)
        for offset, watched in ((1, True), (2, False)):
            world[1].partition.follower_fetched(2, 1, offset, 0)
            await trio.testing.wait_all_tasks_blocked()
            assert bool(world[1].partition.watchers) == watched
        assert answers == [answer_of([("t", [part.answer for part in parts])])]
        nursery.cancel_scope.cancel()


def test_an_append_visits_no_request_that_waits_for_the_watermark() -> None:
    """Otherwise, with many producers and acks=all, each append would check every waiting request."""
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    world.catch_up(1, 2)
    visits: list[TopicPartition] = []

    class Waiting:
        def partition_changed(self, key: TopicPartition) -> None:
            visits.append(key)

    world[1].partition.watchers[Waiting()] = None
    for _ in range(5):
        world.append(1, b"a", all_in_sync=True)
    assert not visits
    world.catch_up(1, 2)
    assert visits


def test_acks_all_fails_when_the_isr_shrinks_below_the_minimum_after_the_append() -> None:
    world = ReplicaCluster(min_insync_replicas=2)
    world.elect(1, 0, [1, 2])
    awaited = _awaited(world, world.append(1, b"a", all_in_sync=True))
    assert not awaited.is_done()
    world.clock.seconds += LAG_S + 1
    world[1].partition.review_isr()
    world.commit_isr(1)
    assert awaited.is_done() and awaited.answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_a_leader_deposed_in_between_acknowledges_none_of_its_earlier_appends() -> None:
    """A deposed leader acknowledges none of its earlier appends.

    Another leader may have written other records at the offset, and the watermark may have passed those.
    """
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2, 3])
    awaited = _awaited(world, world.append(1, b"a"))
    world.elect(2, 1, [2, 3])
    world.append(2, b"other")
    world.catch_up(2, 1, 3)
    world.elect(1, 2, [1, 2, 3])
    world.catch_up(1, 2, 3)
    assert world[1].log.high_watermark == 1 and world[1].values() == [b"other"]
    assert awaited.is_done() and awaited.answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_that_continues_in_a_new_epoch_acknowledges_earlier_appends() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2, 3])
    awaited = _awaited(world, world.append(1, b"a"))
    world.elect(1, 1, [1, 2])
    world.catch_up(1, 2)
    assert awaited.is_done() and not awaited.answer.error_code


def test_a_leader_that_missed_an_epoch_forgets_the_progress_of_its_followers() -> None:
    """In the missed epoch, a follower may have truncated the records that it had fetched before."""
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2, 3])
    world.append(1, b"a")
    world.fetch(2, 1, times=2)
    world.elect(3, 1, [1, 2, 3], deliver=[2, 3])
    world.fetch(2, 3)
    assert world[2].values() == []
    world.elect(1, 2, [1, 2], deliver=[1])
    assert world[1].log.high_watermark == 0, "replica 2 no longer has the record"


def _deposed_with_a_batch() -> ReplicaCluster:
    """Replica 3 led, has a batch that no other replica has, and does not know that 1 leads now."""
    world = ReplicaCluster()
    world.elect(3, 0, [1, 2, 3])
    world.append(3, b"refused later")
    world.elect(1, 1, [1, 2, 3], deliver=[1, 2])
    return world


def _refused(world: ReplicaCluster) -> AwaitedRefusal:
    result = PartitionProduceResponse(error_code=ErrorCode.INVALID_PARTITION_METADATA)
    return AwaitedRefusal(world[1].partition, result)


def test_a_refusal_waits_until_no_in_sync_replica_can_have_the_batch() -> None:
    """A refusal waits until no in-sync replica can have the batch.

    A cut-off earlier leader may have appended the batch, may still be in sync, and may lead again.
    """
    world = _deposed_with_a_batch()
    refused = _refused(world)
    world.catch_up(1, 2)
    assert not refused.is_done(), "replica 3 has the batch"
    world.elect(1, 1, [1, 2, 3], deliver=[3])
    world.append(1, b"more")
    world.fetch(3, 1)
    assert world[3].values() == [], "replica 3 truncated the batch"
    assert not refused.is_done()
    world.fetch(3, 1)
    assert refused.is_done() and refused.answer.error_code == ErrorCode.INVALID_PARTITION_METADATA
    assert world[1].log.high_watermark == 0, "the refusal does not wait until the replicas have all of the log"


def test_a_waiting_refusal_of_a_deposed_leader_becomes_not_leader() -> None:
    world = _deposed_with_a_batch()
    refused = _refused(world)
    world.elect(3, 2, [1, 2, 3])
    assert refused.is_done() and refused.answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_later_batches_of_the_producer_are_refused_while_a_refusal_waits() -> None:
    """The delayed response may be an error after which the producer repeats the batch."""
    world = _deposed_with_a_batch()
    leader, awaited = world[1].partition, AwaitedBatches()

    def number(sequence: int) -> bytes:
        return batch_of(1, producer_id=7, producer_epoch=0, base_sequence=sequence)

    def check(sequence: int) -> None:
        batch = RecordBatch(number(sequence))
        awaited.check(leader.key, batch, leader.log.producers, 0.0, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    sent = SentBatch.read(awaited, world.clock, leader.key, memoryview(number(0)))
    refused = AwaitedRefusal(leader, PartitionProduceResponse(error_code=ErrorCode.POLICY_VIOLATION), sent)
    assert not refused.is_done()
    refused.park()
    with pytest.raises(KafkaError):
        check(1)
    world.elect(1, 1, [1, 2, 3], deliver=[3])
    world.catch_up(1, 2, 3)
    assert refused.is_done()
    with pytest.raises(KafkaError):
        check(2)
    check(1)


def test_a_leader_that_continues_in_a_new_epoch_refuses_at_once() -> None:
    """A resize gives this case: the replicas have followed this leader, and no other replica has led since."""
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2, 3])
    world.append(1, b"a")
    world.catch_up(1, 2, 3)
    world.elect(1, 1, [1, 2, 3])
    assert _refused(world).is_done()


def test_with_flush_on_ack_the_leader_counts_only_records_on_its_disk() -> None:
    world = ReplicaCluster(flushes_on_ack=True)
    world.elect(1, 0, [1, 2])
    offset = world.append(1, b"a")
    assert world[1].services.to_flush == [world[1].partition]
    one, every = _awaited(world, offset, all_in_sync=False), _awaited(world, offset)
    world.catch_up(1, 2)
    assert world[1].log.high_watermark == 0 and not one.is_done() and not every.is_done()
    trio.run(world[1].log.flush)
    world[1].partition.flushed()
    assert world[1].log.high_watermark == 1 and one.is_done() and every.is_done()


def test_a_new_leader_syncs_records_that_are_not_on_its_disk_yet() -> None:
    """Without this the watermark would not move until the next produce."""
    world = ReplicaCluster(flushes_on_ack=True)
    world.elect(1, 0, [1, 2])
    world.append(1, b"a")
    world.catch_up(1, 2)
    world[2].services.to_flush.clear()
    world.elect(2, 1, [2])
    assert world[2].services.to_flush == [world[2].partition]


def test_a_log_that_cannot_be_synced_acknowledges_nothing() -> None:
    world = ReplicaCluster(flushes_on_ack=True)
    world.elect(1, 0, [1])
    awaited = _awaited(world, world.append(1, b"a"))
    world[1].log.is_broken = True
    world[1].partition.fail()
    assert world[1].services.storage_failures == 1
    assert awaited.is_done() and awaited.answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError) as refused:
        world.append(1, b"b")
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_the_low_watermark_is_the_lowest_log_start_of_live_replicas() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2, 3])
    for number in range(10):
        world.append(1, b"%d" % number)
    world.catch_up(1, 2, 3)
    world[1].log.delete_records_before(5)
    assert world[1].partition.low_watermark == 0
    world.catch_up(1, 2)
    assert world[1].partition.low_watermark == 0
    del world.live[3]
    assert world[1].partition.low_watermark == 5


def test_a_leader_with_a_full_disk_proposes_an_isr_without_itself() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2, 3])
    leader = world[1].partition
    leader.log.is_full = True
    leader.review_isr()
    assert leader.pending_isr is not None and leader.pending_isr.isr == (2, 3)
    leader.review_isr()
    assert world[1].services.proposed == [leader], "one request at a time"
    world.elect(1, 1, [1])
    leader.review_isr()
    assert leader.pending_isr is None, (
        "a leader that is alone in the ISR continues to lead, because its records can be read"
    )
    world.version += 1
    leader.isr_committed([1, 2], world.version)
    assert leader.pending_isr is not None and leader.pending_isr.isr == (2,), "another replica came into sync"
    world.elect(2, 2, [1, 2])
    world.elect(1, 3, [1, 2])
    assert leader.pending_isr is not None and leader.pending_isr.isr == (2,), (
        "the replica was elected with a disk that is still full"
    )


def test_a_leader_with_a_full_disk_does_not_resign_to_dead_brokers() -> None:
    world = ReplicaCluster()
    world.elect(1, 0, [1, 2])
    del world.live[2]
    leader = world[1].partition
    leader.log.is_full = True
    leader.review_isr()
    assert leader.pending_isr is None
