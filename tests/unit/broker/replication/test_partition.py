"""A leader's in-sync replicas and watermark (KIP-497), and the responses to acks=all."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

from anabranch.broker.delayed_produce import AwaitedAppend, AwaitedRefusal, DelayedProduce, Place
from anabranch.broker.log.repeated_batches import ProducerConnection
from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.purgatory import Purgatory
from anabranch.broker.stock.order_with_idempotence import AwaitedBatches, SentBatch
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition
from tests.support.broker.replica_cluster import LAG_S, ReplicaCluster
from tests.support.log.batches import batch_of


def test_the_watermark_waits_for_every_member_of_the_isr() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    cluster.append(1, b"a", b"b")
    assert cluster[1].log.high_watermark == 0
    cluster.fetch(2, 1, times=2)
    assert cluster[1].log.high_watermark == 0
    cluster.fetch(3, 1)
    assert cluster[1].log.high_watermark == 0, "the fetch offset only confirms the records below it"
    cluster.fetch(3, 1)
    assert cluster[1].log.high_watermark == 2


def test_the_watermark_does_not_wait_for_a_lagging_replica_outside_the_isr() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.append(1, b"a")
    cluster.catch_up(1, 2)
    assert cluster[1].log.high_watermark == 1


def test_a_follower_learns_the_watermark_but_keeps_it_within_its_log() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.append(1, b"a")
    cluster.catch_up(1, 2)
    assert cluster[2].log.high_watermark == 1
    cluster[3].partition.log.advance_high_watermark(1)
    assert cluster[3].log.high_watermark == 0


def test_the_watermark_waits_for_a_replica_of_a_pending_isr_expansion() -> None:
    """A pending expansion holds the watermark.

    KIP-497: from the moment of the request, the controller may have made the replica electable.
    """
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.append(1, b"a")
    cluster.catch_up(1, 2, 3)
    leader = cluster[1].partition
    assert leader.pending_isr is not None and sorted(leader.pending_isr.isr) == [1, 2, 3]
    cluster.append(1, b"b")
    cluster.clock.seconds += 2 * LAG_S
    cluster.live.pop(3)
    cluster.catch_up(1, 2)
    assert cluster[1].log.high_watermark == 1, "replica 3 does not have the record"
    cluster.catch_up(1, 3)
    assert cluster[1].log.high_watermark == 2


def test_the_watermark_waits_for_the_committed_isr_while_a_shrink_is_pending() -> None:
    """A pending shrink keeps the committed ISR in force.

    KAFKA-13091: the watermark moves when the shrink is committed. It does not move earlier, or wait for the next fetch.
    """
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    cluster.append(1, b"a")
    cluster.catch_up(1, 2)
    cluster.clock.seconds += LAG_S + 1
    cluster.fetch(2, 1)
    leader = cluster[1].partition
    leader.review_isr()
    assert leader.pending_isr is not None and leader.pending_isr.isr == (1, 2)
    assert cluster[1].log.high_watermark == 0
    cluster.commit_isr(1)
    assert cluster[1].log.high_watermark == 1 and leader.isr == (1, 2) and leader.pending_isr is None


def test_after_a_refused_isr_change_the_isr_stays_and_the_next_change_waits() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.catch_up(1, 2, 3)
    leader = cluster[1].partition
    pending = leader.pending_isr
    assert pending is not None
    leader.isr_refused(pending)
    assert leader.pending_isr is None and leader.isr == (1, 2)
    cluster.append(1, b"a")
    cluster.catch_up(1, 2)
    assert cluster[1].log.high_watermark == 1, "the watermark does not wait for a replica that may not join"
    cluster.fetch(3, 1, times=2)
    assert leader.pending_isr is None
    cluster.clock.seconds += 2
    cluster.fetch(3, 1)
    assert leader.pending_isr is not None


def test_a_response_to_an_isr_change_of_an_earlier_leader_epoch_changes_nothing() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.catch_up(1, 2, 3)
    leader = cluster[1].partition
    old = leader.pending_isr
    assert old is not None
    cluster.elect(1, 1, [1, 2])
    leader.isr_refused(old)
    leader.isr_committed([1, 2, 3], leader.partition_epoch)
    assert leader.isr == (1, 2)


def test_a_replica_joins_the_isr_only_with_all_committed_records() -> None:
    cluster = ReplicaCluster.led_by(1, [1])
    cluster.append(1, b"a")
    assert cluster[1].log.high_watermark == 1
    cluster.fetch(2, 1)
    assert cluster[1].partition.pending_isr is None, "the replica has no record yet"
    cluster.elect(1, 1, [1])
    cluster.fetch(2, 1)
    assert cluster[1].partition.pending_isr is not None


def test_a_replica_without_all_records_of_earlier_epochs_does_not_join_the_isr() -> None:
    """The watermark of a new leader lags: there may be acknowledged records above the watermark."""
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.append(1, b"a")
    del cluster.live[3]  # the ISR does not wait for replica 3
    cluster.fetch(2, 1, times=2)
    cluster.fetch(3, 1)
    cluster.append(1, b"b")
    cluster.fetch(2, 1)
    cluster.elect(2, 1, [2, 1], deliver=[1, 2, 3])
    cluster.live[3] = None
    assert (cluster[2].log.high_watermark, cluster[2].log.log_end_offset, cluster[3].log.log_end_offset) == (1, 2, 1)
    cluster.fetch(3, 2)
    assert cluster[2].partition.pending_isr is None, (
        "the replica has all records below the watermark, but not all of the earlier epoch"
    )
    cluster.fetch(3, 2)
    assert cluster[2].partition.pending_isr is not None


def test_a_fetch_with_an_older_broker_epoch_does_not_count() -> None:
    """KIP-903: a fetch of a stopped process does not count.

    The fetch may still be in flight when the next process already fetches. The next process may have lost records.
    """
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.append(1, b"a")
    cluster.broker_epochs[2] = 7
    cluster.fetch(2, 1)
    assert cluster[1].partition.progress[2].log_end_offset == 0
    cluster.broker_epochs[2] = 6
    cluster.ask(2, 1)
    assert cluster[1].partition.progress[2].log_end_offset == 0
    assert cluster[1].log.high_watermark == 0


def test_an_isr_change_names_the_broker_epoch_of_each_replicas_last_fetch() -> None:
    cluster = ReplicaCluster()
    cluster.broker_epochs.update({2: 12, 3: 13})
    cluster.elect(1, 0, [1, 2])
    cluster.catch_up(1, 2, 3)
    pending = cluster[1].partition.pending_isr
    assert pending is not None and dict(zip(pending.isr, pending.broker_epochs)) == {1: -1, 2: 12, 3: 13}


def test_a_refused_replica_is_proposed_again_without_another_fetch() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.catch_up(1, 2, 3)
    leader = cluster[1].partition
    assert leader.pending_isr is not None
    leader.isr_refused(leader.pending_isr)
    leader.review_isr()
    assert leader.pending_isr is None
    cluster.clock.seconds += 2
    leader.review_isr()
    assert leader.pending_isr is not None


def test_a_replica_on_a_dead_broker_does_not_join_the_isr() -> None:
    cluster = ReplicaCluster.led_by(1, [1])
    del cluster.live[2]
    cluster.fetch(2, 1, times=3)
    assert cluster[1].partition.pending_isr is None


def test_under_load_a_follower_of_a_lone_leader_joins_the_isr() -> None:
    """The watermark of a lone leader moves with each append, so a follower would always be one fetch behind."""
    cluster = ReplicaCluster.led_by(1, [1])
    cluster.append(1, b"0")
    for number in range(5):
        answer = cluster.ask(2, 1)
        cluster.append(1, b"%d" % number)  # the leader appends more before the follower has appended this response
        followed = cluster[2].followed
        assert followed is not None
        followed.take(cluster[2].log.log_end_offset, answer)
    assert cluster[1].partition.pending_isr is not None


def test_a_follower_lags_only_when_it_does_not_fetch_new_records() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    cluster.append(1, b"a")
    cluster.catch_up(1, 2, 3)
    leader = cluster[1].partition
    cluster.clock.seconds += 10 * LAG_S
    leader.review_isr()
    assert leader.pending_isr is None, "nothing was written, so both have everything"
    cluster.append(1, b"b")
    leader.review_isr()
    assert leader.pending_isr is None, "both had everything until now"
    cluster.catch_up(1, 2)
    cluster.clock.seconds += LAG_S + 1
    leader.review_isr()
    assert leader.pending_isr is not None and leader.pending_isr.isr == (1, 2)


def test_a_follower_under_steady_load_stays_in_sync() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2])
    for _ in range(20):
        cluster.append(1, b"x")
        cluster.clock.seconds += LAG_S / 4
        cluster.fetch(2, 1)
        cluster[1].partition.review_isr()
        assert cluster[1].partition.pending_isr is None


def test_acks_all_needs_min_insync_replicas() -> None:
    cluster = ReplicaCluster(min_insync_replicas=2)
    cluster.elect(1, 0, [1])
    with pytest.raises(KafkaError) as refused:
        cluster.append(1, b"a", all_in_sync=True)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    cluster.append(1, b"a")


def _awaited(cluster: ReplicaCluster, offset: int, *, all_in_sync: bool = True) -> AwaitedAppend:
    return AwaitedAppend(cluster[1].partition, offset + 1, PartitionProduceResponse(), all_in_sync=all_in_sync)


@pytest.mark.trio
async def test_a_partition_that_a_request_names_twice_is_watched_for_both_parts() -> None:
    cluster = ReplicaCluster(min_insync_replicas=2)
    cluster.elect(1, 0, [1, 2])
    cluster.catch_up(1, 2)
    purgatory = Purgatory(cluster.clock)
    parts = [_awaited(cluster, cluster.append(1, b"a", all_in_sync=True)) for _ in range(2)]
    answers: list[ProduceResponse] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(purgatory.run)
        of_topic = [part.answer for part in parts]
        response = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=of_topic)])
        places = [Place(of_topic, at, part) for at, part in enumerate(parts)]
        DelayedProduce.park(purgatory, math.inf, places, response).then(answers.append)
        for offset, watched in ((1, True), (2, False)):
            cluster[1].partition.follower_fetched(2, 1, offset, 0)
            await trio.testing.wait_all_tasks_blocked()
            assert bool(cluster[1].partition.watchers) == watched
        assert answers == [response]
        assert of_topic == [part.answer for part in parts]
        nursery.cancel_scope.cancel()


def test_an_append_visits_no_request_that_waits_for_the_watermark() -> None:
    """With many producers and acks=all, checks of every waiting request would make each append slow."""
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.catch_up(1, 2)
    visits: list[TopicPartition] = []

    class Waiting:
        def partition_changed(self, key: TopicPartition) -> None:
            visits.append(key)

    cluster[1].partition.watchers[Waiting()] = None
    for _ in range(5):
        cluster.append(1, b"a", all_in_sync=True)
    assert not visits
    cluster.catch_up(1, 2)
    assert visits


def test_acks_all_waits_for_the_isr_when_it_shrinks_below_the_minimum_after_the_append() -> None:
    """The batch is committed. An error would leave its outcome unknown to the producer."""
    cluster = ReplicaCluster(min_insync_replicas=2)
    cluster.elect(1, 0, [1, 2])
    awaited, late = (_awaited(cluster, cluster.append(1, value, all_in_sync=True)) for value in (b"a", b"b"))
    assert not awaited.settle()
    cluster.clock.seconds += LAG_S + 1
    cluster[1].partition.review_isr()
    cluster.commit_isr(1)
    assert cluster[1].log.high_watermark == 2 and not awaited.settle()
    late.refuse(ErrorCode.REQUEST_TIMED_OUT)
    cluster.catch_up(1, 2)
    cluster.commit_isr(1)
    assert awaited.settle() and awaited.answer.error_code == ErrorCode.NONE


def test_a_request_that_waits_for_the_isr_is_checked_when_fewer_replicas_are_required() -> None:
    cluster = ReplicaCluster(min_insync_replicas=2)
    cluster.elect(1, 0, [1, 2])
    awaited = _awaited(cluster, cluster.append(1, b"a", all_in_sync=True))
    cluster.clock.seconds += LAG_S + 1
    cluster[1].partition.review_isr()
    cluster.commit_isr(1)
    done: list[bool] = []

    class Waiting:
        def partition_changed(self, _key: TopicPartition) -> None:
            done.append(awaited.settle())

    cluster[1].partition.watchers[Waiting()] = None
    for replicas in (2, 1):
        cluster[1].partition.require_in_sync(replicas)
    assert done == [True]


def test_a_repeated_batch_is_looked_for_before_the_isr_is_counted() -> None:
    """The batch is in the log, so NOT_ENOUGH_REPLICAS would leave its outcome unknown for longer."""
    cluster = ReplicaCluster(min_insync_replicas=2)
    cluster.elect(1, 0, [1, 2])
    numbers = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    cluster.append(1, b"a", all_in_sync=True, **numbers)
    cluster.elect(1, 1, [1])
    assert cluster.append(1, b"a", all_in_sync=True, **numbers) == 0
    assert cluster.append(1, b"a", all_in_sync=True, **numbers | {"producer_epoch": 1}) == 0
    with pytest.raises(KafkaError) as caught:
        cluster.append(1, b"b", all_in_sync=True, **numbers | {"producer_epoch": 2})
    assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster[1].values() == [b"a"]


def test_a_leader_that_missed_an_election_goes_on_after_a_batch_that_the_other_leader_recognised() -> None:
    """It was not told that it was replaced for a while, so it cannot know which epochs its producers have begun."""
    cluster = ReplicaCluster()
    numbers = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    cluster.elect(1, 0, [1, 2, 3])
    cluster.append(1, b"a", **numbers)
    cluster.catch_up(1, 2, 3)
    cluster.elect(2, 1, [1, 2, 3], deliver=[2, 3])
    assert cluster.append(2, b"a", **numbers | {"producer_epoch": 2}) == 0
    cluster.elect(1, 2, [1, 2, 3])
    assert cluster.append(1, b"b", **numbers | {"producer_epoch": 2, "base_sequence": 1}) == 1


def test_a_leader_deposed_in_between_acknowledges_none_of_its_earlier_appends() -> None:
    """A deposed leader acknowledges none of its earlier appends.

    Another leader may have written another record at the same offset, and the watermark may have passed that offset.
    """
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    awaited = _awaited(cluster, cluster.append(1, b"a"))
    cluster.elect(2, 1, [2, 3])
    cluster.append(2, b"other")
    cluster.catch_up(2, 1, 3)
    cluster.elect(1, 2, [1, 2, 3])
    cluster.catch_up(1, 2, 3)
    assert cluster[1].log.high_watermark == 1 and cluster[1].values() == [b"other"]
    assert awaited.settle() and awaited.answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_that_continues_in_a_new_epoch_acknowledges_earlier_appends() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    awaited = _awaited(cluster, cluster.append(1, b"a"))
    cluster.elect(1, 1, [1, 2])
    cluster.catch_up(1, 2)
    assert awaited.settle() and not awaited.answer.error_code


def test_a_leader_that_missed_an_epoch_forgets_the_progress_of_its_followers() -> None:
    """In the missed epoch, a follower may have truncated records that the follower had fetched before."""
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    cluster.append(1, b"a")
    cluster.fetch(2, 1, times=2)
    cluster.elect(3, 1, [1, 2, 3], deliver=[2, 3])
    cluster.fetch(2, 3)
    assert cluster[2].values() == []
    cluster.elect(1, 2, [1, 2], deliver=[1])
    assert cluster[1].log.high_watermark == 0, "replica 2 no longer has the record"


def _deposed_with_a_batch() -> ReplicaCluster:
    """Replica 3 led, has a batch that no other replica has, and has not received the LeaderAndIsr of leader 1."""
    cluster = ReplicaCluster.led_by(3, [1, 2, 3])
    cluster.append(3, b"refused later")
    cluster.elect(1, 1, [1, 2, 3], deliver=[1, 2])
    return cluster


def _refused(cluster: ReplicaCluster) -> AwaitedRefusal:
    result = PartitionProduceResponse(error_code=ErrorCode.INVALID_PARTITION_METADATA)
    return AwaitedRefusal(cluster[1].partition, result)


def test_a_refusal_waits_until_no_in_sync_replica_can_have_the_batch() -> None:
    """A refusal waits until no in-sync replica can have the batch.

    A cut-off earlier leader may have appended the batch, may still be in sync, and may lead again.
    """
    cluster = _deposed_with_a_batch()
    refused = _refused(cluster)
    cluster.catch_up(1, 2)
    assert not refused.settle(), "replica 3 has the batch"
    cluster.elect(1, 1, [1, 2, 3], deliver=[3])
    cluster.append(1, b"more")
    cluster.fetch(3, 1)
    assert cluster[3].values() == [], "replica 3 truncated the batch"
    assert not refused.settle()
    cluster.fetch(3, 1)
    assert refused.settle() and refused.answer.error_code == ErrorCode.INVALID_PARTITION_METADATA
    assert cluster[1].log.high_watermark == 0, "the refusal does not wait until the replicas have all of the log"


def test_a_waiting_refusal_of_a_deposed_leader_becomes_not_leader() -> None:
    cluster = _deposed_with_a_batch()
    refused = _refused(cluster)
    cluster.elect(3, 2, [1, 2, 3])
    assert refused.settle() and refused.answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_later_batches_of_the_producer_are_refused_while_a_refusal_waits() -> None:
    """The delayed response may be an error after which the producer repeats the batch."""
    cluster = _deposed_with_a_batch()
    leader, awaited = cluster[1].partition, AwaitedBatches()

    def number(sequence: int) -> bytes:
        return batch_of(1, producer_id=7, producer_epoch=0, base_sequence=sequence)

    def check(sequence: int) -> None:
        batch = RecordBatch(number(sequence))
        awaited.check(leader.key, batch, leader.log.producers, 0.0, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    sent = SentBatch.of(awaited, ProducerConnection(), cluster.clock, leader.key, RecordBatch(number(0)))
    refused = AwaitedRefusal(leader, PartitionProduceResponse(error_code=ErrorCode.POLICY_VIOLATION), sent)
    assert not refused.settle()
    refused.park()
    with pytest.raises(KafkaError):
        check(1)
    cluster.elect(1, 1, [1, 2, 3], deliver=[3])
    cluster.catch_up(1, 2, 3)
    assert refused.settle()
    with pytest.raises(KafkaError):
        check(2)
    check(1)


def test_a_leader_that_continues_in_a_new_epoch_refuses_at_once() -> None:
    """After a resize the same leader has a new epoch. The replicas followed this leader, and no other led since."""
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    cluster.append(1, b"a")
    cluster.catch_up(1, 2, 3)
    cluster.elect(1, 1, [1, 2, 3])
    assert _refused(cluster).settle()


def test_with_flush_on_ack_the_leader_counts_only_records_on_its_disk() -> None:
    cluster = ReplicaCluster(flushes_on_ack=True)
    cluster.elect(1, 0, [1, 2])
    offset = cluster.append(1, b"a")
    assert cluster[1].services.to_flush == [cluster[1].partition]
    one, every = _awaited(cluster, offset, all_in_sync=False), _awaited(cluster, offset)
    cluster.catch_up(1, 2)
    assert cluster[1].log.high_watermark == 0 and not one.settle() and not every.settle()
    trio.run(cluster[1].log.flush)
    cluster[1].partition.flushed()
    assert cluster[1].log.high_watermark == 1 and one.settle() and every.settle()


def test_a_new_leader_syncs_records_that_are_not_on_its_disk_yet() -> None:
    """Without this sync the watermark would not move until the next produce."""
    cluster = ReplicaCluster(flushes_on_ack=True)
    cluster.elect(1, 0, [1, 2])
    cluster.append(1, b"a")
    cluster.catch_up(1, 2)
    cluster[2].services.to_flush.clear()
    cluster.elect(2, 1, [2])
    assert cluster[2].services.to_flush == [cluster[2].partition]


def test_a_log_that_cannot_be_synced_acknowledges_nothing() -> None:
    cluster = ReplicaCluster(flushes_on_ack=True)
    cluster.elect(1, 0, [1])
    awaited = _awaited(cluster, cluster.append(1, b"a"))
    cluster[1].log.is_broken = True
    cluster[1].partition.fail()
    assert cluster[1].services.storage_failures == 1
    assert awaited.settle() and awaited.answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError) as refused:
        cluster.append(1, b"b")
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_the_low_watermark_is_the_lowest_log_start_of_live_replicas() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    for number in range(10):
        cluster.append(1, b"%d" % number)
    cluster.catch_up(1, 2, 3)
    cluster[1].log.delete_records_before(5)
    assert cluster[1].partition.low_watermark == 0
    cluster.catch_up(1, 2)
    assert cluster[1].partition.low_watermark == 0
    del cluster.live[3]
    assert cluster[1].partition.low_watermark == 5


def test_a_leader_with_a_full_disk_proposes_an_isr_without_itself() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    leader = cluster[1].partition
    leader.log.is_full = True
    leader.review_isr()
    assert leader.pending_isr is not None and leader.pending_isr.isr == (2, 3)
    leader.review_isr()
    assert cluster[1].services.proposed == [leader], "one request at a time"
    cluster.elect(1, 1, [1])
    leader.review_isr()
    assert leader.pending_isr is None, (
        "a leader that is alone in the ISR continues to lead, because its records can be read"
    )
    cluster.version += 1
    leader.isr_committed([1, 2], cluster.version)
    assert leader.pending_isr is not None and leader.pending_isr.isr == (2,), "another replica came into sync"
    cluster.elect(2, 2, [1, 2])
    cluster.elect(1, 3, [1, 2])
    assert leader.pending_isr is not None and leader.pending_isr.isr == (2,), (
        "the replica was elected with a disk that is still full"
    )


def test_a_leader_with_a_full_disk_does_not_resign_to_dead_brokers() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2])
    del cluster.live[2]
    leader = cluster[1].partition
    leader.log.is_full = True
    leader.review_isr()
    assert leader.pending_isr is None


def full_follower() -> tuple[ReplicaCluster, Partition]:
    """Replica 3 is full, and lacks a record that the other replicas have."""
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    cluster.append(1, b"a")
    cluster.catch_up(1, 2, 3)
    leader = cluster[1].partition
    leader.follower_has_no_room(3)
    assert leader.pending_isr is None, "it has every record"
    cluster.append(1, b"b")
    cluster.fetch(2, 1, times=2)
    leader.follower_has_no_room(3)
    return cluster, leader


def test_a_follower_with_a_full_disk_leaves_the_isr_at_once_and_is_not_awaited() -> None:
    cluster, leader = full_follower()
    assert leader.pending_isr is not None and leader.pending_isr.isr == (1, 2)
    cluster.version += 1
    leader.isr_committed([1, 2], cluster.version)
    assert leader.log.high_watermark == 2, "no producer waits for it, although it was in sync a moment ago"
    leader.review_isr()
    assert leader.pending_isr is None, "it does not join again while it has no room"


def test_a_follower_without_room_does_not_join_while_it_lacks_only_uncommitted_records() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    cluster.append(1, b"a")
    cluster.catch_up(1, 2, 3)
    cluster.append(1, b"b")
    leader = cluster[1].partition
    leader.follower_has_no_room(3)
    cluster.version += 1
    leader.isr_committed([1, 2], cluster.version)
    leader.review_isr()
    assert (leader.log.high_watermark, leader.pending_isr) == (1, None)


def test_a_follower_joins_the_isr_again_once_it_has_room() -> None:
    cluster, leader = full_follower()
    cluster.version += 1
    leader.isr_committed([1, 2], cluster.version)
    cluster.fetch(3, 1, times=2)
    assert leader.pending_isr is not None and leader.pending_isr.isr == (1, 2, 3)


def test_a_leader_with_a_broken_disk_proposes_no_isr() -> None:
    """It refuses the LeaderAndIsr that names its successor, so it would propose without end."""
    cluster = ReplicaCluster.led_by(1, [1, 2, 3])
    cluster.append(1, b"a")
    leader = cluster[1].partition
    leader.fail()
    cluster.clock.seconds += LAG_S + 1
    leader.review_isr()
    cluster.fetch(2, 1, times=2)
    assert leader.pending_isr is None and cluster[1].services.proposed == []
