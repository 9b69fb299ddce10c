"""Marked partitions of compacted topics: the controller keeps them, unless the user accepted their loss."""

from __future__ import annotations

import logging

import pytest
import trio

from anabranch.ordered_resize.delete_when_drained import LOSS_KEY
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.topic_readers import TopicReadersRequest
from anabranch.zk_schemas import paths
from tests.support.controller.controller_cluster import ControllerCluster, FakeBroker
from tests.support.resize.resize_rules import TOPIC, alter, configure, hold_records, resized

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]
COMPACT = {"cleanup_policy": "compact"}
STAYS = (
    "The topic is compacted: partitions 4, 5 stay, because they have the latest values of their keys."
    f" {LOSS_KEY}=true removes them, and loses these values."
)
LOST = (
    f"{LOSS_KEY}=true: partitions 4, 5 are removed when every group has read them. The latest values of their keys are"
    " lost, and older values in other partitions may become visible again."
)


async def merged(cluster: ControllerCluster, **config: str) -> None:
    """Resize 4 -> 6 -> 4: partitions 4 and 5 are closed, end at offset 40, and are read by the topic's group."""
    await cluster.store.create(paths.topic("__consumer_offsets"), b'{"version":3,"partitions":{"0":[1]}}')
    assert await configure(cluster, **config) == ErrorCode.NONE
    await resized(cluster, 6)
    hold_records(cluster, range(4, 6), 40)
    await resized(cluster, 4)
    cluster.brokers[2].groups["g"] = {(TOPIC, p): (40, -1) for p in (4, 5)}


async def answered(cluster: ControllerCluster, count: int, *, validate_only: bool = False) -> tuple[int, str | None]:
    result = (await cluster.request(alter(count, validate_only=validate_only))).results[0]
    return result.error_code, result.error_message


async def stays(cluster: ControllerCluster, caplog: pytest.LogCaptureFixture, why: str) -> None:
    await trio.sleep(10)  # virtual time: several polls
    assert {cluster.brokers[1].logs[TOPIC, p].start_offset for p in (4, 5)} == {0}
    assert sorted((await cluster.topic(TOPIC)).partitions) == [0, 1, 2, 3, 4, 5]
    lines = [record.message for record in caplog.records if "resize.waits" in record.message]
    assert lines[-1].endswith(f"partitions=4,5 waits_for={why}")


LATEST = f"{LOSS_KEY}=true: they have the latest values of their keys"


@pytest.mark.parametrize("config", [COMPACT, COMPACT | {"delete_records_when_drained": "true", "retention_ms": "-1"}])
async def test_marked_partitions_of_a_compacted_topic_stay_though_every_group_has_read_them(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture, config: dict[str, str]
) -> None:
    """Hole 24: retention and the config that drains other topics have no effect here. A grow revives the partitions."""
    caplog.set_level(logging.INFO)
    await merged(cluster, **config)
    await stays(cluster, caplog, LATEST)
    await resized(cluster, 8)
    state = await cluster.state(TOPIC, 5)
    assert state.lineage[-1].losers == {1: 2} and cluster.brokers[1].logs[TOPIC, 5].start_offset == 0


async def test_the_dry_run_and_the_response_report_whether_latest_values_are_lost(cluster: ControllerCluster) -> None:
    await configure(cluster, cleanup_policy="compact")
    assert await answered(cluster, 6, validate_only=True) == (0, None)
    await resized(cluster, 6)
    hold_records(cluster, range(4, 6), 40)
    assert await answered(cluster, 4, validate_only=True) == (0, STAYS)
    await configure(cluster, cleanup_policy="compact,delete")
    until = STAYS.replace("stay,", "stay until the records have expired,")
    assert await answered(cluster, 4, validate_only=True) == (0, until)
    await configure(cluster, delete_latest_values_when_drained="true")
    assert await answered(cluster, 4, validate_only=True) == (0, LOST)
    await configure(cluster, delete_latest_values_when_drained="false", cleanup_policy="compact")
    assert await answered(cluster, 4) == (0, STAYS)


# ---------------------------------------------------------------- the policy is altered while partitions drain


async def test_a_topic_that_becomes_compacted_keeps_partitions_that_are_not_drained_yet(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic becomes compacted during a round of the drain, while the controller waits for the groups."""
    caplog.set_level(logging.INFO)
    asked = trio.Event()

    def hold(broker: FakeBroker, request: object) -> None:
        if broker.id == 2 and isinstance(request, TopicReadersRequest) and not asked.is_set():
            broker.answering = trio.Event()
            asked.set()

    cluster.received = hold
    await merged(cluster, delete_records_when_drained="true")
    await asked.wait()
    assert await configure(cluster, cleanup_policy="compact") == ErrorCode.NONE
    cluster.brokers[2].answering.set()
    await stays(cluster, caplog, LATEST)
