"""``python -m anabranch.broker --config FILE --set key=value``: one broker in the foreground."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, cast

import structlog
import trio

from anabranch.broker.config import BrokerConfig, gather
from anabranch.broker.log.log_manager import LogDirError
from anabranch.broker.process import run
from anabranch.broker.registration import DuplicateBrokerError
from anabranch.runtime import garbage_collection, log_setup
from anabranch.runtime.descriptor_limit import raise_descriptor_limit
from anabranch.runtime.env import ZkError
from anabranch.runtime.log_output import STDERR, LogOutput
from anabranch.runtime.properties_file import read_properties
from anabranch.runtime.real_trio import real_env
from anabranch.runtime.zk_kazoo import open_zk
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.features import IncompatibleFeaturesError
from anabranch.zk_schemas.static_keys import for_broker

EXIT_BAD_CONFIG = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="anabranch broker", description="Run a broker until SIGTERM or Ctrl-C.")
    parser.add_argument("--config", type=Path, help="a properties file with Kafka's keys")
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
    log_setup.begin(cast(TextIO, output))
    try:
        properties = read_properties(arguments.config) if arguments.config is not None else None
        given = gather(properties, str(arguments.config or ""), os.environ, arguments.set)
        given, warnings = for_broker(given)
        if arguments.strict and warnings:
            raise ConfigError("--strict", "; ".join(warnings))
        config = BrokerConfig.from_given(given, str(arguments.config or ""), socket.gethostname())
    except (ConfigError, OSError) as error:
        print(f"broker: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_BAD_CONFIG
    log_setup.begin(cast(TextIO, output), config.values["logging.levels"], config.values["logging.format"])
    for warning in warnings:
        structlog.get_logger("anabranch.broker").warning("config.ignored", detail=warning)
    garbage_collection.OF_THIS_PROCESS.begin()
    limit = raise_descriptor_limit()
    structlog.get_logger("anabranch.broker").info(
        "process.descriptors", was=limit.before, hard=limit.hard, allows=limit.allows
    )
    return trio.run(_main, config)


async def _main(config: BrokerConfig) -> int:
    failures: list[BaseException] = []
    try:
        await _run_until_signal(config)
    except* (LogDirError, DuplicateBrokerError, IncompatibleFeaturesError, ZkError, OSError) as group:
        failures = _leaves(group)
    for failure in failures:
        print(f"broker: {failure}", file=sys.stderr)  # noqa: T201
    return 1 if failures else 0


async def _run_until_signal(config: BrokerConfig) -> None:
    values = config.values
    connection = open_zk(
        values["zookeeper.connect"],
        values["zookeeper.session.timeout.ms"],
        connect_timeout_ms=values["zookeeper.connection.timeout.ms"],
        max_request_bytes=values["jute.maxbuffer"],
    )
    async with connection as zk, trio.open_nursery() as nursery:

        async def serve() -> None:
            await run(config, real_env(zk=zk), zk_latency=zk.latency_ms)
            nursery.cancel_scope.cancel()

        nursery.start_soon(serve)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                nursery.cancel_scope.cancel()
                break


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


if __name__ == "__main__":
    sys.exit(main())
