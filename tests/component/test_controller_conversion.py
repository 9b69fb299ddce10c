"""A new controller finds topics that an earlier release resized with barriers."""

from __future__ import annotations

import json

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.features import LINEAGE_LEVEL, ORDERED_RESIZE, Features
from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.resize.resize_rules import TOPIC, alter, finished, hold_records, resized, started

pytestmark = pytest.mark.trio
MAPS = {4: ({0: 0}, {0: 1}), 5: ({1: 0}, {1: 1})}
"""For each draining partition: {parent: the parent's last epoch}, {survivor: the draining partition's last epoch}."""


async def draining_since_before(nursery: trio.Nursery, *, level: int) -> ControllerCluster:
    """The znodes of 4 -> 6 -> 4 as an earlier release wrote them, and no active controller."""
    cluster = await started(nursery)
    await resized(cluster, 6)
    hold_records(cluster, range(4, 6), 40)
    await resized(cluster, 4)
    cluster.kill_controller(1000)
    cluster.zk.end_session(cluster.sessions[1000].session_id)
    for p in range(6):
        path = paths.partition_state(TOPIC, p)
        fields = json.loads((await cluster.store.get(path)).data)
        for name in ("lineage", "before", "initial_partition_count"):
            fields.pop(name, None)
        if p in MAPS:
            names = ("leaderEpochAfterCreation", "leaderEpochBeforeDeletion")
            fields |= dict(zip(names, MAPS[p], strict=True)) | {"sealed_offset": 40}
        await cluster.store.set(path, json.dumps(fields).encode())
    path = paths.topic(TOPIC)
    fields = json.loads((await cluster.store.get(path)).data)
    for name in ("previous_undeleted_partition_count", "finished_layout_version"):
        fields.pop(name)
    await cluster.store.set(path, json.dumps(fields).encode())
    await set_level(cluster, level)
    return cluster


async def set_level(cluster: ControllerCluster, level: int) -> None:
    data = json.loads((await cluster.store.get(paths.FEATURES)).data)
    data["features"][ORDERED_RESIZE]["max_version_level"] = level
    await cluster.store.set(paths.FEATURES, Features.decode(paths.FEATURES, json.dumps(data).encode()).encode())


async def _is_converted(cluster: ControllerCluster) -> bool:
    return (await cluster.state(TOPIC, 5)).initial_partition_count == 4


async def test_a_drain_that_an_earlier_release_began_is_continued(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    cluster = await draining_since_before(nursery, level=LINEAGE_LEVEL)
    await cluster.start_controller(1001)
    await cluster.until(lambda: _is_converted(cluster))
    assert (await cluster.state(TOPIC, 1)).lineage == ((2, {5: 0}),)
    assert (await cluster.state(TOPIC, 5)).lineage == ((0, {1: 0}),)
    await resized(cluster, 8)
    assert (await cluster.state(TOPIC, 5)).lineage == ((0, {1: 0}), (3, {1: 3}))
    hold_records(cluster, range(4, 8), 40, 40)
    await cluster.request(alter(4))
    await cluster.until(lambda: finished(cluster, 4))


async def test_nothing_is_converted_or_resized_before_the_level_is_finalized(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    """A broker of the earlier release may still be running."""
    cluster = await draining_since_before(nursery, level=1)
    before = (await cluster.store.get(paths.partition_state(TOPIC, 1))).data
    await cluster.start_controller(1001)
    await cluster.until(cluster.active)
    result = (await cluster.request(alter(6))).results[0]
    assert result.error_code == ErrorCode.POLICY_VIOLATION
    assert f"Level {LINEAGE_LEVEL} of the feature {ORDERED_RESIZE} is not finalized" in result.error_message
    hold_records(cluster, range(4, 6), 40, 40)
    await trio.sleep(20)  # virtual time: longer than any wait
    assert (await cluster.store.get(paths.partition_state(TOPIC, 1))).data == before
    await set_level(cluster, LINEAGE_LEVEL)
    await cluster.until(lambda: finished(cluster, 4))


async def test_a_resize_that_an_earlier_release_began_is_continued(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    """The surviving partitions of the merge had not gained keys yet."""
    cluster = await draining_since_before(nursery, level=LINEAGE_LEVEL)
    for p in range(4):
        await edit(cluster, p, leader_epoch=1, layout={"undeleted_partition_count": 6, "layout_version": 1})
    await cluster.start_controller(1001)
    await cluster.until(lambda: _has_gained(cluster))
    assert (await cluster.topic(TOPIC)).previous_undeleted_partition_count == 6
    hold_records(cluster, range(4, 6), 40, 40)
    await cluster.until(lambda: finished(cluster, 4))


async def _has_gained(cluster: ControllerCluster) -> bool:
    return (await cluster.state(TOPIC, 1)).lineage == ((3, {5: 1}),)


async def test_a_topic_that_cannot_be_converted_is_frozen_until_the_named_znode_is_repaired(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    """docs/upgrading.md describes this repair."""
    cluster = await draining_since_before(nursery, level=LINEAGE_LEVEL)
    await edit(cluster, 0, layout={"undeleted_partition_count": 8, "layout_version": 0})
    await cluster.start_controller(1001)
    await cluster.until(cluster.active)
    result = (await cluster.request(alter(6))).results[0]
    assert result.error_message == (
        "The topic is frozen: partition 0: a resize that an earlier release began is unfinished, but it cannot have"
        " begun with 8 partitions in version 0."
    )
    await edit(cluster, 0, layout={"undeleted_partition_count": 4, "layout_version": 2})
    await cluster.until(lambda: _is_converted(cluster))
    await resized(cluster, 6)


async def edit(cluster: ControllerCluster, partition: int, **fields: object) -> None:
    path = paths.partition_state(TOPIC, partition)
    content = json.loads((await cluster.store.get(path)).data)
    await cluster.store.set(path, json.dumps(content | fields).encode())
