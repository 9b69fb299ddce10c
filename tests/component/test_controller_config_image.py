"""Configs in the controller's image: its own writes take effect at once, edits by hand after a notification."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from tests.support.controller.clusters import cluster_of, create
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = pytest.mark.trio
PATH = paths.topic_config("t")


@pytest.fixture
async def cluster(nursery: trio.Nursery, autojump_clock: object) -> ControllerCluster:
    """A topic on two brokers."""
    cluster = await cluster_of(nursery, 2)
    await create(cluster, [[1, 2]])
    return cluster


async def alter(cluster: ControllerCluster, name: str, value: str) -> Any:
    change = AlterableConfig(name=name, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=[change])
    return (await cluster.request(IncrementalAlterConfigsRequest(resources=[resource]))).responses[0]


async def edit(cluster: ControllerCluster, **config: str) -> None:
    """Edit the config by hand, without a notification."""
    names = {name.replace("_", "."): value for name, value in config.items()}
    await cluster.store.set(PATH, ConfigZnode(names).encode())


async def notify(cluster: ControllerCluster) -> None:
    change = ConfigChange("topics/t").encode()
    await cluster.store.create(paths.CONFIG_CHANGE_PREFIX, change, sequence=True, make_parents=True)


async def config(cluster: ControllerCluster) -> dict[str, str]:
    return ConfigZnode.decode(PATH, (await cluster.store.get(PATH)).data).config


async def lose_in_sync(cluster: ControllerCluster) -> None:
    """Stop the broker that is in sync. Only the broker that is not in sync stays."""
    cluster.brokers[2].leave()
    await cluster.until(lambda: is_state(cluster, 1, [1]))
    cluster.brokers[1].leave()
    await cluster.until(lambda: is_state(cluster, -1, [1]))
    await cluster.brokers[2].register()
    await cluster.until(lambda: cluster.brokers[2].metadata().get(("t", 0)) is not None)


async def is_state(cluster: ControllerCluster, leader: int, isr: list[int]) -> bool:
    state = await cluster.state("t", 0)
    return (state.leader, state.isr) == (leader, isr)


async def test_an_edit_by_hand_takes_effect_when_a_notification_names_it(cluster: ControllerCluster) -> None:
    await edit(cluster, unclean_leader_election_enable="true")
    await lose_in_sync(cluster)
    await trio.sleep(20)  # virtual time: longer than any wait
    assert await is_state(cluster, -1, [1])
    await notify(cluster)
    await cluster.until(lambda: is_state(cluster, 2, [2]))


async def test_the_cluster_is_read_again_if_a_notification_was_removed_unread(cluster: ControllerCluster) -> None:
    assert (await alter(cluster, "retention.ms", "7")).error_code == ErrorCode.NONE
    await lose_in_sync(cluster)
    await edit(cluster, unclean_leader_election_enable="true")
    for name in await cluster.store.children(paths.CONFIG_CHANGES):
        await cluster.store.delete(f"{paths.CONFIG_CHANGES}/{name}")
    await cluster.until(lambda: is_state(cluster, 2, [2]))


@pytest.mark.parametrize("is_expired", [False, True], ids=["connection lost", "session expired"])
async def test_an_edit_whose_notification_came_while_disconnected_takes_effect(
    cluster: ControllerCluster, is_expired: bool
) -> None:
    await lose_in_sync(cluster)
    session = cluster.sessions[1000]
    session.disconnect()
    await edit(cluster, unclean_leader_election_enable="true")
    await notify(cluster)
    if is_expired:
        for name in await cluster.store.children(paths.CONFIG_CHANGES):
            await cluster.store.delete(f"{paths.CONFIG_CHANGES}/{name}")
        session.expire()
    else:
        session.reconnect()
    await cluster.until(lambda: is_state(cluster, 2, [2]))


async def test_a_request_keeps_an_edit_without_a_notification(cluster: ControllerCluster) -> None:
    await edit(cluster, segment_ms="9")
    assert (await alter(cluster, "retention.ms", "7")).error_code == ErrorCode.NONE
    assert await config(cluster) == {"segment.ms": "9", "retention.ms": "7"}


async def test_the_cluster_is_not_read_again_when_old_notifications_are_purged(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.controller.config_changes.CHANGES_KEPT", 1)
    changes = [AlterableConfig(name="retention.ms", config_operation=0, value="7")]
    resources = [
        AlterConfigsResource(resource_type=4, resource_name=name, configs=[AlterableConfig(name=key, value="9")])
        for name, key in (("1", "log.cleaner.backoff.ms"), ("2", "log.cleaner.backoff.ms"))
    ]
    resources.append(AlterConfigsResource(resource_type=2, resource_name="t", configs=changes))
    for _ in range(34):  # every hundredth notification purges
        answer = await cluster.request(IncrementalAlterConfigsRequest(resources=resources))
        assert [one.error_code for one in answer.responses] == [ErrorCode.NONE] * 3, answer
    await trio.sleep(1)  # virtual time: the notifications are read
    assert "cluster.read_again" not in caplog.text
    left = await cluster.store.children(paths.CONFIG_CHANGES)
    assert len(left) < 100
