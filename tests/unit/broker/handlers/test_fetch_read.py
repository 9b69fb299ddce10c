"""The fetch response for a partition that cannot be read, or can no longer be read."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.handlers.fetch_read import FetchRead, ReadLimits
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.replication.delayed_fetch import DelayedFetch
from anabranch.broker.replication.fetch_session import FetchSession, FetchTarget
from anabranch.broker.replication.purgatory import Purgatory
from anabranch.broker.replication.throttle import ReplicationQuota
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from anabranch.protocol.types import TopicPartition
from tests.support.broker.replica_cluster import ReplicaCluster
from tests.support.log.log_fixture import ManualClock


class NoReplicas:
    """The replicas of a broker that leads no partition."""

    def leader(self, key: TopicPartition, current_leader_epoch: int) -> Any:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def hosted(self, key: TopicPartition) -> None:
        return None


def test_an_error_has_empty_records_never_null() -> None:
    """An error has empty records, never null.

    KAFKA-18646: librdkafka treats null records as a broken response and repeats the request at once, without end.
    """
    clock = ManualClock()
    target = FetchTarget(Purgatory(clock))
    partitions = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
    target.add(FetchRequest(topics=[FetchTopic(topic="t", partitions=partitions)]))
    limits = ReadLimits(-1, -1, 1000, read_committed=False, full=True, reports_divergence=True)
    replicas: Any = NoReplicas()
    read = FetchRead(replicas, ReplicationQuota(1, clock, lambda: 0, lambda topic: []), BrokerMetrics(), target, limits)
    read.run()
    (topic,) = read.response().responses
    (partition,) = topic.partitions
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.records == b""


def read_by(cluster: ReplicaCluster, session: FetchTarget, replica_id: int = -1) -> FetchRead:
    limits = ReadLimits(replica_id, -1, 1 << 20, read_committed=False, full=False, reports_divergence=True)
    replicas: Any = cluster[1]
    return FetchRead(replicas, cluster.throttle, cluster.metrics, session, limits)


def ask_from(session: FetchSession, offset: int) -> None:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    session.add(FetchRequest(topics=[FetchTopic(topic="t", partitions=[asked])]))


def test_a_held_fetch_that_is_answered_early_includes_an_undelivered_change() -> None:
    """A held fetch that is answered early includes a change that is not delivered yet.

    Changes are delivered in the next turn of the loop. A follower that misses a change delays every acks=all request.
    """
    cluster = ReplicaCluster(1)
    cluster.elect(1, 1, [1])
    session = FetchSession(Purgatory(cluster.clock), 7, 0.0)
    ask_from(session, 0)
    read = read_by(cluster, session)
    read.run()
    answers: list[FetchResponse] = []
    DelayedFetch.park(Purgatory(cluster.clock), 10.0, read, 1).then(answers.append)
    cluster.append(1, b"a")
    session.answer_parked()
    assert [len(found.records or b"") > 0 for found in answers[0].responses[0].partitions] == [True]


def test_a_fetch_without_a_session_watches_its_partitions_only_from_the_time_when_it_has_to_wait() -> None:
    cluster = ReplicaCluster(1)
    cluster.elect(1, 1, [1])
    target = FetchTarget(Purgatory(cluster.clock))
    target.watches = False
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    target.add(FetchRequest(topics=[FetchTopic(topic="t", partitions=[asked])]))
    read = read_by(cluster, target)
    read.run()
    assert not cluster[1].partition.readers
    read.watch()
    assert list(cluster[1].partition.readers) == [target]
    cluster.append(1, b"a")
    read.run()
    assert read.size_bytes > 0
    read.response()
    assert not cluster[1].partition.readers


def test_offsets_in_answers_to_consumers_are_counted_once_and_those_to_followers_are_not() -> None:
    cluster = ReplicaCluster(2)
    cluster.elect(1, 1, [1, 2])
    cluster.append(1, b"a", b"b")
    cluster.append(1, b"c")
    traffic = cluster.metrics.traffic("t")
    cluster.catch_up(1, 2)
    assert (cluster[1].log.high_watermark, traffic.messages_out) == (3, 0)
    session = FetchSession(Purgatory(cluster.clock), 7, 0.0)
    for offset, expected in [(0, 3), (1, 5), (3, 5)]:
        ask_from(session, offset)
        read = read_by(cluster, session)
        read.run()
        read.run()
        read.response()
        assert traffic.messages_out == expected
    ask_from(session, 0)
    read = read_by(cluster, session)
    read.run()
    cluster.elect(2, 2, [1, 2])
    read.run()
    assert read.response().responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert traffic.messages_out == 5


async def settled(purgatory: Purgatory) -> None:
    """Let the purgatory deliver the changes."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(purgatory.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


class CountingRead(FetchRead):
    """Counts how often the partitions are read."""

    reads = 0

    def run(self, *, waits: bool = True) -> None:
        self.reads += 1
        super().run(waits=waits)


def parked_by(cluster: ReplicaCluster, replica_id: int, purgatory: Purgatory) -> tuple[CountingRead, DelayedFetch]:
    """A fetch from offset 1 that waits."""
    session = FetchSession(purgatory, 7, 0.0)
    limits = ReadLimits(replica_id, -1, 1 << 20, read_committed=False, full=False, reports_divergence=True)
    replicas: Any = cluster[1]
    ask_from(session, 1)
    read = CountingRead(replicas, cluster.throttle, cluster.metrics, session, limits)
    FetchRead.run(read)
    DelayedFetch.park(purgatory, math.inf, read, 1)
    assert isinstance(session.delayed, DelayedFetch)
    return read, session.delayed


@pytest.mark.trio
async def test_an_append_wakes_the_fetches_of_followers_and_a_new_high_watermark_those_of_consumers() -> None:
    cluster = ReplicaCluster(3)
    cluster.elect(1, 1, [1, 2, 3])
    cluster.append(1, b"a")
    purgatory = Purgatory(cluster.clock)
    consumer, waiting_consumer = parked_by(cluster, -1, purgatory)
    follower, waiting_follower = parked_by(cluster, 2, purgatory)
    cluster.catch_up(1, 3)
    assert cluster[1].log.high_watermark == 1
    await settled(purgatory)
    assert (consumer.reads, follower.reads) == (1, 0), "the follower waits for records"
    cluster.append(1, b"b")
    await settled(purgatory)
    assert (consumer.reads, follower.reads) == (1, 1), "the consumer waits for the high watermark"
    assert (waiting_consumer.completed, waiting_follower.completed) == (False, True)


def test_the_answer_to_a_followers_fetch_has_the_high_watermark_at_its_deadline() -> None:
    cluster = ReplicaCluster(3)
    cluster.elect(1, 1, [1, 2, 3])
    cluster.append(1, b"a")
    _read, waiting = parked_by(cluster, 2, Purgatory(cluster.clock))
    cluster.catch_up(1, 3)
    waiting.expire()
    answers: list[FetchResponse | None] = []
    waiting._answer.then(answers.append)
    assert answers[0] is not None
    assert [part.high_watermark for topic in answers[0].responses for part in topic.partitions] == [1]


@pytest.mark.parametrize(("replica_id", "replicas"), [(-1, [1]), (2, [1, 2])])
def test_the_answer_at_the_deadline_has_records_of_the_same_turn(replica_id: int, replicas: list[int]) -> None:
    """The deadline may be delivered before the change."""
    cluster = ReplicaCluster(len(replicas))
    cluster.elect(1, 1, replicas)
    cluster.append(1, b"a")
    _read, waiting = parked_by(cluster, replica_id, Purgatory(cluster.clock))
    cluster.append(1, b"b")
    waiting.expire()
    answers: list[FetchResponse | None] = []
    waiting._answer.then(answers.append)
    assert answers[0] is not None
    assert [bool(part.records) for topic in answers[0].responses for part in topic.partitions] == [True]


def test_a_session_that_is_used_as_a_follower_and_then_as_a_consumer_misses_no_change() -> None:
    cluster = ReplicaCluster(2)
    cluster.elect(1, 1, [1, 2])
    cluster.append(1, b"a")
    session = FetchSession(Purgatory(cluster.clock), 7, 0.0)
    ask_from(session, 1)
    read_by(cluster, session, replica_id=2).run()
    assert list(cluster[1].partition.log_end_readers) == [session] and not session.dirty
    read = read_by(cluster, session)
    assert list(session.dirty) == [TopicPartition("t", 0)]
    read.run()
    partition = cluster[1].partition
    assert (list(partition.log_end_readers), list(partition.readers)) == ([], [session])


class CountingSession(FetchSession):
    """Counts how often a session is notified of a partition's change."""

    visits = 0

    def partition_changed(self, key: TopicPartition) -> None:
        CountingSession.visits += 1
        super().partition_changed(key)


def size_of(response: FetchResponse) -> int:
    """Return how many bytes of records the response has."""
    return sum(len(part.records or b"") for topic in response.responses for part in topic.partitions)


def test_only_the_first_append_after_a_read_marks_the_partition_in_a_session() -> None:
    cluster = ReplicaCluster(1)
    cluster.elect(1, 1, [1])
    CountingSession.visits = 0
    sessions = [CountingSession(Purgatory(cluster.clock), id, 0.0) for id in range(1, 101)]
    for session in sessions:
        ask_from(session, 0)
        read = read_by(cluster, session)
        read.run()
        assert not size_of(read.response())
    for _ in range(10):
        cluster.append(1, b"a")
    assert CountingSession.visits == len(sessions), (
        "the first append marks the partition in each session, the other appends in none"
    )
    reader = sessions[0]
    for offset in range(10, 13):
        ask_from(reader, offset)
        read = read_by(cluster, reader)
        read.run()
        assert not size_of(read.response())
        cluster.append(1, b"b")
        assert list(reader.dirty) == [TopicPartition("t", 0)]
    assert CountingSession.visits == len(sessions) + 3
    for session in sessions:
        session.close()
    assert not cluster[1].partition.readers


def test_a_change_between_the_read_and_its_answer_is_read_by_the_sessions_next_fetch() -> None:
    """A change between a read and its response is read by the session's next fetch.

    A fetch of many partitions suspends between the read and the response. A mark that is lost then is not set again.
    """
    cluster = ReplicaCluster(1)
    cluster.elect(1, 1, [1])
    session = FetchSession(Purgatory(cluster.clock), 7, 0.0)
    ask_from(session, 0)
    read = read_by(cluster, session)
    read.run()
    cluster.append(1, b"a")
    assert not size_of(read.response())
    read = read_by(cluster, session)
    read.run()
    assert size_of(read.response())


def test_a_follower_whose_fetch_moves_the_watermark_is_notified_of_the_next_append() -> None:
    """A follower's session is notified of the append after a fetch that moved the watermark.

    A partition marks a session only at the first change after a read. The fetch's own change must not use up this mark.
    """
    cluster = ReplicaCluster(2)
    cluster.elect(1, 1, [1, 2])
    session = FetchSession(Purgatory(cluster.clock), 7, 0.0, is_follower=True)
    ask_from(session, 0)
    read_by(cluster, session, 2).run()
    cluster.append(1, b"a")
    ask_from(session, 1)
    read = read_by(cluster, session, 2)
    read.run()
    assert cluster[1].log.high_watermark == 1
    read.response()
    assert not session.dirty
    cluster.append(1, b"b")
    assert list(session.dirty) == [TopicPartition("t", 0)]


def test_partitions_without_room_in_one_response_are_in_the_next_one() -> None:
    """Partitions without room in one response are in the next one.

    An incremental fetch names only partitions whose records arrived, so it does not name the partitions without room.
    """
    clusters = [ReplicaCluster(1) for _ in range(3)]
    for index, cluster in enumerate(clusters):
        cluster.elect(1, 1, [1])
        cluster[1].partition.key = TopicPartition("t", index)
        for _ in range(2):
            cluster.append(1, b"x" * 400)

    class Replicas:
        def leader(self, key: TopicPartition, current_leader_epoch: int) -> Any:
            return clusters[key.partition][1].partition

        hosted = leader

    replicas: Any = Replicas()
    session = FetchSession(Purgatory(clusters[0].clock), 7, 0.0)
    limits = ReadLimits(-1, -1, 500, read_committed=False, full=False, reports_divergence=True)
    partitions = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in range(3)]
    session.add(FetchRequest(topics=[FetchTopic(topic="t", partitions=partitions)]))
    read_order = []
    for _ in range(6):
        read = FetchRead(replicas, clusters[0].throttle, clusters[0].metrics, session, limits)
        read.run()
        (found,) = [part for topic in read.response().responses for part in topic.partitions if part.records]
        read_order.append(found.partition_index)
        asked = FetchPartition(partition=found.partition_index, partition_max_bytes=1 << 20)
        asked.fetch_offset = read_order.count(found.partition_index)
        session.add(FetchRequest(topics=[FetchTopic(topic="t", partitions=[asked])]))
    assert read_order == [0, 1, 2, 0, 1, 2]
    FetchRead(replicas, clusters[0].throttle, clusters[0].metrics, session, limits).run()
    assert not session.dirty
