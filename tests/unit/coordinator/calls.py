"""Requests to a running coordinator, and records as the coordinator's log stores them."""

from __future__ import annotations

import gc
from typing import Any

import trio.testing

from anabranch.broker.coordinator.consumer_offsets_records import encode
from anabranch.broker.coordinator.durable import (
    GroupRecord,
    OffsetRecord,
    StableGeneration,
    StoredMember,
    StoredOffset,
)
from anabranch.broker.deferred import Deferred
from anabranch.protocol.generated.describe_groups import DescribeGroupsRequest
from anabranch.protocol.generated.offset_fetch import (
    OffsetFetchResponse,
)
from anabranch.protocol.types import TopicPartition
from tests.support.broker import group_requests
from tests.support.broker.group_requests import GROUP
from tests.unit.coordinator.conftest import Running
from tests.unit.coordinator.driver import Context
from tests.unit.coordinator.fakes import pass_time


def offset_record(offset: int, group: str = GROUP, partition: int = 0) -> tuple[bytes, bytes | None]:
    value = StoredOffset(offset, commit_timestamp_ms=1_600_000_000_000)
    return encode(OffsetRecord(group, TopicPartition("t", partition), value))


def group_record(generation_id: int = 3, group: str = GROUP) -> tuple[bytes, bytes | None]:
    member = StoredMember("m-1", None, "c", "/127.0.0.1", 20_000, 10_000, b"", b"mine")
    generation = StableGeneration("consumer", generation_id, "range", "m-1", 1_600_000_000_000, {"m-1": member})
    return encode(GroupRecord(group, generation))


def join(running: Running, member_id: str = "", version: int = 3) -> Deferred[Any]:
    return running.coordinator.answer(Context(api_version=version), group_requests.join(member_id))


def sync(running: Running, member_id: str, generation: int) -> Deferred[Any]:
    request = group_requests.sync(member_id, generation, {member_id: b"mine"})
    return running.coordinator.answer(Context(api_version=3), request)


def commit(running: Running, offset: int, group: str = GROUP, topic: str = "t") -> Deferred[Any]:
    return running.coordinator.answer(Context(), group_requests.commit({(topic, 0): offset}, group=group))


def heartbeat(running: Running, member_id: str, generation: int) -> int:
    return int(value(running.coordinator.answer(Context(), group_requests.heartbeat(member_id, generation))).error_code)


def fetched(running: Running, group: str = GROUP, topic: str = "t") -> tuple[int, int]:
    """Return offset and error of partition 0. A top-level error replaces the error of the partition."""
    request = group_requests.fetch_offsets(topics=[topic], group=group)
    return fetched_offset(value(running.coordinator.offset_fetch(Context(api_version=7), request)))


def fetched_offset(response: OffsetFetchResponse) -> tuple[int, int]:
    """Return offset and error of the one partition. A top-level error replaces the error of the partition."""
    if response.error_code:
        return -1, response.error_code
    partition = response.topics[0].partitions[0]
    return partition.committed_offset, partition.error_code


def value(deferred: Deferred[Any]) -> Any:
    assert deferred.filled
    return deferred._value


def commit_error(deferred: Deferred[Any]) -> int:
    return int(value(deferred).topics[0].partitions[0].error_code)


async def stable_member(running: Running) -> str:
    joining = join(running)
    await pass_time(3.001)
    member_id: str = value(joining).member_id
    assert value(sync(running, member_id, 1)).assignment == b"mine"
    return member_id


def fetched_stable(running: Running, partition: int = 0) -> int:
    """Return a partition's error in a fetch that refuses offsets with a pending commit (KIP-447)."""
    request = group_requests.fetch_stable_offsets(partition)
    (group,) = value(running.coordinator.offset_fetch(Context(api_version=8), request)).groups
    return int(group.topics[0].partitions[0].error_code)


def group_state(running: Running) -> str:
    (described,) = running.coordinator.describe_groups(Context(), DescribeGroupsRequest(groups=[GROUP])).groups
    return described.group_state


def live(kind: type) -> int:
    """Return the number of objects of a class that were created since ``running``."""
    gc.collect()
    return sum(type(found) is kind for found in gc.get_objects())


async def others_have_run() -> None:
    await trio.testing.wait_all_tasks_blocked()
