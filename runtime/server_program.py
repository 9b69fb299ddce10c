"""A server in the foreground, from its command line to its exit status: configuration, ZooKeeper session, signals."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TextIO, TypeVar, cast

import structlog
import trio

from anabranch.runtime import garbage_collection, log_setup
from anabranch.runtime.descriptor_limit import raise_descriptor_limit
from anabranch.runtime.freed_memory import return_freed_memory
from anabranch.runtime.log_output import STDERR, LogOutput
from anabranch.runtime.properties_file import read_properties
from anabranch.runtime.zk_kazoo import KazooZk, open_zk
from anabranch.zk_schemas.config_def import ConfigDef, ConfigError
from anabranch.zk_schemas.process_keys import ProcessKeys
from anabranch.zk_schemas.static_keys import gather

EXIT_FAILED = 1
EXIT_BAD_CONFIG = 2

Config = TypeVar("Config")
logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServerProgram(Generic[Config]):
    """One kind of server: ``broker`` or ``controller``.

    ``acting`` removes the keys without an effect, and returns a warning for each removed key. ``parse`` takes the other
    keys and the file's name, and raises ``ConfigError``. ``run`` serves until it is cancelled or the server has shut
    down. An exception of ``failures`` ends the server with a sentence on stderr and status 1.
    """

    kind: str
    table: ConfigDef
    acting: Callable[[Mapping[str, str]], tuple[dict[str, str], list[str]]]
    parse: Callable[[Mapping[str, str]], Config]
    values: Callable[[Config], ProcessKeys]
    run: Callable[[Config, KazooZk], Awaitable[None]]
    failures: tuple[type[Exception], ...]

    def main(self, argv: Sequence[str] | None) -> int:
        """Run the server until SIGTERM or SIGINT. Returns the exit status."""
        parser = argparse.ArgumentParser(
            prog=f"anabranch {self.kind}", description=f"Run a {self.kind} until SIGTERM or Ctrl-C."
        )
        parser.add_argument("--config", type=Path, help="a properties file")
        parser.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the file and the environment"
        )
        parser.add_argument("--strict", action="store_true", help="do not start with keys that have no effect")
        log_setup.add_arguments(parser)
        arguments = parser.parse_args(argv)
        output = LogOutput(STDERR)
        try:
            return self._start(arguments, cast(TextIO, output))
        finally:
            output.close()

    def _start(self, arguments: argparse.Namespace, output: TextIO) -> int:
        log_setup.begin(output)
        try:
            config, warnings = self._configure(arguments)
        except (ConfigError, OSError) as error:
            self._print(error)
            return EXIT_BAD_CONFIG
        values = self.values(config)
        log_setup.begin(output, values.logging_levels, values.logging_format)
        for warning in warnings:
            logger.warning("config.ignored", detail=warning)
        garbage_collection.OF_THIS_PROCESS.begin()
        limit = raise_descriptor_limit()
        logger.info("process.descriptors", was=limit.before, hard=limit.hard, allows=limit.allows)
        return trio.run(self._serve, config)

    def _configure(self, arguments: argparse.Namespace) -> tuple[Config, list[str]]:
        """The configuration, and warnings about keys without an effect. Raises ``ConfigError`` and ``OSError``."""
        where = str(arguments.config or "")
        properties = read_properties(arguments.config) if arguments.config is not None else None
        chosen = [*arguments.set, *log_setup.settings(arguments)]
        given = gather(self.table, properties, where, os.environ, chosen)
        acting, warnings = self.acting(given.values)
        if arguments.strict and warnings:
            raise ConfigError("--strict", "; ".join(warnings))
        try:
            return self.parse(acting), warnings
        except ConfigError as error:
            raise given.named(error) from None

    async def _serve(self, config: Config) -> int:
        failures: list[BaseException] = []
        try:
            await self._run_until_signal(config)
        except* self.failures as group:
            failures = _leaves(group)
        for failure in failures:
            self._print(failure)
        return EXIT_FAILED if failures else 0

    async def _run_until_signal(self, config: Config) -> None:
        values = self.values(config)
        connection = open_zk(
            values.zookeeper_connect,
            values.zookeeper_session_timeout_ms,
            connect_timeout_ms=values.zookeeper_start_timeout_ms,
            max_request_bytes=values.jute_maxbuffer,
            keep_alive_s=values.socket_keepalive_timeout_ms / 1000,
        )
        async with connection as zk, trio.open_nursery() as nursery:

            async def serve() -> None:
                await self.run(config, zk)
                nursery.cancel_scope.cancel()

            nursery.start_soon(serve)
            nursery.start_soon(return_freed_memory)
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    nursery.cancel_scope.cancel()
                    return

    def _print(self, error: BaseException) -> None:
        print(f"{self.kind}: {error}", file=sys.stderr)  # noqa: T201


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
