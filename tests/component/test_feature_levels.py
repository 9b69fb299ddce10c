"""The effect of each feature level on a running broker (KIP-584), with real sockets and files."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from anabranch.broker.coordinator.consumer_offsets_records import GROUP_VALUE_VERSION
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.api_versions import ApiVersionsRequest
from anabranch.protocol.records import iter_batches
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.features import (
    CONSUMER_OFFSETS_TOPIC_SCHEMA,
    GROUP_COORDINATOR,
    Features,
    FeaturesStatus,
    FinalizedFeature,
)
from sim.zk import FakeZk
from tests.support.broker import group_requests
from tests.support.broker.broker_harness import DEADLINE_S, OneBroker, one_broker

pytestmark = pytest.mark.trio

OFFSETS, TOPIC = "__consumer_offsets", "t"
COMMIT, GROUP = 1, 2
"""The versions of the keys of committed offsets and of groups."""


async def finalize(broker: OneBroker, levels: Mapping[str, int]) -> None:
    """Write ``/features`` as a controller does, and return when the broker has read it."""
    status = FeaturesStatus.ENABLED if levels else FeaturesStatus.DISABLED
    content = Features(status, {name: FinalizedFeature(1, level) for name, level in levels.items()})
    await broker.zk.session().set(paths.FEATURES, content.encode())
    asked = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    with trio.fail_after(DEADLINE_S):
        while {f.name: f.max_version_level for f in (await broker.request(asked)).finalized_features} != levels:
            await trio.sleep(0.01)  # polls: the watch on the znode


async def settled(broker: OneBroker, request: Any, version: int) -> Any:
    """The response to a request, once the group's coordinator has loaded its partition."""
    with trio.fail_after(DEADLINE_S):
        while (answer := await broker.request(request, version)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await trio.sleep(0.01)  # polls: until the partition is loaded
    return answer


async def use_a_group(broker: OneBroker, group: str) -> int:
    """Join as one member, sync, commit, and request positions. Returns the error of the last request."""
    joining = group_requests.join(group=group, session_ms=60_000, rebalance_ms=60_000)
    member_id = (await settled(broker, joining, 3)).member_id
    syncing = group_requests.sync(member_id, 1, {member_id: b"a"}, group=group)
    assert (await broker.request(syncing, 3)).error_code == ErrorCode.NONE
    committed = await broker.request(group_requests.commit({(TOPIC, 0): 7}, member_id, 1, group=group))
    assert committed.topics[0].partitions[0].error_code == ErrorCode.NONE
    return int((await broker.request(group_requests.poll(member_id, 1, group=group, max_wait_ms=0))).error_code)


def versions(directory: Path, group: str) -> dict[int, set[int]]:
    """``{version of the key: versions of the values}`` of a group's records in the log."""
    found: dict[int, set[int]] = {}
    for file in sorted((directory / f"{OFFSETS}-0").glob("*.log")):
        for batch in iter_batches(file.read_bytes()):
            for record in batch.records():
                assert record.key is not None
                if group.encode() in record.key and record.value is not None:
                    key, value = (struct.unpack_from(">h", data)[0] for data in (record.key, record.value))
                    found.setdefault(key, set()).add(value)
    return found


async def test_the_levels_decide_record_versions_and_whether_positions_are_answered(tmp_path: Path) -> None:
    """KIP-915, KIP-584: below level 2 the old commits and no positions; at level 2 flexible commits and positions.

    The records of groups have the version that Kafka writes, at each level.
    """
    zk = FakeZk()
    await zk.session().create(paths.FEATURES, Features(FeaturesStatus.DISABLED).encode())
    async with one_broker(tmp_path, {"group.initial.rebalance.delay.ms": "0"}, zk) as broker:
        await broker.create_topic(OFFSETS)
        await broker.create_topic(TOPIC)
        steps = [
            ({}, 3, ErrorCode.UNSUPPORTED_VERSION),
            ({CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}, 3, ErrorCode.UNSUPPORTED_VERSION),
            ({CONSUMER_OFFSETS_TOPIC_SCHEMA: 2, GROUP_COORDINATOR: 1}, 4, ErrorCode.UNSUPPORTED_VERSION),
            ({CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 2}, 3, ErrorCode.NONE),
            ({CONSUMER_OFFSETS_TOPIC_SCHEMA: 2, GROUP_COORDINATOR: 2}, 4, ErrorCode.NONE),
            ({}, 3, ErrorCode.UNSUPPORTED_VERSION),
        ]
        for number, (levels, version, error) in enumerate(steps):
            await finalize(broker, levels)
            group = f"group-{number}"
            assert await use_a_group(broker, group) == error, levels
            assert versions(tmp_path, group) == {COMMIT: {version}, GROUP: {GROUP_VALUE_VERSION}}, levels
