"""Producers that send no layout, before and after a split to a partition count that they can follow."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import trio
import trio.testing

from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.api_versions import ApiVersionsRequest
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.generated.update_metadata import StockProducersOfTopic
from anabranch.protocol.records import iter_batches
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel
from anabranch.runtime.real_trio import TrioNetwork
from tests.support.broker.broker_harness import DEADLINE_S, set_keys
from tests.support.resize.resized_broker import TOPIC_ID, UNTAGGED, Broker, broker_of, key_of, keyed, produce_request

pytestmark = pytest.mark.trio
INITIAL, DOUBLED = (4, 4, 0), (8, 1)


async def be_client(broker: Broker, name: str) -> None:
    """Name the client of the test's connection, as a library does in its first request."""
    named = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    assert (await broker.harness.request(named)).error_code == 0


async def announce(broker: Broker, *, refreshes: bool) -> list[StockProducersOfTopic]:
    """Announce 8 partitions to the broker. Returns its report of stock producers."""
    answer = await broker.harness.update_metadata(
        "t", TOPIC_ID, 4, layout=INITIAL, incarnation=100, announced=8, refreshes=refreshes
    )
    assert answer.error_code == 0
    reports: list[StockProducersOfTopic] = answer.stock_producers
    return reports


async def partitions_shown(channel: Channel) -> dict[int, int]:
    """``{partition: error}``"""
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    (topic,) = (await channel.request(request)).topics
    return {partition.partition_index: partition.error_code for partition in topic.partitions}


async def test_an_announced_split_is_shown_to_stock_clients_only(broker: Broker) -> None:
    await announce(broker, refreshes=False)
    waiting = dict.fromkeys(range(4, 8), ErrorCode.LEADER_NOT_AVAILABLE)
    assert await partitions_shown(broker.harness.channel) == {**dict.fromkeys(range(4), 0), **waiting}
    where = (broker.harness.host, broker.harness.port)
    async with Channel.open(TrioNetwork(), *where, "ours", negotiate=True) as ours:
        assert await partitions_shown(ours) == dict.fromkeys(range(4), 0)
    await broker.harness.update_metadata("t", TOPIC_ID, 4, layout=INITIAL, incarnation=100)
    assert await partitions_shown(broker.harness.channel) == dict.fromkeys(range(4), 0)


async def test_a_library_that_seldom_refreshes_metadata_is_shown_the_announced_leaders(broker: Broker) -> None:
    await announce(broker, refreshes=True)
    await be_client(broker, "kgo")
    assert await partitions_shown(broker.harness.channel) == dict.fromkeys(range(8), 0)
    moved = keyed(key_of(5, 8))
    assert (await broker.produce(5, UNTAGGED, moved)).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert (await broker.produce(8, UNTAGGED, moved)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await broker.has(DOUBLED, 5, epoch=0)
    assert (await broker.produce(5, UNTAGGED, moved)).error_code == 0


async def test_a_batch_placed_by_the_old_count_is_refused_once_and_taken_when_it_is_repeated(broker: Broker) -> None:
    moving, staying = keyed(key_of(5, 8)), keyed(key_of(1, 8))
    assert await announce(broker, refreshes=False) == []
    assert (await broker.produce(1, UNTAGGED, moving)).error_code == 0  # some brokers do not know the count yet
    await announce(broker, refreshes=True)
    assert (await broker.produce(1, UNTAGGED, staying)).error_code == 0
    assert (await broker.produce(1, UNTAGGED, moving)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    (report,) = await announce(broker, refreshes=True)
    assert (report.topic_name, report.misplaced_ms_ago) == ("t", 0)  # the batch has not been repeated yet
    assert (await broker.produce(1, UNTAGGED, staying)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    for batch in (moving, staying, moving):
        assert (await broker.produce(1, UNTAGGED, batch)).error_code == 0
    await broker.has(DOUBLED, 1, epoch=1)
    assert (await broker.produce(1, UNTAGGED, moving)).error_code == ErrorCode.POLICY_VIOLATION
    assert (await broker.produce(1, UNTAGGED, staying)).error_code == 0


def numbered(number: int, compression: CompressionType = CompressionType.NONE) -> bytes:
    """A batch of one record whose key moves from partition 1 to partition 5."""
    return build_batch([(key_of(5, 8), b"%d" % number, (), 1_000)], compression=compression)


def values(broker: Broker, partition: int = 1) -> list[bytes | None]:
    """The values of the records in a partition, in order."""
    log = broker.node.logs.get(TopicPartition("t", partition))
    assert log is not None
    read = log.read(0, 1 << 20, upper_bound=log.log_end_offset).records
    data = read if isinstance(read, bytes) else read.read()
    return [record.value for batch in iter_batches(data) for record in batch.records()]


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
@pytest.mark.parametrize("layout", [DOUBLED, (8, 0)], ids=["doubled", "created"])
async def test_batches_that_came_before_their_partition_had_a_leader_are_written_in_order(
    broker: Broker, layout: tuple[int, int], compression: CompressionType
) -> None:
    """The leader of a new partition may get batches before the controller's request to lead it.

    A producer without idempotence may send the next batch before the refusal of the first arrives.
    """

    async def produce(number: int) -> int:
        return (await broker.produce(5, UNTAGGED, numbered(number, compression))).error_code

    await be_client(broker, "apache-kafka-java")
    await announce(broker, refreshes=True)
    early = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [await produce(number) for number in (0, 1)] == [early] * 2
    await broker.has(layout, 5, epoch=0)
    assert await produce(2) == early
    assert [await produce(number) for number in range(4)] == [0] * 4
    assert values(broker, 5) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("name", ["sarama", None])
async def test_a_client_that_fails_records_without_a_leader_is_not_waited_for(broker: Broker, name: str | None) -> None:
    """By default sarama does not name itself."""
    if name is not None:
        await be_client(broker, name)
    await announce(broker, refreshes=True)
    assert (await broker.produce(5, UNTAGGED, numbered(0))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await broker.has(DOUBLED, 5, epoch=0)
    assert (await broker.produce(5, UNTAGGED, numbered(1))).error_code == 0


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
@pytest.mark.parametrize("fault", ["cut short", "wrong checksum", "no batch"])
async def test_a_batch_with_a_fault_is_not_waited_for(broker: Broker, fault: str, compression: CompressionType) -> None:
    whole = numbered(0, compression)
    faulty = {"cut short": whole[:30], "wrong checksum": whole[:-1] + b"?", "no batch": b"?"}[fault]
    await be_client(broker, "apache-kafka-java")
    await announce(broker, refreshes=True)
    assert (await broker.produce(5, UNTAGGED, faulty)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await broker.has(DOUBLED, 5, epoch=0)
    assert (await broker.produce(5, UNTAGGED, faulty)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert (await broker.produce(5, UNTAGGED, numbered(1))).error_code == 0


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
async def test_order_is_kept_too_where_the_broker_sets_the_timestamps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: CompressionType
) -> None:
    """A repeated batch is recognized although its records have other timestamps."""
    settings = {"log.message.timestamp.type": "LogAppendTime"}
    async with broker_of(tmp_path, monkeypatch, settings=settings) as broker:
        await announce(broker, refreshes=True)
        for partition in (5, 1):
            await be_client(broker, f"library-{partition}")
            for number in range(2):
                early = await broker.produce(partition, UNTAGGED, numbered(number, compression))
                assert early.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            if partition == 5:
                await broker.has((8, 0), 5, epoch=0)
            for number in range(3):
                answer = await broker.produce(partition, UNTAGGED, numbered(number, compression))
                assert answer.error_code == 0
            assert values(broker, partition) == [b"0", b"1", b"2"]


def hold_for(monkeypatch: pytest.MonkeyPatch, broker: Broker, hold_ms: int) -> None:
    set_keys(monkeypatch, broker.node, ordered_delivery_stock_producers_max_park_ms=hold_ms)


async def refuse_in_flight(broker: Broker, count: int) -> None:
    """Make a producer without idempotence, with ``count`` batches in flight, refresh its metadata."""
    await announce(broker, refreshes=True)
    for number in range(count):
        assert (await broker.produce(1, UNTAGGED, numbered(number))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("acks", [1, -1])
async def test_batches_repeated_in_reverse_order_are_written_in_order_at_once(
    broker: Broker, acks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that waits for its turn counts as request memory (``queued.max.request.bytes``) until it is appended."""
    hold_for(monkeypatch, broker, 60_000)
    await refuse_in_flight(broker, 4)
    answers: dict[int, tuple[int, int]] = {}

    async def repeat(number: int) -> None:
        answer = await broker.harness.request(produce_request(1, UNTAGGED, numbered(number), acks=acks))
        (found,) = answer.responses[0].partition_responses
        answers[number] = (found.error_code, found.base_offset)

    async with trio.open_nursery() as nursery:
        for number in (3, 2, 1, 0):
            nursery.start_soon(repeat, number)
            await trio.testing.wait_all_tasks_blocked()
            held = [numbered(other) for other in range(number, 4)] if number > 0 else []
            with trio.fail_after(DEADLINE_S):
                while broker.node.request_memory.taken_bytes != sum(map(len, held)):
                    await trio.lowlevel.checkpoint()
    assert answers == {number: (0, number) for number in range(4)}
    assert values(broker) == [b"0", b"1", b"2", b"3"]


async def test_a_batch_whose_turn_does_not_come_is_refused_once_more(broker: Broker) -> None:
    await refuse_in_flight(broker, 3)
    assert (await broker.produce(1, UNTAGGED, numbered(2))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert broker.node.request_memory.taken_bytes == 0
    for number in range(3):
        assert (await broker.produce(1, UNTAGGED, numbered(number))).error_code == 0
    assert values(broker) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("hold_ms", "timeout_ms", "answer"),
    [(0, 60_000, ErrorCode.NOT_LEADER_OR_FOLLOWER), (60_000, 500, ErrorCode.REQUEST_TIMED_OUT)],
)
async def test_a_batch_waits_for_its_turn_as_long_as_is_configured(
    broker: Broker, hold_ms: int, timeout_ms: int, answer: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_for(monkeypatch, broker, hold_ms)
    await refuse_in_flight(broker, 3)
    request = produce_request(1, UNTAGGED, numbered(2), timeout_ms=timeout_ms)
    (found,) = (await broker.harness.request(request)).responses[0].partition_responses
    assert found.error_code == answer


async def test_a_producer_with_another_partitioner_is_not_waited_for(broker: Broker) -> None:
    await announce(broker, refreshes=True)
    assert (await broker.produce(1, UNTAGGED, keyed(key_of(2, 4), key_of(5, 8)))).error_code == 0
    (report,) = await announce(broker, refreshes=True)
    assert report.misplaced_ms_ago == -1


async def test_a_closed_connection_is_no_longer_waited_for(broker: Broker) -> None:
    await announce(broker, refreshes=True)
    where = (broker.harness.host, broker.harness.port)
    async with Channel.open(TrioNetwork(), *where, "stock") as stock:
        own, broker.harness.channel = broker.harness.channel, stock
        refused = await broker.produce(1, UNTAGGED, keyed(key_of(5, 8)))
        broker.harness.channel = own
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    async def is_waited_for() -> bool:
        (report,) = await announce(broker, refreshes=True)
        return report.misplaced_ms_ago == 0

    while await is_waited_for():  # polls: the broker sees the end of the connection a little later
        pass


def errors() -> list[KafkaError]:
    """All that are in memory, also those of other tests."""
    return [found for found in gc.get_objects() if isinstance(found, KafkaError)]


async def test_no_cycle_keeps_a_refused_batch_in_memory(broker: Broker) -> None:
    """An error refers to the functions that it passed by its traceback, and these to the batch."""
    await broker.has(DOUBLED, *range(8), epoch=1)
    misplaced = keyed(key_of(5, 8))
    gc.collect()
    before = errors()
    gc.disable()
    try:
        codes = [(await broker.produce(1, UNTAGGED, misplaced)).error_code for _ in range(2)]
        kept = [error for error in errors() if error not in before]
    finally:
        gc.enable()
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.POLICY_VIOLATION]
    assert kept == []
