"""An executor reads ranges of offsets. A missing part of a range counts as lost data, or is skipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from anabranch.client.consumer.log_reader import Fetched
from anabranch.client.errors import ErrorCode, KafkaError, OffsetOutOfRangeError
from anabranch.client.net.offsets import OffsetAndTimestamp
from anabranch.protocol.stream_offsets import DataLossError
from anabranch.protocol.types import TopicPartition
from anabranch.spark import running
from anabranch.spark.offsets import Range
from anabranch.spark.running import RunningReader


class FakeLog:
    """A partition with a batch for each ten offsets; the log begins at ``first``."""

    first = 0
    is_removed = False

    def __init__(self, **_: Any) -> None:
        self.fetched: list[int] = []

    async def __aenter__(self) -> FakeLog:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def fetch(self, tp: TopicPartition, offset: int, leader_epoch: int) -> Fetched:
        if self.is_removed:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if offset < self.first:
            raise OffsetOutOfRangeError({tp: offset})
        self.fetched.append(offset)
        return Fetched([], offset // 10 * 10 + 10, False)

    async def list_offsets(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        return {tp: OffsetAndTimestamp(self.first, -1, 0) for tp in asked}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Read a range and return the offsets of the fetches."""
    monkeypatch.setattr(running, "LogReader", FakeLog)

    def fetched(start: int, end: int, *, loses: bool = False) -> list[int]:
        reader = RunningReader({})
        try:
            for _ in reader.batches(Range("t", 3, start, end, 0), fail_on_data_loss=not loses):
                pass
            return reader.reader.fetched  # type: ignore[attr-defined,no-any-return]
        finally:
            reader.close()

    return fetched


def test_a_range_is_fetched_from_its_start_to_its_end(read: Callable[..., list[int]]) -> None:
    assert read(5, 31) == [5, 10, 20, 30]
    assert read(5, 30) == [5, 10, 20]


def test_a_range_with_expired_records_is_reported_as_data_loss(
    read: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeLog, "first", 12)
    with pytest.raises(DataLossError, match="t-3 was to be read from offset 5 to 31, and its log begins at offset 12"):
        read(5, 31)
    assert read(5, 31, loses=True) == [12, 20, 30]
    assert read(5, 12, loses=True) == []


def test_a_partition_that_was_removed_is_a_loss(
    read: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeLog, "is_removed", True)
    with pytest.raises(DataLossError, match="t-3 was removed, and was to be read from offset 5"):
        read(5, 31)
    assert read(5, 31, loses=True) == []


def test_a_reader_that_cannot_begin_reports_why() -> None:
    with pytest.raises(ValueError, match="bootstrap_servers"):
        RunningReader({"bootstrap_servers": ""})
