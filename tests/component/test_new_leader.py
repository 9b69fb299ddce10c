"""A new leader may have a lower high watermark than the previous leader showed to consumers (KIP-207)."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
import trio

from anabranch.broker.log.log_manager import LogManager
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.framing import ClientConnection, RequestHeader, decode_response, encode_request
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrPartitionState
from anabranch.protocol.generated.produce import ProduceRequest
from tests.support.broker import requests
from tests.support.broker.broker_harness import BROKER_ID, OneBroker, one_broker
from tests.support.broker.requests import only
from tests.support.log.batches import batch_of

pytestmark = pytest.mark.trio
FOLLOWER = 2


async def lead(broker: OneBroker, leader_epoch: int) -> None:
    """Make the broker lead ``t``-0, with a follower in the ISR that never fetches."""
    state = LeaderAndIsrPartitionState(
        controller_epoch=broker.controller_epoch,
        leader=BROKER_ID,
        leader_epoch=leader_epoch,
        isr=[BROKER_ID, FOLLOWER],
        replicas=[BROKER_ID, FOLLOWER],
        zk_version=leader_epoch,
    )
    response = await broker.leader_and_isr("t", uuid.UUID(int=7), [state])
    assert response.topics[0].partition_errors[0].error_code == ErrorCode.NONE


async def list_offset(broker: OneBroker, timestamp: int, version: int, replica_id: int = -1) -> Any:
    return only(await broker.request(requests.list_offsets(0, timestamp=timestamp, replica_id=replica_id), version))


async def test_a_lagging_watermark_is_not_taken_for_the_end(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as broker:
        await lead(broker, 0)
        await broker.request(requests.produce(batch_of(3), acks=1), 9)
        assert (await list_offset(broker, -1, 7)).offset == 0, (
            "nothing is committed, and no consumer got a higher offset"
        )
        await lead(broker, 1)
        assert (await list_offset(broker, -1, 7)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await list_offset(broker, -1, 4)).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert (await list_offset(broker, 1, 7)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await list_offset(broker, -2, 7)).offset == 0
        assert (await list_offset(broker, -1, 7, replica_id=FOLLOWER)).offset == 3


async def test_a_consumer_above_the_watermark_waits_and_is_not_reset(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as broker:
        await lead(broker, 0)
        await broker.request(requests.produce(batch_of(3), acks=1), 9)
        for offset, code in ((2, ErrorCode.NONE), (3, ErrorCode.NONE), (4, ErrorCode.OFFSET_OUT_OF_RANGE)):
            found = only(await broker.request(requests.fetch(0, offset=offset), 11))
            assert (found.error_code, len(found.records or b"")) == (code, 0)


async def test_a_broker_that_stops_appends_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records appended while logs are closed would not be synced, and the clean-shutdown marker would be wrong."""
    produce = requests.produce(batch_of(3), acks=1)
    streams: list[trio.SocketStream] = []
    answers: list[Any] = []
    real_shutdown = LogManager.shutdown

    async def shutdown(logs: LogManager) -> None:
        parts = encode_request(RequestHeader(ProduceRequest.API_KEY, 9, 1, "late"), produce)
        await streams[0].send_all(b"".join(bytes(part) for part in parts))
        frames = ClientConnection()
        while (frame := frames.next_frame()) is None:
            buffer = frames.buffer()
            received = await streams[0].receive_some(len(buffer))
            buffer[: len(received)] = received
            frames.received(len(received))
        answers.append(decode_response(ProduceRequest.API_KEY, 9, frame)[1])
        await real_shutdown(logs)

    monkeypatch.setattr(LogManager, "shutdown", shutdown)
    async with one_broker(tmp_path) as broker:
        await lead(broker, 0)
        streams.append(await broker.raw())
    with streams[0].socket:
        result = answers[0].responses[0].partition_responses[0]
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (tmp_path / "t-0" / f"{0:020}.log").stat().st_size == 0
