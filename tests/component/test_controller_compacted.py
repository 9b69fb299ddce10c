"""Marked partitions of compacted topics: the controller keeps them, unless the user accepted their loss."""

from __future__ import annotations

import logging

import pytest
import trio

from anabranch.ordered_resize.marked import LOSS_KEY
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.generated.list_groups import ListGroupsRequest
from anabranch.zk_schemas import paths
from tests.support.controller.controller_cluster import ControllerCluster, FakeBroker
from tests.support.resize.resize_rules import TOPIC, alter, configure, finished, hold_records, resized

pytestmark = pytest.mark.trio
COMPACT = {"cleanup_policy": "compact"}
STAYS = (
    "The topic is compacted: partitions 4, 5 stay, for they have the latest values of their keys."
    f" {LOSS_KEY}=true removes them, and loses these values."
)
LOST = (
    f"{LOSS_KEY}=true: partitions 4, 5 are removed once every group has read them. The latest values of their keys are"
    " lost, and older ones in other partitions may come back."
)


async def merged(world: ControllerCluster, **config: str) -> None:
    """Resize 4 -> 6 -> 4: 4 and 5 are closed and end at 40, and the group of the topic has read them."""
    await world.store.create(paths.topic("__consumer_offsets"), b'{"version":3,"partitions":{"0":[1]}}')
    assert await configure(world, **config) == ErrorCode.NONE
    await resized(world, 6)
    hold_records(world, range(4, 6), 40)
    await resized(world, 4)
    world.brokers[2].groups["g"] = {(TOPIC, p): (40, -1) for p in (4, 5)}


async def answered(world: ControllerCluster, count: int, *, validate_only: bool = False) -> tuple[int, str | None]:
    result = (await world.request(alter(count, validate_only=validate_only))).results[0]
    return result.error_code, result.error_message


async def refusal_of(world: ControllerCluster, **config: str) -> str:
    configs = [AlterableConfig(name=n.replace("_", "."), config_operation=0, value=v) for n, v in config.items()]
    resource = AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=configs)
    answer = await world.request(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG
    return str(answer.responses[0].error_message)


async def stays(world: ControllerCluster, caplog: pytest.LogCaptureFixture, why: str) -> None:
    await trio.sleep(10)  # virtual time: several polls
    assert {world.brokers[1].logs[TOPIC, p].start_offset for p in (4, 5)} == {0}
    assert sorted((await world.topic(TOPIC)).partitions) == [0, 1, 2, 3, 4, 5]
    lines = [record.message for record in caplog.records if "resize.waits" in record.message]
    assert lines[-1].endswith(f"partitions=4,5 waits_for={why}")


LATEST = f"{LOSS_KEY}=true: they have the latest values of their keys"


@pytest.mark.parametrize("config", [COMPACT, COMPACT | {"delete_records_when_drained": "true", "retention_ms": "-1"}])
async def test_marked_partitions_of_a_compacted_topic_stay_though_every_group_has_read_them(
    world: ControllerCluster, autojump_clock: object, caplog: pytest.LogCaptureFixture, config: dict[str, str]
) -> None:
    """Hole 24: retention and the config that drains other topics have no effect here. A grow revives the partitions."""
    caplog.set_level(logging.INFO)
    await merged(world, **config)
    await stays(world, caplog, LATEST)
    await resized(world, 8)
    state = await world.state(TOPIC, 5)
    assert state.lineage[-1].losers == {1: 2} and world.brokers[1].logs[TOPIC, 5].start_offset == 0


async def test_an_empty_marked_partition_of_a_compacted_topic_is_removed(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """An empty marked partition has no values to lose."""
    await configure(world, cleanup_policy="compact")
    await resized(world, 6)
    await resized(world, 4)
    await world.until(lambda: finished(world, 4))


async def test_the_dry_run_and_the_response_report_whether_latest_values_are_lost(
    world: ControllerCluster, autojump_clock: object
) -> None:
    await configure(world, cleanup_policy="compact")
    assert await answered(world, 6, validate_only=True) == (0, None)
    await resized(world, 6)
    hold_records(world, range(4, 6), 40)
    assert await answered(world, 4, validate_only=True) == (0, STAYS)
    await configure(world, cleanup_policy="compact,delete")
    until = STAYS.replace("stay,", "stay until their records have expired,")
    assert await answered(world, 4, validate_only=True) == (0, until)
    await configure(world, delete_latest_values_when_drained="true")
    assert await answered(world, 4, validate_only=True) == (0, LOST)
    await configure(world, delete_latest_values_when_drained="false", cleanup_policy="compact")
    assert await answered(world, 4) == (0, STAYS)


async def test_if_the_loss_is_accepted_marked_partitions_are_removed_once_every_group_has_read_them(
    world: ControllerCluster, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await merged(world, **COMPACT)
    await stays(world, caplog, LATEST)
    assert await configure(world, delete_latest_values_when_drained="true") == ErrorCode.NONE
    await world.until(lambda: finished(world, 4))


# ---------------------------------------------------------------- the policy is altered while partitions drain


async def test_a_topic_that_becomes_compacted_keeps_partitions_that_are_not_drained_yet(
    world: ControllerCluster, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """This holds too while a round of the drain is in progress, after the requests to the groups."""
    caplog.set_level(logging.INFO)
    asked = trio.Event()

    def hold(broker: FakeBroker, request: object) -> None:
        if broker.id == 2 and isinstance(request, ListGroupsRequest) and not asked.is_set():
            broker.answering = trio.Event()
            asked.set()

    world.received = hold
    await merged(world, delete_records_when_drained="true")
    await asked.wait()
    assert await configure(world, cleanup_policy="compact") == ErrorCode.NONE
    world.brokers[2].answering.set()
    await stays(world, caplog, LATEST)


async def test_a_topic_that_is_no_longer_compacted_is_drained_as_any_other(
    world: ControllerCluster, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await merged(world, **COMPACT)
    await stays(world, caplog, LATEST)
    for policy in ("compact,delete", "delete"):
        assert await configure(world, cleanup_policy=policy) == ErrorCode.NONE
        await stays(world, caplog, "their records to expire")
    assert await configure(world, retention_ms="-1") == ErrorCode.NONE
    await stays(world, caplog, "delete.records.when.drained=true: their records never expire")
    assert await configure(world, delete_records_when_drained="true") == ErrorCode.NONE
    await world.until(lambda: finished(world, 4))


async def test_the_loss_can_be_accepted_for_compacted_topics_only(
    world: ControllerCluster, autojump_clock: object
) -> None:
    why = f"{LOSS_KEY}: can only be true if the topic sets a cleanup.policy that includes compact"
    assert why in await refusal_of(world, delete_latest_values_when_drained="true")
    for policy in ("compact", "compact,delete"):
        both = {"delete_latest_values_when_drained": "true", "cleanup_policy": policy}
        assert await configure(world, **both) == ErrorCode.NONE
    assert why in await refusal_of(world, cleanup_policy="delete")
    both = {"delete_latest_values_when_drained": "false", "cleanup_policy": "delete"}
    assert await configure(world, **both) == ErrorCode.NONE
