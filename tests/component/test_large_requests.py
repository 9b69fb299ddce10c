"""Requests and responses of very many partitions are read, served and written in slices (real sockets)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker import metadata_cache
from anabranch.broker.coordinator.service import GroupCoordinator
from anabranch.broker.handlers import describe_log_dirs, fetch, metadata, update_metadata
from anabranch.broker.log.log_moves import LogMoves
from anabranch.broker.log.slices import TimeSlice
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.net import large_requests
from anabranch.broker.net.large_requests import CUTS
from anabranch.broker.replication.replica_manager import ReplicaManager
from anabranch.broker.request.context import RequestContext
from anabranch.protocol import steps
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from anabranch.protocol.generated.api_versions import ApiVersionsRequest
from anabranch.protocol.generated.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from anabranch.protocol.generated.fetch import FetchRequest
from anabranch.protocol.generated.list_offsets import ListOffsetsRequest
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.generated.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from anabranch.protocol.generated.produce import ProduceRequest
from anabranch.runtime import decoded_requests, pauses
from anabranch.runtime.channel import Channel
from tests.support.broker import requests
from tests.support.broker.broker_harness import DEADLINE_S, OneBroker, one_broker
from tests.support.broker.loop_probe import LoopProbe

pytestmark = pytest.mark.trio
FEW = 4
MANY = 5 * FEW + 3


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, cuts in list(CUTS.items()):
        monkeypatch.setitem(CUTS, key, tuple(found._replace(at_once=FEW) for found in cuts))
    monkeypatch.setattr(fetch, "READ_AT_ONCE", FEW)
    for module in (metadata, metadata_cache, update_metadata, describe_log_dirs):
        monkeypatch.setattr(module, "PARTITIONS_AT_ONCE", FEW)
    monkeypatch.setattr(pauses, "STEPS_AT_ONCE", FEW)
    monkeypatch.setattr(pauses, "LARGE_FRAME_BYTES", 128)
    monkeypatch.setattr(decoded_requests, "LARGE_FRAME_BYTES", 128)
    monkeypatch.setattr(pauses, "MANY_ITEMS", FEW)
    monkeypatch.setattr("anabranch.broker.net.connection.MANY_ITEMS", FEW)
    monkeypatch.setattr(TimeSlice, "due", lambda work: True)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[OneBroker]:
    async with one_broker(tmp_path) as found:
        yield found


@pytest.fixture
async def probe() -> AsyncIterator[LoopProbe]:
    found = LoopProbe()
    with found.watching():
        yield found


def produce(count: int = MANY, *, topic: str = "t") -> ProduceRequest:
    batch = build_batch([(b"k", b"v", (), 1_000)])
    return requests.produce(*[batch] * count, topic=topic)


def latest() -> ListOffsetsRequest:
    return requests.list_offsets(*range(MANY))


def full_fetch(offset: int, *, wait_ms: int = 0, count: int = MANY) -> FetchRequest:
    return requests.fetch(*range(count), offset=offset, max_wait_ms=wait_ms, session_epoch=0)


def between_slices(monkeypatch: pytest.MonkeyPatch, module: ModuleType, work: Callable[[], Awaitable[None]]) -> None:
    """Make a module do ``work`` at each point where it lets other tasks run."""
    monkeypatch.setattr(module, "pause", work)


async def test_a_produce_of_very_many_partitions_is_appended_and_answered_in_order(broker: OneBroker) -> None:
    await broker.create_topic("t", MANY)
    results = (await broker.request(produce())).responses[0].partition_responses
    assert [result.index for result in results] == list(range(MANY))
    assert {(result.error_code, result.base_offset) for result in results} == {(ErrorCode.NONE, 0)}
    ends = (await broker.request(latest())).topics[0].partitions
    assert [(end.partition_index, end.offset) for end in ends] == [(index, 1) for index in range(MANY)]


async def test_other_connections_are_served_between_two_slices_and_each_answers_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        one_broker(tmp_path) as broker,
        Channel.open(broker.env.network, broker.host, broker.port, client_id="other") as other,
    ):
        await broker.create_topic("t", MANY)
        answers: list[str] = []
        asked = False

        async def ask_on_another_connection() -> None:
            nonlocal asked
            if not asked:
                asked = True
                await other.request(ApiVersionsRequest(), timeout_s=DEADLINE_S)
                answers.append("other")

        async def ask(name: str, request: Any) -> None:
            await broker.request(request)
            answers.append(name)

        between_slices(monkeypatch, large_requests, ask_on_another_connection)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "large", produce())
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask, "after it", ApiVersionsRequest())
        assert answers == ["other", "large", "after it"]


async def test_records_appended_while_a_fetch_reads_are_returned_at_once(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended = trio.Event()
    await broker.create_topic("t", MANY)

    async def append() -> None:
        async with Channel.open(broker.env.network, broker.host, broker.port, client_id="other") as other:
            await other.request(produce(1), timeout_s=DEADLINE_S)
        appended.set()

    async with trio.open_nursery() as nursery:

        async def append_in_between() -> None:
            if not appended.is_set():
                nursery.start_soon(append)
                await appended.wait()

        between_slices(monkeypatch, fetch, append_in_between)
        answer = await broker.request(full_fetch(0, wait_ms=60_000))
    assert appended.is_set(), "the append came while the fetch was in progress"
    records = {found.partition_index: len(found.records) for found in answer.responses[0].partitions}
    assert records[0] > 0 and not any(records[index] for index in range(1, MANY))


async def test_a_fetch_is_refused_while_another_of_its_session_is_being_read(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.create_topic("t", MANY)
    first = await broker.request(full_fetch(0))
    again = full_fetch(0)
    again.session_id, again.session_epoch = first.session_id, 1
    codes: list[int] = []

    async def fetch_in_between() -> None:
        between_slices(monkeypatch, fetch, trio.lowlevel.checkpoint)
        async with Channel.open(broker.env.network, broker.host, broker.port, client_id="other") as other:
            impatient = FetchRequest(session_id=first.session_id, session_epoch=2, min_bytes=1)
            codes.append((await other.request(impatient, timeout_s=DEADLINE_S)).error_code)

    between_slices(monkeypatch, fetch, fetch_in_between)
    assert (await broker.request(again)).error_code == ErrorCode.NONE
    assert codes == [ErrorCode.INVALID_FETCH_SESSION_EPOCH]


@pytest.mark.parametrize("names", [None, ["few", "many"], ["many", "missing"]])
async def test_metadata_of_many_partitions_is_gathered_in_slices(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch, probe: LoopProbe, names: list[str] | None
) -> None:
    """Metadata of all topics, of topics by name, and of a topic that does not exist."""
    partition = metadata.described

    def counted(*arguments: Any) -> Any:
        probe.step()
        return partition(*arguments)

    await broker.create_topic("many", MANY)
    await broker.create_topic("few", 2)
    monkeypatch.setattr(metadata, "described", counted)
    topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
    answer = await broker.request(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
    assert [topic.name for topic in answer.topics] == (names or ["few", "many"])
    found = {topic.name: topic for topic in answer.topics}
    assert [shown.partition_index for shown in found["many"].partitions] == list(range(MANY))
    others = 2 if "few" in found else 0
    assert (probe.steps, probe.most_steps) == (MANY + others, FEW)


async def test_alter_replica_log_dirs_is_handled_in_slices_and_log_dirs_are_described(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch, probe: LoopProbe
) -> None:
    request = LogMoves.request

    def counted(*arguments: Any, **named: Any) -> None:
        probe.step()
        request(*arguments, **named)

    await broker.create_topic("t", MANY)
    monkeypatch.setattr(LogMoves, "request", counted)
    topics = [AlterReplicaLogDirTopic(name="t", partitions=list(range(MANY)))]
    answer = await broker.request(AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/x", topics=topics)]))
    found = [(result.partition_index, result.error_code) for result in answer.results[0].partitions]
    assert found == [(index, ErrorCode.LOG_DIR_NOT_FOUND) for index in range(MANY)]
    assert (probe.steps, probe.most_steps) == (MANY, 1)
    wanted = [DescribableLogDirTopic(topic="t", partitions=[0, *range(FEW, 3 * MANY)])]
    described = await broker.request(DescribeLogDirsRequest(topics=wanted))
    shown = [found.partition_index for found in described.results[0].topics[0].partitions]
    assert shown == [0, *range(FEW, MANY)]


async def test_an_update_metadata_is_applied_in_slices(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch, probe: LoopProbe
) -> None:
    described = metadata_cache.partition_info

    def counted(state: Any) -> Any:
        probe.step()
        return described(state)

    topic_id = await broker.create_topic("t", MANY)
    monkeypatch.setattr(metadata_cache, "partition_info", counted)
    assert (await broker.update_metadata("t", topic_id, MANY, leader_epoch=3)).error_code == ErrorCode.NONE
    assert (probe.steps, probe.most_steps) == (MANY, FEW)
    answer = await broker.request(MetadataRequest(topics=None))
    assert [found.leader_epoch for found in answer.topics[0].partitions] == [3] * MANY


async def test_a_fetch_of_very_many_partitions_that_waited_is_answered_in_slices(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch, probe: LoopProbe
) -> None:
    note_fetched = BrokerMetrics.note_fetched

    def counted(*arguments: Any, **named: Any) -> None:
        probe.step()
        note_fetched(*arguments, **named)

    await broker.create_topic("t", MANY)
    monkeypatch.setattr(BrokerMetrics, "note_fetched", counted)
    answer = await broker.request(full_fetch(0, wait_ms=50))
    assert len(answer.responses[0].partitions) == MANY
    assert (probe.steps, probe.most_steps) == (MANY, FEW)


async def test_a_large_offset_fetch_counts_its_group_for_all_topics_before_its_first_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_readers, offset_fetch = GroupCoordinator.count_readers, GroupCoordinator.offset_fetch
    seen: list[tuple[str, list[str]]] = []

    def counted(groups: GroupCoordinator, ctx: RequestContext, request: Any) -> Any:
        seen.append(("count", [topic.name for topic in request.topics]))
        return count_readers(groups, ctx, request)

    def fetched(groups: GroupCoordinator, ctx: RequestContext, request: Any) -> Any:
        seen.append(("slice", [topic.name for topic in request.topics]))
        return offset_fetch(groups, ctx, request)

    monkeypatch.setattr(GroupCoordinator, "count_readers", counted)
    monkeypatch.setattr(GroupCoordinator, "offset_fetch", fetched)
    names = [f"a-rather-long-topic-name-{number:02}" for number in range(MANY)]
    async with one_broker(tmp_path) as broker:
        topics = [OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in names]
        await broker.request(OffsetFetchRequest(group_id="g", topics=topics), version=7)
    assert [what for what, _ in seen] == ["count"] + ["slice"] * (len(seen) - 1) and len(seen) > 3
    assert seen[0][1] == names == [name for what, of in seen if what == "slice" for name in of]


async def test_an_update_metadata_is_given_up_when_a_newer_controller_appears(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    described, refusal_of = metadata_cache.partition_info, update_metadata.refusal_of
    managers: list[ReplicaManager] = []

    def checked(ctx: RequestContext, order: Any) -> ErrorCode:
        managers.append(ctx.node.replicas)
        return refusal_of(ctx, order)

    topic_id = await broker.create_topic("t", MANY)
    monkeypatch.setattr(update_metadata, "refusal_of", checked)

    def overtaken(state: Any) -> Any:
        if state.partition_index == 0:
            managers[-1].controller_elected(broker.controller_epoch + 1)
        return described(state)

    monkeypatch.setattr(metadata_cache, "partition_info", overtaken)
    answered = await broker.update_metadata("t", topic_id, MANY, leader_epoch=3)
    assert answered.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    answer = await broker.request(MetadataRequest(topics=None))
    assert [found.leader_epoch for found in answer.topics[0].partitions] == [0] * MANY


async def test_large_messages_are_decoded_and_encoded_in_slices(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch, probe: LoopProbe
) -> None:
    seen: set[tuple[str, str]] = set()

    def counted(verb: str, made: Any) -> Any:
        def codec(cls: Any, version: int) -> Any:
            function = made(cls, version)
            seen.add((verb, cls.__name__))

            def run(*arguments: Any) -> Generator[None, None, Any]:
                for_all = function(*arguments)
                while True:
                    try:
                        next(for_all)
                    except StopIteration as stop:
                        return stop.value
                    probe.step()
                    yield

            return run

        return codec

    await broker.create_topic("t", MANY)
    await broker.request(produce())
    monkeypatch.setattr(steps, "decoder", counted("decode", steps.decoder))
    monkeypatch.setattr(steps, "encoder", counted("encode", steps.encoder))
    await broker.request(latest())
    await broker.request(full_fetch(0))
    await broker.request(MetadataRequest(topics=None))
    await broker.update_metadata("t", uuid.uuid5(uuid.NAMESPACE_DNS, "t"), MANY, leader_epoch=1)
    for name in ("ListOffsets", "Fetch"):
        assert {(verb, name + side) for verb in ("decode", "encode") for side in ("Request", "Response")} <= seen
    assert {("decode", "UpdateMetadataRequest"), ("encode", "MetadataResponse")} <= seen
    # The harness's end of the connection runs in the same loop, and has its step in the same round.
    assert probe.steps > 10 * FEW and probe.most_steps <= 2 * FEW


async def test_a_large_frame_that_is_no_message_closes_the_connection(broker: OneBroker) -> None:
    stream = await broker.raw()
    header = ApiKey.METADATA.to_bytes(2, "big") + (8).to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    body = header + (200).to_bytes(4, "big") + b"\x00\x01a" * 100 + b"\x7f\xff"
    await stream.send_all(len(body).to_bytes(4, "big") + body)
    with trio.fail_after(DEADLINE_S):
        assert await stream.receive_some(1) == b""
