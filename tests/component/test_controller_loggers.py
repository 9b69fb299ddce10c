"""BROKER_LOGGER at the listener of a controller (KIP-412): the levels of a running controller, active or standby."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]

LOGGER, TOPIC = 8, 2
NAME = "anabranch.controller.resize"
IN_OFFICE, STANDING_BY = 1000, 1001


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    logging.getLogger(NAME).setLevel(logging.NOTSET)


async def level(cluster: ControllerCluster, controller: int) -> str:
    resource = DescribeConfigsResource(resource_type=LOGGER, resource_name=str(controller), configuration_keys=[NAME])
    (result,) = (await cluster.request(DescribeConfigsRequest(resources=[resource]), None, controller)).results
    (config,) = result.configs
    return str(config.value)


async def alter(cluster: ControllerCluster, controller: int, name: str, value: str, kind: int = LOGGER) -> Any:
    config = AlterableConfig(name=NAME, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    (answer,) = (await cluster.request(request, None, controller)).responses
    return answer


async def test_levels_are_set_and_read_on_the_active_and_on_a_standby_controller(cluster: ControllerCluster) -> None:
    await cluster.start_controller(STANDING_BY)
    for controller, value in ((IN_OFFICE, "DEBUG"), (STANDING_BY, "ERROR")):
        answer = await alter(cluster, controller, str(controller), value)
        assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
        assert await level(cluster, controller) == value
    assert not logging.getLogger(NAME).isEnabledFor(logging.WARNING)


async def test_another_process_an_unknown_level_and_a_topic_are_refused(cluster: ControllerCluster) -> None:
    before = await level(cluster, IN_OFFICE)
    for name, value, code in (
        ("1", "DEBUG", ErrorCode.INVALID_REQUEST),
        ("1000", "LOUD", ErrorCode.INVALID_CONFIG),
    ):
        assert (await alter(cluster, IN_OFFICE, name, value)).error_code == code
    assert await level(cluster, IN_OFFICE) == before
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="t")
    (result,) = (await cluster.request(DescribeConfigsRequest(resources=[resource]))).results
    assert result.error_code == ErrorCode.INVALID_REQUEST and "ask a broker" in result.error_message


async def test_topic_configs_are_altered_by_the_active_controller_only(cluster: ControllerCluster) -> None:
    """Topic configs belong to the cluster, so a standby refuses them. It accepts logger levels by the same request."""
    await cluster.start_controller(STANDING_BY)
    answer = await alter(cluster, STANDING_BY, "t", "1", kind=TOPIC)
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
