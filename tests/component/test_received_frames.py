"""What a broker has received of a producer with acks=0 that has closed its connection is written, as in Kafka."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from anabranch.broker.net import server
from anabranch.broker.net.connection import MAX_SLOTS, Connection
from anabranch.protocol.framing import RequestHeader, encode_request
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrPartitionState
from anabranch.protocol.generated.metadata import MetadataRequest
from anabranch.runtime.decoded_requests import DecodedRequests
from tests.component.test_broker_requests import batch
from tests.support.broker import requests
from tests.support.broker.broker_harness import DEADLINE_S, one_broker

pytestmark = pytest.mark.trio


async def test_records_without_acknowledgements_behind_waiting_requests_outlive_their_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka, too, appends what it has received of a producer with acks=0 that has closed its connection."""
    ended = trio.Event()
    run = Connection.run

    async def noted(connection: Connection) -> None:
        await run(connection)
        ended.set()

    def frame_of(acks: int, partition: int) -> bytes:
        request = requests.produce(batch(), partition=partition, acks=acks, timeout_ms=60_000)
        return b"".join(map(bytes, encode_request(RequestHeader(request.API_KEY, 7, 1, "gone"), request)))

    monkeypatch.setattr(server, "MAX_SWEEP_S", 0.05)
    async with one_broker(tmp_path) as broker:
        topic_id = await broker.create_topic("t", 2)
        alone, followed = [1], [1, 2]
        states = [
            LeaderAndIsrPartitionState(partition_index=index, leader=1, leader_epoch=1, isr=isr, replicas=isr)
            for index, isr in enumerate((alone, followed))
        ]
        await broker.leader_and_isr("t", topic_id, states)
        monkeypatch.setattr(Connection, "run", noted)
        async with await broker.raw() as stream:
            await stream.send_all(frame_of(-1, 1) * MAX_SLOTS + frame_of(0, 0) * 3 + frame_of(1, 0) + frame_of(0, 0))
        with trio.fail_after(DEADLINE_S):
            await ended.wait()
        ends = (await broker.request(requests.list_offsets(0, 1, replica_id=-2))).topics[0].partitions
        assert [end.offset for end in ends] == [4, MAX_SLOTS]


async def test_a_connection_that_closes_while_a_request_is_decoded_goes_on_to_records_without_acknowledgements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is no Produce, and is left out; the Produce behind it was received too."""
    ended, closed = trio.Event(), trio.Event()
    run, close, read = Connection.run, Connection.close, DecodedRequests.read

    async def noted(connection: Connection) -> None:
        await run(connection)
        ended.set()

    def noted_close(connection: Connection, because: str) -> None:
        close(connection, because)
        closed.set()

    async def slow(self: DecodedRequests, frame: memoryview, has_ended: Callable[[], bool]) -> Any:
        request = await read(self, frame, has_ended)
        if isinstance(request.body, MetadataRequest):
            await closed.wait()
        return request

    def frame_of(request: Any, version: int) -> bytes:
        return b"".join(map(bytes, encode_request(RequestHeader(request.API_KEY, version, 1, "gone"), request)))

    monkeypatch.setattr(server, "MAX_SWEEP_S", 0.05)
    async with one_broker(tmp_path) as broker:
        await broker.create_topic("t")
        for name, replacement in (("run", noted), ("close", noted_close)):
            monkeypatch.setattr(Connection, name, replacement)
        async with await broker.raw() as stream:
            monkeypatch.setattr(DecodedRequests, "read", slow)
            waiting = frame_of(requests.fetch(0, offset=0, max_wait_ms=60_000), 11)
            written = frame_of(requests.produce(batch(), acks=0), 7)
            await stream.send_all(waiting + frame_of(MetadataRequest(topics=[]), 7) + written)
        with trio.fail_after(DEADLINE_S):
            await ended.wait()
        monkeypatch.setattr(DecodedRequests, "read", read)
        ends = (await broker.request(requests.list_offsets(0, replica_id=-2))).topics[0].partitions
        assert [end.offset for end in ends] == [1]
