"""Partition counts that the controller chooses from the appended bytes that brokers report; virtual time."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_partitions import CreatePartitionsTopicResult
from anabranch.protocol.generated.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigZnode
from anabranch.zk_schemas.topic import TopicZnode
from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.resize.resize_rules import BROKERS, TOPIC, alter, configure, resized

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]

WINDOW_S, COOLDOWN_S = 20, 60
KEYS = {
    "autoscale_enable": "true",
    "autoscale_target_bytes_per_second": "100",
    "autoscale_max_partitions": "16",
    "autoscale_window_ms": str(WINDOW_S * 1000),
    "autoscale_cooldown_ms": str(COOLDOWN_S * 1000),
}


async def count(cluster: ControllerCluster) -> int:
    return (await cluster.topic(TOPIC)).undeleted_partition_count


async def write(cluster: ControllerCluster, bytes_per_second: int, seconds: int) -> list[int]:
    """Let one broker report all appended bytes. Returns the partition count after each second."""
    counts = []
    for _ in range(seconds):
        leader = cluster.brokers[BROKERS[0]]
        leader.appended[TOPIC] = leader.appended.get(TOPIC, 0) + bytes_per_second
        await trio.sleep(1)  # virtual time: rounds of the controller
        counts.append(await count(cluster))
    return counts


async def measured(cluster: ControllerCluster) -> CreatePartitionsTopicResult:
    request = alter(4, validate_only=True)
    request.topics[0].wants_measured = True
    result: CreatePartitionsTopicResult = (await cluster.request(request)).results[0]
    assert result.error_code == ErrorCode.NONE
    return result


def asked(cluster: ControllerCluster) -> int:
    """How many times the controller asked a broker for appended bytes."""
    return sum(
        topic.wants_appended_bytes
        for request in cluster.brokers[1].sent(UpdateMetadataRequest)
        for topic in request.topic_states
    )


async def test_the_count_follows_the_write_rate(cluster: ControllerCluster) -> None:
    assert await configure(cluster, **KEYS) == ErrorCode.NONE
    counts = await write(cluster, 1_000, 400)
    assert list(dict.fromkeys(counts)) == [4, 8, 16]
    steps = [counts.index(8), counts.index(16)]
    assert steps[0] >= COOLDOWN_S - 1
    assert steps[1] - steps[0] >= COOLDOWN_S - 1
    assert await write(cluster, 1_000, 200) == [16] * 200  # 62 bytes/s each: no change
    counts = await write(cluster, 0, 400)
    assert list(dict.fromkeys(counts))[:2] == [16, 8]


async def test_a_new_controller_measures_and_cools_down_again(cluster: ControllerCluster) -> None:
    assert await configure(cluster, **KEYS) == ErrorCode.NONE
    assert set(await write(cluster, 1_000, COOLDOWN_S - 10)) == {4}
    await cluster.start_controller(1001)
    cluster.kill_controller(1000)
    before = await write(cluster, 1_000, COOLDOWN_S - 10)
    assert set(before) == {4}
    assert 8 in await write(cluster, 1_000, COOLDOWN_S)


async def test_a_refused_resize_is_tried_again_and_logged_once(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A shrink is refused when records never expire: its marked partitions would stay for ever."""
    await resized(cluster, 8)
    assert await configure(cluster, retention_ms="-1") == ErrorCode.NONE
    with caplog.at_level("INFO", logger="anabranch.controller.autoscale_rounds"):
        assert await configure(cluster, **KEYS) == ErrorCode.NONE
        assert set(await write(cluster, 1, 200)) == {8}
        (line,) = [
            record.getMessage() for record in caplog.records if record.name == "anabranch.controller.autoscale_rounds"
        ]
        assert "partitions=8->4" in line
        assert "refused=" in line
        assert await configure(cluster, retention_ms="1000000") == ErrorCode.NONE
        assert 4 in await write(cluster, 1, 200)


async def test_a_topic_is_not_halved_while_stock_producers_write_to_it(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await resized(cluster, 8)
    cluster.brokers[1].stock_producers[TOPIC] = (0, -1)
    with caplog.at_level("INFO", logger="anabranch.controller.autoscale_rounds"):
        assert await configure(cluster, **KEYS) == ErrorCode.NONE
        assert set(await write(cluster, 1, 300)) == {8}
    lines = [line.getMessage() for line in caplog.records if line.name == "anabranch.controller.autoscale_rounds"]
    assert len(lines) == 1
    assert "partitions=8->4" in lines[0] and "refused=" in lines[0] and "stock.producer.window.ms" in lines[0]
    assert 16 in await write(cluster, 2_000, 300)  # a doubling is announced to them
    cluster.brokers[1].stock_producers.clear()
    assert 8 in await write(cluster, 1, 300)


async def test_no_broker_is_asked_while_no_topic_enables_autoscaling(cluster: ControllerCluster) -> None:
    await trio.sleep(60)  # virtual time: rounds of the controller
    before = [len(cluster.brokers[broker].requests) for broker in BROKERS]
    await trio.sleep(600)  # virtual time: rounds of the controller
    assert asked(cluster) == 0
    assert [len(cluster.brokers[broker].requests) for broker in BROKERS] == before
    assert await configure(cluster, **KEYS) == ErrorCode.NONE
    await trio.sleep(60)  # virtual time: rounds of the controller
    assert asked(cluster) >= 5
    assert await configure(cluster, autoscale_enable="false") == ErrorCode.NONE
    await trio.sleep(700)  # virtual time: rounds of the controller
    stopped = asked(cluster)
    await trio.sleep(600)  # virtual time: rounds of the controller
    assert asked(cluster) == stopped


async def test_a_topic_without_autoscaling_is_measured_on_request(cluster: ControllerCluster) -> None:
    assert (await measured(cluster)).appended_bytes == 0
    assert set(await write(cluster, 1_000, 90)) == {4}
    result = await measured(cluster)
    assert result.elapsed_ms >= 60_000
    assert abs(result.appended_bytes * 1000 / result.elapsed_ms - 1_000) < 100
    assert result.unchanged_ms >= 90_000 - 10_000


@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_topic_may_be_created_with_autoscaling(cluster: ControllerCluster, by_hand: bool) -> None:
    """A config that was written before its topic exists takes effect too, although no notification names the config."""
    await trio.sleep(60)  # virtual time: the configs of all topics were read
    keys = {name.replace("_", "."): value for name, value in KEYS.items()}
    if by_hand:
        await cluster.store.create(paths.topic_config("u"), ConfigZnode(keys).encode())
        await cluster.store.create(paths.topic("u"), TopicZnode.new(uuid.UUID(int=7), {0: [1], 1: [2]}).encode())
    else:
        configs = [CreatableTopicConfig(name=name, value=value) for name, value in keys.items()]
        topic = CreatableTopic(name="u", num_partitions=2, replication_factor=1, configs=configs)
        response: Any = await cluster.request(CreateTopicsRequest(topics=[topic], timeout_ms=5000))
        assert response.topics[0].error_code == ErrorCode.NONE
    for second in range(200):
        cluster.brokers[1].appended["u"] = second * 1_000
        await trio.sleep(1)  # virtual time: the next report of appended bytes
    assert (await cluster.topic("u")).undeleted_partition_count > 2
