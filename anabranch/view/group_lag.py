"""The age of the records that a group has yet to read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import anyio

from anabranch import KafkaError, TopicPartition
from anabranch.client.consumer.log_reader import LogReader
from anabranch.runtime.real_anyio import client_env
from anabranch.view.groups import DescribedGroup, GroupPartition

ANSWER_WITHIN_S = 3.0
AT_ONCE = 32


async def timestamp_at(reader: LogReader, tp: TopicPartition, offset: int) -> int | None:
    """The timestamp of the first record at or after ``offset``; None without such a record, or after an error."""
    try:
        fetched = await reader.fetch(tp, offset)
    except KafkaError:
        return None
    for batch, is_visible in fetched.batches:
        for record in batch.records() if is_visible else ():
            if record.offset >= offset:
                return record.timestamp
    return None


async def first_timestamps(bootstrap: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The timestamp of the first record at or after each of ``offsets``, if the partition's leader responds in time."""
    found: dict[TopicPartition, int] = {}
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def look(reader: LogReader, tp: TopicPartition, offset: int) -> None:
        async with limit:
            stamp = await timestamp_at(reader, tp, offset)
        if stamp is not None:
            found[tp] = stamp

    with anyio.move_on_after(ANSWER_WITHIN_S):
        async with LogReader(
            env=client_env(), bootstrap_servers=bootstrap, client_id="anabranch-groups", max_partition_fetch_bytes=1
        ) as reader:
            await reader.cluster({tp.topic for tp in offsets})
            async with anyio.create_task_group() as tasks:
                for tp, offset in offsets.items():
                    tasks.start_soon(look, reader, tp, offset)
    return found


def first_readable(row: GroupPartition) -> int:
    """The offset of the first record after the group's commit that can still be read, in a row with a lag."""
    return max(row.committed_offset or 0, row.log_start_offset or 0)


def with_lag_seconds(bootstrap: str, groups: Iterable[DescribedGroup]) -> list[DescribedGroup]:
    """The groups with ``lag_seconds`` in every row."""
    return [group._replace(partitions=_aged(bootstrap, group.partitions)) for group in groups]


def _aged(bootstrap: str, rows: Iterable[GroupPartition]) -> list[GroupPartition]:
    of = {TopicPartition(row.topic, row.partition): row for row in rows}
    behind = {tp: first_readable(row) for tp, row in of.items() if row.lag}
    stamps = anyio.run(first_timestamps, bootstrap, behind) if behind else {}
    now_ms = time.time() * 1000
    ages = {tp: round(max(0.0, (now_ms - stamp) / 1000), 3) for tp, stamp in stamps.items() if stamp >= 0}
    return [row._replace(lag_seconds=ages.get(tp, 0.0 if row.lag == 0 else None)) for tp, row in of.items()]
