"""The steps of a fetcher before it fetches, and while its leader holds the fetch."""

from __future__ import annotations

import errno
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.handlers import describe_producers
from anabranch.broker.log.pieces import PIECE_BATCHES, PIECE_BYTES, pieces_of
from anabranch.broker.replication.fetcher import FULL_RETRY_S, ReplicaFetcher
from anabranch.broker.replication.fetcher_config import FetcherConfig
from anabranch.broker.replication.follower import FetchOutcome, FollowedPartition
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.describe_producers import DescribeProducersRequest
from anabranch.protocol.generated.fetch import FetchableTopicResponse, FetchRequest, FetchResponse
from anabranch.protocol.generated.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from anabranch.protocol.records import iter_batches
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Pending
from anabranch.runtime.real_trio import TrioNetwork
from sim.clock import SimClock
from tests.support.broker.replica_cluster import KEY, ReplicaCluster
from tests.support.log.log_fixture import batch, read_all

CONFIG = FetcherConfig(2, 1 << 20, 1, 1 << 20, 500, 1.0, 30.0, flushes=True)


@pytest.mark.trio
async def test_a_new_fetcher_syncs_records_that_an_earlier_fetcher_appended() -> None:
    """With ``log.flush=ack`` a fetch from offset n claims that everything below n is on the follower's disk."""
    cluster = ReplicaCluster(flushes_on_ack=True)
    cluster.elect(1, 0, [1, 2])
    cluster.append(1, b"a")
    cluster.catch_up(1, 2)  # an earlier fetcher appended the record and did not sync it
    fetcher = ReplicaFetcher(1, CONFIG, cluster.clock, TrioNetwork(), lambda: None, lambda: 1, cluster.throttle)
    fetcher.follow(cluster[2].partition)
    unsynced = fetcher.unsynced()
    assert [one.partition.key for one in unsynced] == [KEY]
    await fetcher.flush_appended(unsynced)
    assert fetcher.unsynced() == [] and cluster[2].log.recovery_point == 1


def truncated_follower(seed: int = 1) -> ReplicaCluster:
    """Replica 2 led, and synced a record that replica 1 does not have.

    Then replica 2 truncated the record to follow replica 1. Both replicas are in the ISR.
    """
    cluster = ReplicaCluster(flushes_on_ack=True, seed=seed)
    cluster.elect(2, 0, [1, 2])
    cluster.append(2, b"tail")
    trio.run(cluster[2].log.flush)
    cluster[2].services.to_flush.clear()
    cluster.elect(1, 1, [1, 2])
    assert cluster.fetch(2, 1) is FetchOutcome.MOVED
    assert cluster[2].values() == []
    return cluster


def unsynced_by(cluster: ReplicaCluster) -> tuple[ReplicaFetcher, list[TopicPartition]]:
    """Return a fetcher of replica 2, and the partitions that the fetcher syncs before its first fetch."""
    fetcher = ReplicaFetcher(1, CONFIG, cluster.clock, TrioNetwork(), lambda: None, lambda: 1, cluster.throttle)
    fetcher.follow(cluster[2].partition)
    return fetcher, [one.partition.key for one in fetcher.unsynced()]


@pytest.mark.parametrize("seed", range(8))
def test_a_truncation_is_synced_before_the_leader_learns_of_it(seed: int) -> None:
    """A truncation is synced before a fetch shows the truncation to the leader (hole 30).

    A crash may keep or lose an unsynced truncation. So a power failure could bring back a record after the leader has
    claimed that no in-sync replica has the record.
    """
    cluster = truncated_follower(seed)
    fetcher, unsynced = unsynced_by(cluster)
    assert unsynced == [KEY]
    trio.run(fetcher.flush_appended, fetcher.unsynced())
    assert fetcher.unsynced() == []
    trio.run(partial(cluster[2].restart, power_failure=True))
    assert cluster[2].values() == []


def test_a_truncation_of_a_killed_process_is_synced_by_the_next_process() -> None:
    cluster = truncated_follower()
    trio.run(partial(cluster[2].restart, power_failure=False))
    cluster.deliver(2, 1, 1, [1, 2])
    assert cluster[2].log.recovery_point == cluster[2].log.log_end_offset == 0
    assert unsynced_by(cluster)[1] == [KEY]


def test_a_new_leader_is_not_followed_before_its_own_truncation_is_on_disk() -> None:
    cluster = truncated_follower()
    cluster.elect(2, 2, [1, 2])
    cluster.catch_up(2, 1)
    leader = cluster[2].partition
    assert not leader.is_followed and cluster[2].services.to_flush == [leader]
    trio.run(cluster[2].log.flush)
    leader.flushed()
    assert leader.is_followed


class Leader:
    """A leader without records. It holds each fetch until the next fetch of the session arrives."""

    def __init__(self) -> None:
        self.seen: list[FetchRequest] = []
        self.held: Pending | None = None

    async def request(self, body: FetchRequest, *, version: int, timeout_s: float) -> FetchResponse:
        self.answer_held(body)
        return FetchResponse(session_id=7)

    def post(self, body: FetchRequest, *, version: int) -> Pending:
        self.answer_held(body)
        channel: Any = self
        pending = Pending(channel, body.API_KEY, version)
        if body.session_epoch > 0 and body.max_wait_ms > 0:
            self.held = pending
        else:
            pending.settle(FetchResponse(session_id=7))
        return pending

    def answer_held(self, body: FetchRequest) -> None:
        self.seen.append(body)
        held, self.held = self.held, None
        if held is not None:
            held.settle(FetchResponse(session_id=7))


@pytest.mark.trio
async def test_a_new_leader_epoch_is_followed_while_the_leader_holds_a_fetch() -> None:
    """If the new epoch waited for the held fetch, no record would be replicated for replica.fetch.wait.max.ms."""
    cluster = ReplicaCluster.led_by(1, [1, 2])
    config = FetcherConfig(2, 1 << 20, 1, 1 << 20, 3_600_000, 1.0, 30.0, flushes=False)
    fetcher = ReplicaFetcher(1, config, cluster.clock, TrioNetwork(), lambda: None, lambda: 1, cluster.throttle)
    leader: Any = Leader()
    fetcher.follow(cluster[2].partition)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher._serve, leader)
        await trio.testing.wait_all_tasks_blocked()
        assert [body.session_epoch for body in leader.seen] == [0, 1]
        cluster.elect(1, 1, [1, 2])
        fetcher.follow(cluster[2].partition)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    named = [[p.current_leader_epoch for t in body.topics for p in t.partitions] for body in leader.seen]
    assert named == [[0], [], [], [1]]
    assert [(body.session_epoch, body.max_wait_ms > 0) for body in leader.seen[1:]] == [
        (1, True),
        (2, False),
        (3, True),
    ]


@pytest.mark.trio
async def test_a_response_is_applied_and_the_next_fetch_is_sent_while_the_response_is_received() -> None:
    """The leader acknowledges no record before the next fetch, so no other task may run in between."""
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.append(1, b"a")
    data = cluster.ask(2, 1)
    data.records = b"".join(bytes(each.buffer) for each in read_all(cluster[1].log))
    config = FetcherConfig(2, 1 << 20, 1, 1 << 20, 3_600_000, 1.0, 30.0, flushes=False)
    fetcher = ReplicaFetcher(1, config, cluster.clock, TrioNetwork(), lambda: None, lambda: 1, cluster.throttle)
    leader: Any = Leader()
    fetcher.follow(cluster[2].partition)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher._serve, leader)
        await trio.testing.wait_all_tasks_blocked()
        leader.held.settle(answer_of(data))
        assert cluster[2].values() == [b"a"]
        assert [p.fetch_offset for body in leader.seen for t in body.topics for p in t.partitions] == [0, 1]
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_an_error_while_a_response_is_applied_ends_the_connection_of_the_fetcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The response is applied in the channel's task, but the fetcher's task has to know of the error."""
    cluster = ReplicaCluster.led_by(1, [1, 2])
    data = cluster.ask(2, 1)
    config = FetcherConfig(2, 1 << 20, 1, 1 << 20, 3_600_000, 1.0, 30.0, flushes=False)
    fetcher = ReplicaFetcher(1, config, cluster.clock, TrioNetwork(), lambda: None, lambda: 1, cluster.throttle)
    leader: Any = Leader()
    fetcher.follow(cluster[2].partition)

    errors: list[str] = []

    def fail(*_: object) -> None:
        raise OSError("no such disk")

    async def serve() -> None:
        try:
            await fetcher._serve(leader)
        except OSError as error:
            errors.append(str(error))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await trio.testing.wait_all_tasks_blocked()
            monkeypatch.setattr(FollowedPartition, "is_current", property(fail))
            leader.held.settle(answer_of(data))
    assert errors == ["no such disk"]


def test_a_partition_in_a_full_log_dir_is_not_fetched_until_there_is_room() -> None:
    """A follower with a full log dir does not fetch.

    If the follower fetched, it would stay in sync. Then producers would wait until the follower has appended records
    for which its log dir has no room.
    """
    cluster = ReplicaCluster.led_by(1, [1, 3])
    log = cluster[2].log
    log.is_full = True
    fetcher = ReplicaFetcher(1, CONFIG, cluster.clock, TrioNetwork(), lambda: None, lambda: 1, cluster.throttle)
    fetcher.follow(cluster[2].partition)
    assert fetcher._plan.is_empty and list(fetcher._waiting) == [KEY]
    assert fetcher._resume_waiting() == cluster.clock.seconds + FULL_RETRY_S
    assert fetcher._plan.is_empty
    assert [one.partition.key for one in fetcher._without_room] == [KEY], (
        "the follower asks its leader where the log begins"
    )
    log.is_full = False
    cluster.clock.seconds += FULL_RETRY_S
    fetcher._resume_waiting()
    assert not fetcher._plan.is_empty


async def flush_fails(cluster: ReplicaCluster, number: int) -> ReplicaFetcher:
    fetcher = ReplicaFetcher(1, CONFIG, cluster.clock, TrioNetwork(), lambda: None, lambda: 1, cluster.throttle)
    fetcher.follow(cluster[2].partition)
    (followed,) = fetcher.unsynced()

    async def fail() -> None:
        cluster[2].log.is_broken = number == errno.EIO
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, errno.errorcode[number])

    followed.partition.log = SimpleNamespace(flush=fail, is_full=False, is_broken=number == errno.EIO)  # type: ignore[assignment]
    await fetcher.flush_appended([followed])
    return fetcher


@pytest.mark.trio
@pytest.mark.parametrize(("number", "is_followed"), [(errno.ENOSPC, True), (errno.EIO, False)], ids=["ENOSPC", "EIO"])
async def test_a_follower_retries_a_failed_sync_only_if_the_disk_is_full(number: int, is_followed: bool) -> None:
    cluster = ReplicaCluster(flushes_on_ack=True)
    cluster.elect(1, 0, [1, 2])
    cluster.append(1, b"a")
    cluster.catch_up(1, 2)
    fetcher = await flush_fails(cluster, number)
    assert fetcher.is_idle is not is_followed
    assert cluster[2].partition.failed is not is_followed
    assert fetcher._plan.is_empty, "the follower claims nothing meanwhile"


# ---------------------------------------------------------------- large answers


def large_answer(cluster: ReplicaCluster, batches: int) -> Any:
    """Return replica 1's response to one fetch by replica 2. The response has many batches."""
    cluster.elect(1, 0, [1, 2])
    for number in range(batches):
        cluster.append(1, b"%d" % number)
    data = cluster.ask(2, 1)
    data.records = b"".join(bytes(each.buffer) for each in read_all(cluster[1].log))
    return data


def following(cluster: ReplicaCluster) -> ReplicaFetcher:
    fetcher = ReplicaFetcher(1, CONFIG, cluster.clock, TrioNetwork(), lambda: None, lambda: 1, cluster.throttle)
    fetcher.follow(cluster[2].partition)
    fetcher._plan.request(fetcher._followed, CONFIG, 1, 0)
    return fetcher


def answer_of(data: Any) -> FetchResponse:
    return FetchResponse(session_id=7, responses=[FetchableTopicResponse(topic=KEY.topic, partitions=[data])])


@pytest.mark.parametrize("leads", [True, False])
def test_a_new_leader_epoch_stops_the_append_of_a_large_fetch_response(leads: bool) -> None:
    """A new leader epoch stops an append that is made in slices.

    The appended batches stay whole, so the new leader or its followers can compare the batches. The rest of the
    response is not appended.
    """
    cluster = ReplicaCluster()
    data = large_answer(cluster, 3 * PIECE_BATCHES)
    fetcher = following(cluster)
    channel: Any = None
    waits = fetcher._take(channel, answer_of(data), fetcher._plan.asked)
    next(waits)
    assert cluster[2].log.log_end_offset == PIECE_BATCHES
    cluster.elect(2 if leads else 1, 1, [1, 2])
    if leads:
        cluster.append(2, b"new")
    end = cluster[2].log.log_end_offset
    assert list(waits) == []
    assert cluster[2].log.log_end_offset == end
    if leads:
        assert cluster[2].values()[-1] == b"new"
        cluster.catch_up(2, 1)
    else:
        cluster.catch_up(1, 2)
    assert cluster[1].records() == cluster[2].records()


def test_pieces_hold_whole_batches_and_all_bytes() -> None:
    small, large = bytes(batch(b"x")), bytes(batch(b"y" * PIECE_BYTES))
    for records in (b"", small, small * PIECE_BATCHES, small * (PIECE_BATCHES + 1), small + large + large + small):
        for cut in (records, records + small[:70], records + small[:5]):
            pieces = list(pieces_of(cut))
            assert b"".join(pieces) == cut
            assert all(len(list(iter_batches(bytes(piece)))) <= PIECE_BATCHES for piece in pieces[:-1])
            assert all(len(piece) <= PIECE_BYTES or bytes(piece[: len(large)]) == large for piece in pieces)


class AnsweringLeader:
    """A channel to replica 1, which answers the requests of a follower whose offset is out of range."""

    def __init__(self, cluster: ReplicaCluster, *, describes: bool = True) -> None:
        self._cluster = cluster
        self._describes = describes

    async def request(self, request: Any, **_options: Any) -> Any:
        await trio.lowlevel.checkpoint()
        if isinstance(request, DescribeProducersRequest):
            error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another one leads")
            leads = {KEY: self._cluster[1].partition} if self._describes else {}
            ctx: Any = SimpleNamespace(node=SimpleNamespace(replicas=Leads(leads, error)))
            return describe_producers.handle(ctx, request)
        log = self._cluster[1].log
        (topic,) = request.topics
        (asked,) = topic.partitions
        offset = log.log_end_offset if asked.timestamp == -1 else log.log_start_offset
        answer = ListOffsetsPartitionResponse(partition_index=KEY.partition, offset=offset)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=KEY.topic, partitions=[answer])])


class Leads:
    """The replicas that a broker leads."""

    def __init__(self, partitions: dict[TopicPartition, Any], error: KafkaError) -> None:
        self._partitions = partitions
        self._error = error

    def leader(self, key: TopicPartition) -> Any:
        if key not in self._partitions:
            raise self._error
        return self._partitions[key]


def followed_out_of_range() -> tuple[ReplicaCluster, ReplicaFetcher]:
    """Replica 1 has deleted all records of producer 7 before replica 2 fetched any of them."""
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster.append(1, b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    cluster.append(1, b"b", producer_id=8, producer_epoch=0, base_sequence=0)
    cluster.elect(1, 1, [1])
    cluster[1].log.delete_records_before(1)
    cluster.deliver(2, 1, 1, [1])
    return cluster, following(cluster)


@pytest.mark.trio
async def test_a_follower_that_starts_its_log_anew_asks_for_producers_without_records() -> None:
    cluster, fetcher = followed_out_of_range()
    channel: Any = AnsweringLeader(cluster)
    await fetcher._find_range(channel, list(fetcher._followed.values()))
    log = cluster[2].log
    assert (log.log_start_offset, log.log_end_offset) == (1, 1)
    assert [(known.producer_id, known.last_offset) for known in log.producers.snapshot()] == [(7, 0)]


@pytest.mark.trio
async def test_a_follower_starts_its_log_anew_only_after_its_leader_names_producers() -> None:
    cluster, fetcher = followed_out_of_range()
    channel: Any = AnsweringLeader(cluster, describes=False)
    await fetcher._find_range(channel, list(fetcher._followed.values()))
    assert cluster[2].log.log_start_offset == 0


@pytest.mark.trio
async def test_a_follower_without_room_says_so_before_it_waits() -> None:
    cluster = ReplicaCluster.led_by(1, [1, 2])
    cluster[2].log.is_full = True
    fetcher = ReplicaFetcher(1, CONFIG, SimClock(), TrioNetwork(), lambda: None, lambda: 1, cluster.throttle)
    fetcher.follow(cluster[2].partition)
    asked: list[ListOffsetsRequest] = []

    async def request(body: ListOffsetsRequest, *, version: int, timeout_s: float) -> ListOffsetsResponse:
        asked.append(body)
        return ListOffsetsResponse()

    leader: Any = SimpleNamespace(request=request)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher._fetch_on, leader)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [(body.replica_id, body.has_no_room) for body in asked] == [(2, True)]
