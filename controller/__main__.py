"""``python -m anabranch.controller --config FILE --set key=value``: one controller in the foreground."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TextIO, cast

import structlog
import trio

from anabranch.controller.config import ControllerConfig, gather
from anabranch.controller.process import run
from anabranch.runtime import garbage_collection, log_setup
from anabranch.runtime.descriptor_limit import raise_descriptor_limit
from anabranch.runtime.env import ZkError
from anabranch.runtime.log_output import STDERR, LogOutput
from anabranch.runtime.properties_file import read_properties
from anabranch.runtime.real_trio import real_env
from anabranch.runtime.zk_kazoo import open_zk
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.features import IncompatibleFeaturesError
from anabranch.zk_schemas.static_keys import for_controller

EXIT_BAD_CONFIG = 2
logger = structlog.get_logger("anabranch.controller")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a controller until SIGTERM or SIGINT. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="anabranch controller", description="Run a controller until Ctrl-C.")
    parser.add_argument("--config", type=Path, help="a properties file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="wins over the others")
    parser.add_argument("--strict", action="store_true", help="do not start with keys that have no effect")
    log_setup.add_arguments(parser)
    arguments = parser.parse_args(argv)
    arguments.set += log_setup.settings(arguments)
    output = LogOutput(STDERR)
    try:
        return _run_with(arguments, output)
    finally:
        output.close()


def _run_with(arguments: argparse.Namespace, output: LogOutput) -> int:
    stream = cast(TextIO, output)
    log_setup.begin(stream)
    try:
        properties = read_properties(arguments.config) if arguments.config is not None else None
        given = gather(properties, str(arguments.config or ""), os.environ, arguments.set)
        given, warnings = for_controller(given)
        if arguments.strict and warnings:
            raise ConfigError("--strict", "; ".join(warnings))
        config = ControllerConfig.parse(given, str(arguments.config or ""))
    except (ConfigError, OSError) as error:
        print(f"controller: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_BAD_CONFIG
    log_setup.begin(stream, config.logging_levels, config.logging_format)
    for warning in warnings:
        logger.warning("config.ignored", detail=warning)
    garbage_collection.OF_THIS_PROCESS.begin()
    limit = raise_descriptor_limit()
    logger.info("process.descriptors", was=limit.before, hard=limit.hard, allows=limit.allows)
    return trio.run(_main, config)


async def _main(config: ControllerConfig) -> int:
    failures: list[BaseException] = []
    try:
        await _run_until_signal(config)
    except* (ZkError, OSError, IncompatibleFeaturesError) as group:
        failures = _leaves(group)
    for failure in failures:
        print(f"controller: {failure}", file=sys.stderr)  # noqa: T201
    return 1 if failures else 0


async def _run_until_signal(config: ControllerConfig) -> None:
    connection = open_zk(
        config.zookeeper_connect,
        config.zookeeper_session_timeout_ms,
        connect_timeout_ms=config.zookeeper_connection_timeout_ms,
        max_request_bytes=config.jute_maxbuffer,
    )
    async with connection as zk, trio.open_nursery() as nursery:
        nursery.start_soon(partial(run, config, real_env(zk=zk), zk_latency=zk.latency_ms))
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                nursery.cancel_scope.cancel()
                return


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


if __name__ == "__main__":
    sys.exit(main())
