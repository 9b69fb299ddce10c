"""Where a consumer begins and goes on: what one partition waits for is its own affair."""

from __future__ import annotations

from typing import Any

import pytest

from client import Consumer
from client.errors import ErrorCode
from protocol.api_keys import ApiKey
from protocol.batch_builder import build_batch
from protocol.generated.metadata import MetadataResponse
from protocol.generated.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from protocol.types import TopicPartition
from tests.unit.client.conftest import Run
from tests.unit.client.test_consumer import T0, T1, filled, read


@pytest.mark.parametrize("why", ["removed", "no leader"])
def test_a_partition_without_a_position_holds_up_no_other(run: Run, why: str) -> None:
    """Not the first position of another one, and not its validation after a leader change."""

    async def check() -> None:
        broker = filled(10, partitions=2)
        epoch, absent = 0, T1 if why == "no leader" else TopicPartition("t", 7)

        def describe(response: MetadataResponse) -> None:
            for part in response.topics[0].partitions:
                if part.partition_index == absent.partition:
                    part.leader_id, part.error_code = -1, ErrorCode.LEADER_NOT_AVAILABLE
                else:
                    part.leader_epoch = epoch

        broker.metadata_hook = describe
        broker.answers = {ApiKey.OFFSET_FOR_LEADER_EPOCH: ends}
        async with (
            broker.running(),
            Consumer(
                bootstrap_servers=broker.address, auto_offset_reset="earliest", metadata_max_age_ms=200
            ) as consumer,
        ):
            consumer.assign([T0, absent])
            assert len(await read(consumer, 10)) == 10
            epoch = 1
            while not broker.seen(ApiKey.OFFSET_FOR_LEADER_EPOCH):
                await consumer.getmany(timeout_ms=20)
            broker.logs[T0].append(build_batch([(b"k", b"10", [], 0)]))
            assert [record.offset for record in await read(consumer, 1)] == [10]
            assert absent in consumer.assignment()

    def ends(body: Any) -> OffsetForLeaderEpochResponse:
        asked = [p.partition for p in body.topics[0].partitions]
        found = [EpochEndOffset(partition=p, leader_epoch=0, end_offset=10) for p in asked]
        return OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="t", partitions=found)])

    run(check)
