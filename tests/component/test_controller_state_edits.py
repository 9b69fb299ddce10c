"""Znodes edited by hand into impossible states: until the repair the topic is frozen, and is still served."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.zk_schemas import paths
from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.resize.resize_rules import TOPIC, alter, edit, finished, led_by, resized
from tests.support.resize.resize_states import begun, release

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]


async def set_field(cluster: ControllerCluster, partition: int, **fields: Any) -> bytes:
    """Write fields of a state, or remove those that are None. Returns the state before."""
    path = paths.partition_state(TOPIC, partition)
    before = (await cluster.store.get(path)).data
    edited = {name: value for name, value in (json.loads(before) | fields).items() if value is not None}
    await cluster.store.set(path, json.dumps(edited).encode())
    return before


async def succeeded(cluster: ControllerCluster) -> None:
    await cluster.start_controller(1001)
    await cluster.until(cluster.active)


async def edited_unseen(cluster: ControllerCluster, partition: int, **fields: Any) -> bytes:
    """Write fields of a state while no controller is active, then start one. Returns the state before."""
    cluster.vacate()
    before = await set_field(cluster, partition, **fields)
    await succeeded(cluster)
    return before


async def repaired(cluster: ControllerCluster, partition: int, intact: bytes, count: int) -> None:
    """Repair the state, resize the topic to ``count``, and check that brokers got no initial count other than 4."""
    await cluster.store.set(paths.partition_state(TOPIC, partition), intact)
    await cluster.until(lambda: accepts(cluster, count))
    await cluster.until(lambda: finished(cluster, count))
    assert initial_counts_sent(cluster) == {4}


def initial_counts_sent(cluster: ControllerCluster) -> set[int]:
    """All initial counts in the brokers' LeaderAndIsr requests."""
    orders = [request for broker in cluster.brokers.values() for request in broker.sent(LeaderAndIsrRequest)]
    topics = [topic for request in orders for topic in request.topic_states]
    return {partition.initial_partition_count for topic in topics for partition in topic.partition_states}


async def accepts(cluster: ControllerCluster, count: int) -> bool:
    return bool((await cluster.request(alter(count))).results[0].error_code == ErrorCode.NONE)


async def why_frozen(cluster: ControllerCluster, count: int = 8) -> str:
    result = (await cluster.request(alter(count))).results[0]
    assert result.error_code == ErrorCode.POLICY_VIOLATION
    message: str = result.error_message
    assert message.startswith("The topic is frozen: ")
    return message.removeprefix("The topic is frozen: ")


async def test_a_state_that_contradicts_the_topic_freezes_it_until_it_is_repaired(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await resized(cluster, 6)
    topic = await cluster.topic(TOPIC)
    intact = await edited_unseen(cluster, 5, lineage=[[0, {"5": 0}]])
    assert "it names partition 5, itself." in await why_frozen(cluster)
    assert "event=topic.frozen" in caplog.text
    assert await cluster.topic(TOPIC) == topic
    await repaired(cluster, 5, intact, 8)


async def test_an_edit_under_an_active_controller_is_found_by_its_next_write_and_stops_the_resize(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The new count is in another znode. Once the state is repaired, the resize continues where it stopped."""
    await resized(cluster, 6)
    intact = await set_field(cluster, 1, initial_partition_count=2)
    await cluster.request(alter(8, timeout_ms=5000))
    await cluster.until(lambda: "event=topic.frozen" in caplog.text)
    await trio.sleep(5)  # virtual time: longer than every time-out
    assert await cluster.store.exists(paths.partition_state(TOPIC, 6)) is None
    await cluster.store.set(paths.partition_state(TOPIC, 1), intact)
    await cluster.until(lambda: finished(cluster, 8))
    assert initial_counts_sent(cluster) == {4}


async def test_a_frozen_topic_is_still_served(cluster: ControllerCluster) -> None:
    """Leaders are elected and ISRs change, and the controller does not read the cluster again."""
    await resized(cluster, 6)
    intact = (await cluster.store.get(paths.topic(TOPIC))).data
    cluster.vacate()
    await edit(cluster, initial_partition_count=2)
    await succeeded(cluster)
    why = "partition 0: initial_partition_count is 4, and the topic's is 2."
    assert await why_frozen(cluster) == why
    sent = sum(len(broker.requests) for broker in cluster.brokers.values())
    assert await cluster.alter_isr(TOPIC, 3, [1, 2]) == ErrorCode.NONE
    cluster.brokers[1].leave()
    await cluster.until(lambda: led_by(cluster, 3, 2))
    await cluster.brokers[1].register()
    await trio.sleep(5)  # virtual time: longer than any wait
    assert sent < sum(len(broker.requests) for broker in cluster.brokers.values()) < sent + 60
    assert await why_frozen(cluster) == why
    await cluster.store.set(paths.topic(TOPIC), intact)
    await cluster.until(lambda: accepts(cluster, 8))
    await cluster.until(lambda: finished(cluster, 8))
    assert initial_counts_sent(cluster) == {4}


# ---------------------------------------------------------------- states that cannot be read


DEEP = b'{"theirs":' + b"[" * 5000 + b"]" * 5000 + b"}"


async def test_a_state_that_no_controller_can_read_holds_resizes_until_it_is_repaired(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await resized(cluster, 6)
    path = paths.partition_state(TOPIC, 2)
    intact = (await cluster.store.get(path)).data
    cluster.vacate()
    await cluster.store.set(path, DEEP)
    await succeeded(cluster)
    assert f"znode {path}: not JSON" in caplog.text
    assert "partition 2 cannot be read" in (await cluster.request(alter(8))).results[0].error_message
    await repaired(cluster, 2, intact, 8)


async def exists(cluster: ControllerCluster, path: str) -> bool:
    return await cluster.store.exists(path) is not None


async def test_a_broker_that_restarted_while_a_state_was_unreadable_does_not_keep_its_epoch(
    cluster: ControllerCluster,
) -> None:
    """The repair comes after the broker's restart, so the state's time does not show that the broker restarted."""
    await resized(cluster, 6)
    before = await cluster.state(TOPIC, 5)
    intact = await edited_unseen(cluster, 5, lineage=[[0, {}]])
    leader = cluster.brokers[before.leader]
    leader.leave()
    await cluster.until(lambda: is_dropped(cluster, before.leader))
    await leader.register()
    await cluster.store.set(paths.partition_state(TOPIC, 5), intact)
    await cluster.until(lambda: is_led_anew(cluster, before.leader_epoch))


async def is_dropped(cluster: ControllerCluster, broker: int) -> bool:
    """Whether the broker is in no ISR of the readable states."""
    return all([broker not in (await cluster.state(TOPIC, index)).isr for index in range(5)])


async def is_led_anew(cluster: ControllerCluster, epoch: int) -> bool:
    return (await cluster.state(TOPIC, 5)).leader_epoch > epoch


async def test_a_partition_with_a_repaired_state_elects_a_leader_once(cluster: ControllerCluster) -> None:
    """It is unknown which brokers restarted before the repair. When the cluster is read later, no election follows."""
    await resized(cluster, 6)
    before = await cluster.state(TOPIC, 5)
    intact = await edited_unseen(cluster, 5, lineage=[[0, {}]])
    await cluster.store.set(paths.partition_state(TOPIC, 5), intact)
    await cluster.until(lambda: is_led_anew(cluster, before.leader_epoch))
    led = await cluster.state(TOPIC, 5)
    other = await set_field(cluster, 2, lineage=[[0, {}]])
    await cluster.alter_isr(TOPIC, 3, [1, 2], (await cluster.store.get(paths.partition_state(TOPIC, 3))).version)
    await cluster.request(alter(8, timeout_ms=2000))
    await cluster.store.set(paths.partition_state(TOPIC, 2), other)
    await cluster.until(lambda: finished(cluster, 8))
    assert (await cluster.state(TOPIC, 5)).leader_epoch == led.leader_epoch + 1, (
        "the only new epoch is that of the grow"
    )


async def test_a_grow_that_was_accepted_continues_when_an_unrelated_state_is_repaired(
    cluster: ControllerCluster,
) -> None:
    """The grow has written its count and some bumps. Then a state becomes unreadable, and the grow stops."""
    await begun(cluster, 6)
    intact = await edited_unseen(cluster, 2, lineage=[[0, {}]])
    release(cluster)
    await trio.sleep(5)  # virtual time: longer than any wait
    assert not await exists(cluster, paths.partition_state(TOPIC, 4))
    await cluster.store.set(paths.partition_state(TOPIC, 2), intact)
    await cluster.until(lambda: finished(cluster, 6))
    assert initial_counts_sent(cluster) == {4}
