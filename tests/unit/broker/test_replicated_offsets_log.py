"""The group coordinator's log over real replicas: the leader epoch of its writes, and when an append is committed."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.coordinator.broker_services import KeyValue
from anabranch.broker.deferred import Deferred
from anabranch.broker.replicated_offsets_log import ReplicatedOffsetsLog
from anabranch.broker.replication.purgatory import Purgatory
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.zk_schemas.broker_keys import BrokerKeys
from tests.support.broker.replica_cluster import ReplicaCluster
from tests.support.log.log_fixture import START_MS

pytestmark = pytest.mark.trio

BUFFER_BYTES = 300
RECORD: KeyValue = (b"key", b"value")


class Coordinator:
    """Broker 1's offsets log over three replicas. ``tick`` completes the log's waiting operations."""

    def __init__(self, *, replicas: int = 3, min_insync_replicas: int = 1) -> None:
        self.cluster = ReplicaCluster(replicas, min_insync_replicas=min_insync_replicas)
        self.purgatory = Purgatory(self.cluster.clock)
        values = BrokerKeys(broker_id=1, zookeeper_connect="z", offsets_load_buffer_size=BUFFER_BYTES)
        found: Any = self.cluster[1]
        self.log = ReplicatedOffsetsLog(found, self.purgatory, self.cluster.clock, values)
        self.isr = list(self.cluster.replicas)
        self.cluster.elect(1, 5, self.isr)

    def tick(self) -> None:
        list(self.purgatory._deliver())

    def followers_fetch(self, *followers: int) -> None:
        self.cluster.catch_up(1, *(followers or self.isr[1:]))
        self.tick()

    def append(self, epoch: int = 5, record: KeyValue = RECORD) -> Deferred[KafkaError | None]:
        return self.log.append(0, epoch, [record])

    async def read(self, epoch: int = 5) -> list[KeyValue]:
        return [record async for records in self.log.read_all(0, epoch) for record in records]

    @property
    def end_offset(self) -> int:
        return self.cluster[1].log.log_end_offset


def fate(deferred: Deferred[KafkaError | None]) -> ErrorCode | None:
    """Return the outcome of an append, or None while the outcome is not known."""
    if not deferred.filled:
        return None
    return ErrorCode.NONE if deferred._value is None else deferred._value.code


@pytest.fixture
async def coordinator() -> Coordinator:
    return Coordinator()


async def test_an_append_is_committed_when_every_in_sync_replica_has_it(coordinator: Coordinator) -> None:
    appended = coordinator.append()
    coordinator.followers_fetch(2)
    assert fate(appended) is None
    coordinator.followers_fetch(2, 3)
    assert fate(appended) is ErrorCode.NONE


@pytest.mark.parametrize(("epoch", "error"), [(4, "FENCED_LEADER_EPOCH"), (6, "UNKNOWN_LEADER_EPOCH")])
async def test_every_call_is_fenced_by_the_leader_epoch(coordinator: Coordinator, epoch: int, error: str) -> None:
    assert fate(coordinator.append(epoch)) is ErrorCode[error]
    assert fate(coordinator.log.confirm_leadership(0, epoch)) is ErrorCode[error]
    with pytest.raises(KafkaError, match=error):
        await coordinator.read(epoch)
    with pytest.raises(KafkaError, match=error):
        await coordinator.log.wait_until_committed(0, epoch)
    assert coordinator.end_offset == 0


async def test_an_append_of_an_earlier_leadership_never_counts_as_committed(coordinator: Coordinator) -> None:
    """An append of an earlier leadership never counts as committed.

    Between two checks the replica follows another leader and truncates its log. Then the replica leads again, with the
    other leader's record below the watermark.
    """
    cluster = coordinator.cluster
    appended = coordinator.append()
    cluster.elect(2, 6, [2, 3])
    cluster.append(2, b"theirs")
    cluster.catch_up(2, 1, 3)
    cluster.elect(1, 7, [1, 2, 3])
    cluster.catch_up(1, 2, 3)
    assert cluster[1].log.high_watermark == 1
    coordinator.tick()
    assert fate(appended) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_an_append_does_not_fail_when_the_leader_continues_in_the_next_epoch(coordinator: Coordinator) -> None:
    appended = coordinator.append()
    coordinator.cluster.elect(1, 6, coordinator.isr)
    coordinator.tick()
    assert fate(appended) is None
    coordinator.followers_fetch()
    assert fate(appended) is ErrorCode.NONE


async def test_an_append_never_times_out(coordinator: Coordinator) -> None:
    """The appended record is in the log, and may be committed at any later time.

    The coordinator has its own timeout for responses to its clients.
    """
    appended = coordinator.append()
    coordinator.cluster.clock.seconds += 3600
    list(coordinator.purgatory._expire())
    assert fate(appended) is None
    coordinator.followers_fetch()
    assert fate(appended) is ErrorCode.NONE


async def test_too_few_replicas_are_reported_before_and_after_the_append() -> None:
    coordinator = Coordinator(min_insync_replicas=2)
    cluster = coordinator.cluster
    appended = coordinator.append()
    cluster.live.clear()  # the ISR then waits for no follower
    cluster.version += 1
    cluster[1].partition.isr_committed([1], cluster.version)
    coordinator.tick()
    assert fate(appended) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert fate(coordinator.append()) is ErrorCode.NOT_ENOUGH_REPLICAS


async def test_a_load_waits_for_the_watermark_to_reach_the_log_end(coordinator: Coordinator, nursery: Any) -> None:
    cluster = coordinator.cluster
    cluster.append(1, b"one")
    cluster.elect(1, 6, coordinator.isr)
    waited: list[str] = []

    async def wait() -> None:
        await coordinator.log.wait_until_committed(0, 6)
        waited.append("committed")

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    coordinator.followers_fetch(2)
    await trio.testing.wait_all_tasks_blocked()
    assert waited == []
    coordinator.followers_fetch(2, 3)
    await trio.testing.wait_all_tasks_blocked()
    assert waited == ["committed"]


async def test_a_load_that_is_given_up_leaves_no_watcher(coordinator: Coordinator, nursery: Any) -> None:
    coordinator.cluster.append(1, b"one")
    with trio.CancelScope() as scope:
        nursery.start_soon(trio.testing.wait_all_tasks_blocked)
        async with trio.open_nursery() as inner:
            inner.start_soon(coordinator.log.wait_until_committed, 0, 5)
            await trio.testing.wait_all_tasks_blocked()
            assert len(coordinator.cluster[1].partition.watchers) == 1
            scope.cancel()
    assert not coordinator.cluster[1].partition.watchers


async def test_a_load_that_waits_fails_when_the_leadership_ends(coordinator: Coordinator, nursery: Any) -> None:
    coordinator.cluster.append(1, b"one")
    errors: list[ErrorCode] = []

    async def wait() -> None:
        try:
            await coordinator.log.wait_until_committed(0, 5)
        except KafkaError as error:
            errors.append(error.code)

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    coordinator.cluster.elect(2, 6, [2, 3])
    coordinator.tick()
    await trio.testing.wait_all_tasks_blocked()
    assert errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


async def test_leadership_is_confirmed_by_fetches_of_followers_after_the_request(coordinator: Coordinator) -> None:
    coordinator.followers_fetch()
    confirmed = coordinator.log.confirm_leadership(0, 5)
    assert fate(confirmed) is None
    coordinator.followers_fetch()
    assert fate(confirmed) is ErrorCode.NONE
    assert all(value is None for value in coordinator.cluster[1].values())  # a tombstone, which compaction removes


async def test_a_leader_alone_in_the_isr_confirms_itself_and_writes_nothing() -> None:
    coordinator = Coordinator(min_insync_replicas=2)
    coordinator.cluster.elect(1, 6, [1])
    assert fate(coordinator.log.confirm_leadership(0, 6)) is ErrorCode.NONE
    assert coordinator.end_offset == 0


async def test_a_deposed_leader_is_never_confirmed(coordinator: Coordinator) -> None:
    coordinator.cluster.elect(2, 6, [2, 3], deliver=[2, 3])
    confirmed = coordinator.log.confirm_leadership(0, 5)
    coordinator.tick()
    assert fate(confirmed) is None
    coordinator.cluster.deliver(1, 2, 6, [2, 3])
    coordinator.tick()
    assert fate(confirmed) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_kafka_7286_a_batch_larger_than_the_load_buffer_is_read_whole() -> None:
    coordinator = Coordinator(replicas=1)
    large = (b"large", b"v" * 10 * BUFFER_BYTES)
    for record in (RECORD, large, (b"gone", None), RECORD):
        assert fate(coordinator.append(record=record)) is ErrorCode.NONE
    assert await coordinator.read() == [RECORD, large, (b"gone", None), RECORD]


async def test_a_load_ends_where_the_log_ended_when_it_began() -> None:
    coordinator = Coordinator(replicas=1)
    for _ in range(20):
        coordinator.append()
    found = []
    async for records in coordinator.log.read_all(0, 5):
        found += list(records)
        coordinator.append()
    assert len(found) == 20


async def test_records_without_a_key_are_left_out() -> None:
    coordinator = Coordinator(replicas=1)
    coordinator.append()
    no_key = bytearray(build_batch([(None, b"value", (), START_MS)]))
    coordinator.cluster[1].partition.append(memoryview(no_key), all_in_sync=False)
    coordinator.append()
    assert await coordinator.read() == [RECORD, RECORD]
