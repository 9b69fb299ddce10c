"""Reading ranges of offsets without a subscription: the results, the retries, and the errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from anabranch.client.consumer.log_reader import LogReader
from anabranch.client.errors import ErrorCode, KafkaError, KafkaTimeoutError, OffsetOutOfRangeError
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.generated.fetch import FetchResponse
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponse,
)
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.real_anyio import client_env
from tests.support.protocol.messages import by_partition
from tests.unit.client.fake_broker import FakeBroker

T0 = TopicPartition("t", 0)


def broker_with(*counts: int) -> FakeBroker:
    """Return a broker with one partition. Each argument is the number of records of a batch."""
    broker = FakeBroker({"t": 1})
    for count in counts:
        broker.logs[T0].append(build_batch([(b"k", b"v", [], 1)] * count))
    return broker


def reader(broker: FakeBroker, **config: Any) -> LogReader:
    return LogReader(
        env=client_env(),
        bootstrap_servers=broker.address,
        **{"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "fetch_max_wait_ms": 1, **config},
    )


async def test_a_fetch_returns_batches_from_the_one_that_holds_the_offset() -> None:
    async with broker_with(3, 4, 5).running() as broker, reader(broker) as log:
        await log.cluster(["t"])
        found = await log.fetch(T0, 4)
        assert [(batch.base_offset, visible) for batch, visible in found.batches] == [(3, True), (7, True)]
        assert (found.next_offset, found.is_end) == (12, False)


async def test_a_fetch_from_an_offset_out_of_range_raises() -> None:
    async with broker_with(3).running() as broker, reader(broker) as log:
        with pytest.raises(OffsetOutOfRangeError):
            await log.fetch(T0, 9)


async def test_a_fetch_reports_that_no_record_is_left_up_to_the_end() -> None:
    """Compaction left no record from the offset on."""
    async with broker_with(3).running() as broker, reader(broker) as log:
        broker.logs[T0].end_offset = 9
        found = await log.fetch(T0, 3)
        assert (found.batches, found.next_offset, found.is_end) == ([], 9, True)


def fails_first(times: int, code: ErrorCode) -> Callable[[Any, FetchResponse], None]:
    left = [times]

    def hook(_: Any, response: FetchResponse) -> None:
        if left[0]:
            left[0] -= 1
            for partition in response.responses[0].partitions:
                partition.error_code, partition.records = code, b""

    return hook


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH])
async def test_a_fetch_follows_a_leader_that_moves(code: ErrorCode) -> None:
    async with broker_with(3).running() as broker, reader(broker) as log:
        broker.fetch_hook = fails_first(3, code)
        assert (await log.fetch(T0, 0)).next_offset == 3
        assert len(broker.seen(ApiKey.FETCH)) == 4


async def test_a_broker_that_comes_back_is_read_again() -> None:
    broker = broker_with(3)
    async with broker.running(), reader(broker, default_api_timeout_ms=100) as log:
        await log.fetch(T0, 0)
    async with broker.running(), reader(broker) as log:
        assert (await log.fetch(T0, 0)).next_offset == 3


async def test_a_fetch_from_an_offset_that_is_not_written_times_out() -> None:
    async with broker_with(3).running() as broker, reader(broker, default_api_timeout_ms=50) as log:
        with pytest.raises(KafkaTimeoutError, match=r"fetch of t-0 from offset 3.*does not have offset 3 yet"):
            await log.fetch(T0, 3)


async def test_a_fetch_from_a_removed_partition_raises() -> None:
    async with broker_with(3).running() as broker, reader(broker, default_api_timeout_ms=5_000) as log:
        over = by_partition(PartitionLeaderEpochsForPartitionsResponse, {"t": {0: {"over": 4, "over_end_offset": 17}}})
        broker.answers[ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS] = lambda body: over
        broker.fetch_hook = fails_first(1000, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await log.cluster(["t"])
        answer = (await log.lineages([T0]))[T0]
        assert (answer.lineage, answer.over, answer.over_end_offset) == (None, 4, 17)
        with pytest.raises(KafkaError) as raised:
            await log.fetch(T0, 0, 4)
        assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        broker.fetch_hook = fails_first(2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert (await log.fetch(T0, 0, 5)).next_offset == 3, "another incarnation of the number was removed"


async def test_a_commit_needs_a_group() -> None:
    async with broker_with(3).running() as broker, reader(broker) as log:
        with pytest.raises(ValueError, match="group_id"):
            await log.commit({})


async def test_all_topics_are_described() -> None:
    broker = FakeBroker({"t": 1, "u": 2})
    async with broker.running(), reader(broker) as log:
        with anyio.fail_after(5):
            assert set((await log.cluster(None)).topics) == {"t", "u"}
            assert set((await log.cluster(["u"])).topics) == {"u"}
