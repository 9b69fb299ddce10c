"""First and later positions of a consumer: no partition waits for the position of another partition."""

from __future__ import annotations

import logging

import pytest

from anabranch import Consumer
from anabranch.client.errors import ErrorCode
from anabranch.protocol.generated.metadata import MetadataResponse
from anabranch.protocol.types import TopicPartition
from tests.unit.client.test_consumer import T0, T1, filled, read

AT_ONCE = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 1}


@pytest.mark.parametrize("why", ["removed", "no leader"])
async def test_a_partition_without_a_position_holds_up_no_other(why: str) -> None:
    """The absent partition delays neither the first nor a later position of another partition.

    Its own position is requested again only after a pause that is longer than the test.
    """
    broker = filled(10, partitions=2)
    absent = T1 if why == "no leader" else TopicPartition("t", 7)

    def describe(response: MetadataResponse) -> None:
        for part in response.topics[0].partitions:
            if part.partition_index == absent.partition:
                part.leader_id, part.error_code = -1, ErrorCode.LEADER_NOT_AVAILABLE

    broker.metadata_hook = describe
    never_ms = 600_000
    async with broker.client(
        Consumer, auto_offset_reset="earliest", retry_backoff_ms=never_ms, retry_backoff_max_ms=never_ms
    ) as consumer:
        consumer.assign([T0, absent])
        for _ in range(2):
            assert [record.offset for record in await read(consumer, 10)] == list(range(10))
            await consumer.seek_to_beginning(T0)
        assert absent in consumer.assignment()


async def test_the_log_names_a_partition_that_is_not_read_because_it_is_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The partition is assigned manually. In a group, the next assignment would leave the partition out."""
    logger = "anabranch.client.consumer.position_resolver"

    def messages() -> list[str]:
        """Without the lines of other loggers: on a busy machine the broker may seem silent."""
        return [record.getMessage() for record in caplog.records if record.name == logger]

    with caplog.at_level(logging.WARNING, logger):
        broker = filled(10)
        async with broker.client(Consumer, auto_offset_reset="earliest", **AT_ONCE) as consumer:
            consumer.assign([T0, TopicPartition("t", 7)])
            while not messages():
                await consumer.getmany(timeout_ms=20)
    [message] = messages()
    assert message.startswith("t-7: no records are read until a broker answers with an offset to start at: ")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in message
