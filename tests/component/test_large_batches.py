"""A batch of very many records is checked in slices, while other connections are served (real sockets)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.log.slices import TimeSlice
from anabranch.broker.replication import layout_admission as layouts
from anabranch.broker.request import large_batches
from anabranch.ordered_resize.layout import Layout
from anabranch.protocol import records as protocol_records
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from anabranch.protocol.generated.produce import ProduceRequest
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel
from tests.support.broker import requests
from tests.support.broker.broker_harness import DEADLINE_S, OneBroker, one_broker
from tests.support.broker.loop_probe import LoopProbe
from tests.support.broker.requests import only
from tests.support.resize.resized_broker import GROWN, TOPIC_ID, UNTAGGED, Broker, broker_of, key_of

pytestmark = pytest.mark.trio
FEW = 10
MANY = 9 * FEW + 5
COMPACTED = {"log.cleanup.policy": "compact"}


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_batches, "RECORDS_AT_ONCE", FEW)
    monkeypatch.setattr(TimeSlice, "due", lambda work: True)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> LoopProbe:
    """Counts the records that are read."""
    probe = LoopProbe()
    read = protocol_records.read_record

    def counted(*arguments: Any) -> Any:
        probe.step()
        return read(*arguments)

    monkeypatch.setattr(protocol_records, "read_record", counted)
    return probe


def produce(keys: list[bytes | None], codec: CompressionType = CompressionType.NONE) -> ProduceRequest:
    records = build_batch([(key, b"v", (), 1_000) for key in keys], compression=codec)
    return requests.produce(records)


async def answer(broker: OneBroker, request: ProduceRequest) -> Any:
    return only(await broker.request(request))


def keyed(count: int = MANY) -> list[bytes | None]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
async def test_a_batch_is_read_in_slices(tmp_path: Path, reads: LoopProbe, codec: CompressionType) -> None:
    async with one_broker(tmp_path, COMPACTED) as broker:
        await broker.create_topic("t")
        with reads.watching():
            result = await answer(broker, produce(keyed(), codec))
        assert (result.error_code, result.base_offset) == (ErrorCode.NONE, 0)
        assert reads.steps == MANY and reads.most_steps == FEW
        assert (await answer(broker, produce(keyed(3)))).base_offset == MANY


async def test_a_batch_is_read_in_slices_too_if_its_partition_has_no_leader_yet(
    broker: Broker, reads: LoopProbe
) -> None:
    """The broker reads a refused batch to recognize its repetition. Later records must not overtake the batch."""
    named = ApiVersionsRequest(client_software_name="apache-kafka-java", client_software_version="1")
    assert (await broker.harness.request(named)).error_code == 0
    await broker.harness.update_metadata("t", TOPIC_ID, 4, layout=(4, 4, 0), incarnation=100, announced=8)
    records = build_batch([(key, b"v", (), 1_000) for key in keyed()])
    with reads.watching():
        assert (await broker.produce(5, UNTAGGED, records)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert reads.steps == MANY and reads.most_steps == FEW
    await broker.has((8, 0), 5, epoch=0)
    with reads.watching():
        assert (await broker.produce(5, UNTAGGED, records)).error_code == 0
    assert reads.steps == 2 * MANY and reads.most_steps == FEW


async def test_a_record_without_a_key_is_named_as_in_a_small_batch(tmp_path: Path) -> None:
    """KIP-467: the error names the record's index."""
    keys = keyed()
    keys[77] = None
    async with one_broker(tmp_path, COMPACTED) as broker:
        await broker.create_topic("t")
        result = await answer(broker, produce(keys))
        assert result.error_code == ErrorCode.INVALID_RECORD
        assert [record.batch_index for record in result.record_errors] == [77]
        assert (await answer(broker, produce(keyed()))).base_offset == 0


async def test_the_records_of_a_batch_for_a_plain_topic_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_work: TimeSlice) -> None:
        raise AssertionError("a batch of a plain topic was read")

    async with one_broker(tmp_path) as broker:
        await broker.create_topic("t")
        monkeypatch.setattr(TimeSlice, "pause", never)
        assert (await answer(broker, produce(keyed()))).base_offset == 0


async def test_other_connections_are_served_during_a_large_batch_and_each_answers_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        one_broker(tmp_path, COMPACTED) as broker,
        Channel.open(broker.env.network, broker.host, broker.port, client_id="other") as other,
    ):
        await broker.create_topic("t")
        answers: list[str] = []
        pause, asked = TimeSlice.pause, False

        async def ask_on_another_connection(work: TimeSlice) -> None:
            nonlocal asked
            if not asked:
                asked = True
                found = await other.request(ApiVersionsRequest(), timeout_s=DEADLINE_S)
                assert isinstance(found, ApiVersionsResponse)
                answers.append("other")
            await pause(work)

        monkeypatch.setattr(TimeSlice, "pause", ask_on_another_connection)

        async def ask(name: str, request: Any) -> None:
            await broker.request(request)
            answers.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "large", produce(keyed()))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask, "after it", ApiVersionsRequest())
        assert answers == ["other", "large", "after it"]


def stock(keys: list[bytes], value: bytes = b"v") -> bytes:
    return bytes(build_batch([(key, value, (), 1_000) for key in keys]))


async def test_hole_29_the_keys_of_a_large_batch_are_placed_in_slices_with_the_same_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, right = key_of(5, 6), key_of(1, 6)
    homes: list[int] = []
    place = layouts.place

    def counted(hash_of_key: int, initial: int, undeleted: int) -> int:
        homes.append(undeleted)
        return place(hash_of_key, initial, undeleted)

    monkeypatch.setattr(layouts, "place", counted)
    async with broker_of(tmp_path, monkeypatch) as broker:
        await broker.has(GROWN, 1, epoch=1)
        mixed = stock([wrong if number in (30, 44) else right for number in range(45)])
        await broker.produce(1, UNTAGGED, mixed)  # refused, so that the producer refreshes its metadata
        homes.clear()
        refused = await broker.produce(1, UNTAGGED, mixed)
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert [record.batch_index for record in refused.record_errors] == [30, 44]
        assert homes == [6] * 45, "each key is placed once"
        assert (await broker.produce(1, UNTAGGED, stock([right] * 45, b"others"))).error_code == ErrorCode.NONE


async def test_hole_29_a_layout_that_arrives_while_a_batch_is_read_applies_to_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = next(key for key in (b"%d" % n for n in range(10_000)) if home(key, 6) == 1 != home(key, 12))
    pause, resized = TimeSlice.pause, False
    await broker.has(GROWN, 1, epoch=1)
    await broker.produce(1, UNTAGGED, stock([key_of(5, 6)]))  # refused, so that the producer refreshes its metadata
    assert (await broker.produce(1, UNTAGGED, stock([moved] * 45))).error_code == ErrorCode.NONE

    async def resize_in_between(work: TimeSlice) -> None:
        nonlocal resized
        if not resized:
            resized = True
            partition = broker.node.replicas.leader(TopicPartition("t", 1))
            partition.layout = Layout(12, 2, 4)  # as a LeaderAndIsr on another connection does
        await pause(work)

    monkeypatch.setattr(TimeSlice, "pause", resize_in_between)
    assert (await broker.produce(1, UNTAGGED, stock([moved] * 45))).error_code != ErrorCode.NONE
    assert resized and broker.end_offset(1) == 45


def home(key: bytes, undeleted: int) -> int:
    return place(positive_hash(key), 4, undeleted)
