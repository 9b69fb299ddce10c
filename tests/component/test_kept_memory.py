"""Whatever clients send, cancel and close: the counters of memory are back at zero when nobody waits any more."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker import hosted_replicas, node
from anabranch.broker.handlers import fetch
from anabranch.broker.net import large_requests, server
from anabranch.broker.replication.waiting_fetches import FETCH_BYTES, PARTITION_BYTES, WaitingFetches
from anabranch.protocol.framing import RequestHeader, encode_request
from anabranch.protocol.generated.delete_groups import DeleteGroupsRequest
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.runtime import decoded_requests, pauses
from anabranch.runtime.decoded_requests import DecodedRequests
from anabranch.runtime.memory_budget import MemoryBudget
from tests.support.broker.broker_harness import DEADLINE_S, OneBroker, one_broker

pytestmark = pytest.mark.trio
PARTITIONS = 40
DAYS_MS = 2**31 - 1
LARGE_BYTES = 512
"""Requests of this size are decoded and read in steps, as those of 32 KiB are."""


class Counters:
    """The counters of memory of the broker that starts next."""

    decoded: DecodedRequests
    fetches: WaitingFetches[Any]
    bytes_of_requests: MemoryBudget

    def held(self) -> tuple[int, int, int]:
        return self.decoded.taken_bytes, self.fetches.parked_bytes, self.bytes_of_requests.taken_bytes


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Counters:
    found = Counters()

    def noted(name: str, kind: Any, maker: ModuleType) -> None:
        def make(*arguments: Any) -> Any:
            setattr(found, name, kind(*arguments))
            return getattr(found, name)

        monkeypatch.setattr(maker, kind.__name__, make)

    noted("decoded", DecodedRequests, node)
    noted("fetches", WaitingFetches, hosted_replicas)
    noted("bytes_of_requests", MemoryBudget, node)
    monkeypatch.setattr(pauses, "LARGE_FRAME_BYTES", LARGE_BYTES)
    monkeypatch.setattr(decoded_requests, "LARGE_FRAME_BYTES", LARGE_BYTES)
    monkeypatch.setattr(pauses, "STEPS_AT_ONCE", 16)
    monkeypatch.setattr(fetch, "LARGE_BYTES", LARGE_BYTES)
    monkeypatch.setattr(server, "MAX_SWEEP_S", 0.05)
    return found


def fetching(max_wait_ms: int, topic: str = "t", count: int = PARTITIONS) -> tuple[int, Any]:
    """A fetch without a session. It is larger than ``LARGE_BYTES``."""
    asked = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in range(count)]
    topics = [FetchTopic(topic=topic, partitions=asked)]
    return 6, FetchRequest(replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics)


def with_session(max_wait_ms: int) -> tuple[int, Any]:
    _, request = fetching(max_wait_ms)
    request.session_epoch = 0
    return 12, request


def joining(group: str) -> tuple[int, Any]:
    protocols = [JoinGroupRequestProtocol(name=f"p{number}", metadata=b"m" * 50) for number in range(40)]
    return 3, JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        protocol_type="consumer",
        protocols=protocols,
    )


def producing(acks: int) -> tuple[int, Any]:
    data = [PartitionProduceData(index=index, records=b"\0" * 20) for index in range(PARTITIONS)]
    topics = [TopicProduceData(name="t", partition_data=data)]
    return 9, ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=topics)


NAMES = [f"name-{number:04d}" for number in range(200)]


def any_request(rng: random.Random) -> tuple[int, Any]:
    """Requests that are answered at once, in slices, by a controller that does not exist, by other members, or late."""
    return rng.choice(
        [
            fetching(rng.choice([0, DAYS_MS])),
            fetching(DAYS_MS, topic="unknown"),
            with_session(rng.choice([0, DAYS_MS])),
            joining(rng.choice("ab")),
            producing(rng.choice([-1, 1, 0])),
            (9, MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in NAMES])),
            (2, DeleteGroupsRequest(groups_names=NAMES)),
            (4, DeleteTopicsRequest(topic_names=NAMES, timeout_ms=30_000)),
        ]
    )


def framed(version: int, body: Any) -> bytes:
    parts = encode_request(RequestHeader(body.API_KEY, version, 1, "client"), body)
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


async def until_zero(counters: Counters) -> None:
    with trio.move_on_after(DEADLINE_S):
        while any(counters.held()):
            await trio.testing.wait_all_tasks_blocked()
    assert counters.held() == (0, 0, 0)


async def client(broker: OneBroker, rng: random.Random) -> None:
    """Send some requests, perhaps only a part of the last one, and close the connection at any time."""
    stream = await broker.raw()
    data = b"".join(framed(*any_request(rng)) for _ in range(rng.randint(1, 12)))
    with suppress(trio.BrokenResourceError):
        await stream.send_all(data[: len(data) - rng.choice([0, 0, 0, 7, 300])])
        for _ in range(rng.choice([0, 1, 5, 50, 400])):
            await trio.lowlevel.checkpoint()
        if rng.random() < 0.5:
            with trio.move_on_after(0):
                await stream.receive_some(1 << 16)
    await stream.aclose()


@pytest.mark.parametrize("seed", range(4))
async def test_after_any_mix_of_requests_and_closes_nothing_counts(
    seed: int, tmp_path: Path, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_requests, "LEAST_BYTES", 64)
    rng = random.Random(seed)
    settings = {"queued.max.request.bytes": "1000000", "decoded.requests.max.bytes": "300000"}
    async with one_broker(tmp_path, settings | {"offsets.topic.num.partitions": "1"}) as broker:
        await broker.create_topic("t", PARTITIONS)
        await broker.create_topic("__consumer_offsets", 1)
        await until_zero(counters)
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(client, broker, rng)
            await until_zero(counters)


async def test_after_a_shutdown_nothing_counts(tmp_path: Path, counters: Counters) -> None:
    settings = {"queued.max.request.bytes": "1000000", "offsets.topic.num.partitions": "1"}
    async with one_broker(tmp_path, settings) as broker:
        await broker.create_topic("t", PARTITIONS)
        streams = []  # open until the broker has stopped
        for version, body in (fetching(DAYS_MS), (4, DeleteTopicsRequest(topic_names=NAMES, timeout_ms=30_000))):
            streams.append(await broker.raw())
            await streams[-1].send_all(framed(version, body) + struct.pack(">i", 1_000) + b"\0")
        with trio.fail_after(DEADLINE_S):
            while not (counters.decoded.taken_bytes and len(counters.fetches)):
                await trio.testing.wait_all_tasks_blocked()
    assert counters.held() == (0, 0, 0)


async def test_many_large_fetches_of_many_connections_take_bounded_memory(tmp_path: Path, counters: Counters) -> None:
    """Eight of each of 125 connections wait for records that never come; another client is served."""
    of_one = FETCH_BYTES + PARTITIONS * PARTITION_BYTES
    limit = 50 * of_one
    async with one_broker(tmp_path, {"waiting.fetches.max.bytes": str(limit)}) as broker:
        await broker.create_topic("t", PARTITIONS)
        most = 0
        streams = [await broker.raw() for _ in range(125)]
        for stream in streams:
            await stream.send_all(framed(*fetching(DAYS_MS)) * 8)
            most = max(most, counters.fetches.parked_bytes)
        with trio.fail_after(DEADLINE_S):
            answer = await streams[0].receive_some(1 << 16)
            while counters.decoded.taken_bytes:
                await trio.testing.wait_all_tasks_blocked()
        assert answer, "the fetch that has waited longest is answered"
        assert most <= counters.fetches.parked_bytes == limit
        await broker.request(fetching(0)[1], version=6)
        for stream in streams:
            await stream.aclose()
        await until_zero(counters)
