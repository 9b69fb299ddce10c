"""AlterConfigs and IncrementalAlterConfigs through a controller."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated import alter_configs, incremental_alter_configs
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from tests.support.controller.clusters import cluster_of, create
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = pytest.mark.trio
TOPIC, BROKER, SET = 2, 4, 0


@pytest.fixture
async def cluster(nursery: trio.Nursery, autojump_clock: object) -> ControllerCluster:
    cluster = await cluster_of(nursery, 1)
    await create(cluster, [[1]])
    return cluster


async def change(cluster: ControllerCluster, kind: int, name: str, *changes: tuple[str, int, str]) -> Any:
    configs = [
        incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
    return (await cluster.request(request)).responses[0]


async def config(cluster: ControllerCluster, path: str) -> dict[str, str]:
    return ConfigZnode.decode(path, (await cluster.store.get(path)).data).config


async def notified(cluster: ControllerCluster) -> list[str]:
    names = await cluster.store.children(paths.CONFIG_CHANGES)
    found = [f"{paths.CONFIG_CHANGES}/{name}" for name in names]
    return [ConfigChange.decode(path, (await cluster.store.get(path)).data).entity_path for path in found]


async def test_a_change_of_keys_is_written_and_notified(cluster: ControllerCluster) -> None:
    path = paths.topic_config("t")
    assert (await change(cluster, TOPIC, "t", ("retention.ms", SET, "7"))).error_code == ErrorCode.NONE
    await change(cluster, TOPIC, "t", ("segment.ms", SET, "9"))
    assert await config(cluster, path) == {"retention.ms": "7", "segment.ms": "9"}
    assert (await change(cluster, BROKER, "1", ("log.retention.ms", SET, "5"))).error_code == ErrorCode.NONE
    assert (await change(cluster, BROKER, "", ("message.max.bytes", SET, "6"))).error_code == ErrorCode.NONE
    assert await config(cluster, paths.broker_config(1)) == {"log.retention.ms": "5"}
    assert await config(cluster, paths.broker_config(None)) == {"message.max.bytes": "6"}
    assert await notified(cluster) == ["topics/t"] * 2 + ["brokers/1", "brokers/<default>"]


async def test_alter_configs_replaces_the_whole_config(cluster: ControllerCluster) -> None:
    await change(cluster, TOPIC, "t", ("retention.ms", SET, "7"))
    configs = [alter_configs.AlterableConfig(name="segment.ms", value="9")]
    resource = alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=configs)
    response = await cluster.request(alter_configs.AlterConfigsRequest(resources=[resource]))
    assert response.responses[0].error_code == ErrorCode.NONE
    assert await config(cluster, paths.topic_config("t")) == {"segment.ms": "9"}
