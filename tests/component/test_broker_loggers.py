"""BROKER_LOGGER in DescribeConfigs and IncrementalAlterConfigs (KIP-412): levels of a running broker."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.broker.broker_harness import OneBroker, one_broker

pytestmark = pytest.mark.trio

LOGGER, TOPIC = 8, 2
SET, DELETE, APPEND = 0, 1, 2
NAME = "anabranch.broker.net.connection"
REQUESTS = "anabranch.broker.net.request_log"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = logging.root.level
    yield
    logging.root.setLevel(before)
    for name in (NAME, REQUESTS):
        logging.getLogger(name).setLevel(logging.NOTSET)


def resource(*changes: tuple[str, int, str | None], name: str = "1", kind: int = LOGGER) -> AlterConfigsResource:
    configs = [AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    return AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


async def alter(broker: OneBroker, *resources: AlterConfigsResource, validate_only: bool = False) -> list[Any]:
    request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    return list((await broker.request(request)).responses)


async def levels(broker: OneBroker, *keys: str, name: str = "1") -> Any:
    asked = DescribeConfigsResource(resource_type=LOGGER, resource_name=name, configuration_keys=list(keys) or None)
    (result,) = (await broker.request(DescribeConfigsRequest(resources=[asked]))).results
    return result


async def level(broker: OneBroker) -> str:
    (config,) = (await levels(broker, NAME)).configs
    assert (config.config_source, config.read_only) == (6, False)
    return str(config.value)


async def test_the_level_of_a_logger_is_set_and_deleted(tmp_path: Path) -> None:
    logging.root.setLevel(logging.INFO)
    async with one_broker(tmp_path) as broker:
        assert await level(broker) == "INFO"
        (done,) = await alter(broker, resource((NAME, SET, "DEBUG")), validate_only=True)
        assert (done.error_code, await level(broker)) == (ErrorCode.NONE, "INFO")
        (done,) = await alter(broker, resource((NAME, SET, "DEBUG")))
        assert (done.error_code, done.resource_type, done.resource_name) == (ErrorCode.NONE, LOGGER, "1")
        assert await level(broker) == "DEBUG"
        assert logging.getLogger(NAME).isEnabledFor(logging.DEBUG)
        await alter(broker, resource(("root", SET, "ERROR"), (NAME, DELETE, None)))
        assert await level(broker) == "ERROR"
        everything = {config.name for config in (await levels(broker)).configs}
        assert {"root", "anabranch", NAME, "anabranch.broker.log.cleaner"} <= everything


async def test_answered_requests_are_logged_at_debug(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as broker:
        with structlog.testing.capture_logs() as before:
            await levels(broker, REQUESTS)
        await alter(broker, resource((REQUESTS, SET, "DEBUG")))
        with structlog.testing.capture_logs() as after:
            await levels(broker, REQUESTS)
    assert [line for line in before if line["event"] == "request.answered"] == []
    (line,) = [line for line in after if line["event"] == "request.answered" and line["api"] == "DESCRIBE_CONFIGS"]
    assert line["log_level"] == "debug" and line["local_ms"] >= 0 and line["correlation_id"] > 0


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ([("anabranch.broker.nothing", SET, "INFO")], ErrorCode.INVALID_CONFIG, "anabranch.broker.nothing does not"),
        ([(NAME, SET, "LOUD")], ErrorCode.INVALID_CONFIG, "levels are TRACE, DEBUG, INFO, WARN, ERROR, FATAL"),
        ([(NAME, SET, None)], ErrorCode.INVALID_CONFIG, "None is not a level"),
        ([(NAME, APPEND, "INFO")], ErrorCode.INVALID_REQUEST, "can only be set (0) or deleted (1)"),
        ([("root", DELETE, None)], ErrorCode.INVALID_REQUEST, "root"),
        ([(NAME, SET, "INFO"), (NAME, DELETE, None)], ErrorCode.INVALID_REQUEST, "named twice"),
        ([(NAME, SET, "ERROR"), ("nothing.at.all", SET, "INFO")], ErrorCode.INVALID_CONFIG, "nothing.at.all"),
    ],
)
async def test_a_request_with_an_invalid_change_of_a_level_is_refused_as_a_whole(
    tmp_path: Path, changes: list[tuple[str, int, str | None]], code: ErrorCode, message: str
) -> None:
    async with one_broker(tmp_path) as broker:
        before = await level(broker)
        (refused,) = await alter(broker, resource(*changes))
        assert refused.error_code == code and message in refused.error_message
        assert await level(broker) == before


async def test_loggers_that_are_named_more_than_once_are_refused_once_and_keep_their_levels(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as broker:
        before = await level(broker)
        twice = [resource((NAME, SET, "ERROR")), resource((NAME, SET, "DEBUG"))]
        repeated, other = await alter(broker, *twice, resource((NAME, SET, "DEBUG"), name="2"))
        assert "named more than once" in repeated.error_message and "node '2'" in other.error_message
        assert await level(broker) == before


async def test_another_brokers_loggers_and_mixed_requests_are_refused(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as broker:
        for name in ("2", "", "one"):
            (refused,) = await alter(broker, resource((NAME, SET, "DEBUG"), name=name))
            assert refused.error_code == ErrorCode.INVALID_REQUEST
            assert (await levels(broker, name=name)).error_code == ErrorCode.INVALID_REQUEST
        mixed = [resource((NAME, SET, "DEBUG")), resource(("retention.ms", SET, "1"), name="t", kind=TOPIC)]
        assert [each.error_code for each in await alter(broker, *mixed)] == [ErrorCode.INVALID_REQUEST] * 2
