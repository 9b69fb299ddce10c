"""AlterConfigs and IncrementalAlterConfigs through a controller."""

from __future__ import annotations

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated import alter_configs, incremental_alter_configs
from anabranch.protocol.generated.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = pytest.mark.trio
TOPIC, BROKER, OTHER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
async def world(nursery: trio.Nursery, autojump_clock: object) -> ControllerCluster:
    world = ControllerCluster(nursery)
    await world.start_controller()
    await world.start_broker(1)
    await world.until(lambda: world.brokers[1].sent(UpdateMetadataRequest))
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    assert (await world.request(CreateTopicsRequest(topics=[topic]))).topics[0].error_code == ErrorCode.NONE
    return world


async def change(
    world: ControllerCluster, kind: int, name: str, *changes: tuple[str, int, str | None], validate: bool = False
):  # type: ignore[no-untyped-def]
    configs = [
        incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate)
    return (await world.request(request)).responses[0]


async def config(world: ControllerCluster, path: str) -> dict[str, str]:
    return ConfigZnode.decode(path, (await world.store.get(path)).data).config


async def notified(world: ControllerCluster) -> list[str]:
    names = await world.store.children(paths.CONFIG_CHANGES)
    found = [f"{paths.CONFIG_CHANGES}/{name}" for name in names]
    return [ConfigChange.decode(path, (await world.store.get(path)).data).entity_path for path in found]


async def test_keys_are_set_deleted_appended_and_subtracted(world: ControllerCluster, autojump_clock: object) -> None:
    path = paths.topic_config("t")
    assert (await change(world, TOPIC, "t", ("retention.ms", SET, "7"))).error_code == ErrorCode.NONE
    await change(world, TOPIC, "t", ("cleanup.policy", APPEND, "compact"), ("segment.ms", SET, "9"))
    assert await config(world, path) == {"retention.ms": "7", "cleanup.policy": "delete,compact", "segment.ms": "9"}
    await change(world, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"), ("segment.ms", DELETE, None))
    assert await config(world, path) == {"retention.ms": "7", "cleanup.policy": "compact"}
    assert await notified(world) == ["topics/t"] * 3


async def test_alter_configs_replaces_all(world: ControllerCluster, autojump_clock: object) -> None:
    await change(world, TOPIC, "t", ("retention.ms", SET, "7"))
    configs = [alter_configs.AlterableConfig(name="segment.ms", value="9")]
    resource = alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=configs)
    response = await world.request(alter_configs.AlterConfigsRequest(resources=[resource]))
    assert response.responses[0].error_code == ErrorCode.NONE
    assert await config(world, paths.topic_config("t")) == {"segment.ms": "9"}


async def test_configs_are_set_for_one_broker_and_as_the_default_of_all(
    world: ControllerCluster, autojump_clock: object
) -> None:
    assert (await change(world, BROKER, "1", ("log.retention.ms", SET, "5"))).error_code == ErrorCode.NONE
    assert (await change(world, BROKER, "", ("message.max.bytes", SET, "6"))).error_code == ErrorCode.NONE
    assert await config(world, paths.broker_config(1)) == {"log.retention.ms": "5"}
    assert await config(world, paths.broker_config(None)) == {"message.max.bytes": "6"}
    assert await notified(world) == ["brokers/1", "brokers/<default>"]


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (BROKER, "", [("delete.topic.enable", SET, "false")], ErrorCode.INVALID_CONFIG),
        (BROKER, "1", [("auto.leader.rebalance.enable", SET, "false")], ErrorCode.INVALID_CONFIG),
        (BROKER, "1", [("unclean.leader.election.enable", SET, "true")], ErrorCode.INVALID_CONFIG),
        (BROKER, "", [("advertised.listeners", SET, "PLAINTEXT://h:1")], ErrorCode.INVALID_CONFIG),
        (BROKER, "1", [("advertised.listeners", SET, "h:1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.mss", SET, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("segment.bytes", SET, "13")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("segment.bytes", SET, "many")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        (TOPIC, "none", [("retention.ms", SET, "1")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "1", [("log.dirs", SET, "/elsewhere")], ErrorCode.INVALID_CONFIG),
        (BROKER, "one", [("log.retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        (OTHER, "1", [("x", SET, "1")], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_an_invalid_change_is_refused_with_a_reason(
    world: ControllerCluster,
    kind: int,
    name: str,
    changes: list[tuple[str, int, str | None]],
    code: ErrorCode,
    autojump_clock: object,
) -> None:
    response = await change(world, kind, name, *changes)
    assert (response.error_code, response.resource_name) == (code, name)
    assert response.error_message
    assert await notified(world) == []


@pytest.mark.parametrize(
    ("listeners", "code"),
    [
        ("PLAINTEXT://elsewhere:9", ErrorCode.NONE),
        ("plaintext://[::1]:9", ErrorCode.NONE),
        ("OTHER://elsewhere:9", ErrorCode.INVALID_CONFIG),
        ("PLAINTEXT://elsewhere:9,OTHER://elsewhere:10", ErrorCode.INVALID_CONFIG),
        ("PLAINTEXT://0.0.0.0:9", ErrorCode.INVALID_CONFIG),
        ("PLAINTEXT://elsewhere:99999", ErrorCode.INVALID_CONFIG),
        ("", ErrorCode.INVALID_CONFIG),
    ],
)
async def test_advertised_listeners_must_name_the_running_brokers_listeners_with_valid_addresses(
    world: ControllerCluster, autojump_clock: object, listeners: str, code: ErrorCode
) -> None:
    assert (await change(world, BROKER, "1", ("advertised.listeners", SET, listeners))).error_code == code


async def test_validate_only_changes_nothing(world: ControllerCluster, autojump_clock: object) -> None:
    response = await change(world, TOPIC, "t", ("retention.ms", SET, "7"), validate=True)
    assert response.error_code == ErrorCode.NONE
    assert await config(world, paths.topic_config("t")) == {}
