"""Listens, and serves the console until a signal ends it."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import replace
from typing import Any, cast

import trio
from hypercorn.config import Config
from hypercorn.trio import serve as serve_http

from anabranch import Admin
from anabranch.client.consumer.log_reader import LogReader
from anabranch.command_error import CommandError
from anabranch.console.app import Console, ConsoleConfig
from anabranch.console.history import History
from anabranch.console.schemas import Registry
from anabranch.console.security import REQUEST_S
from anabranch.console.watch import Watch
from anabranch.protocol.addresses import join_address
from anabranch.runtime.interrupts import Interrupts
from anabranch.runtime.real_anyio import client_env

API_TIMEOUT_MS = 5_000
"""The time limit for the requests of a page to the cluster."""
REQUEST_TIMEOUT_MS = 3_000
"""The time limit for the response of one broker."""
GRACE_S = 1.0
"""The time that open requests get to end after the signal."""
END_S = 2.0
"""The process ends within this time after the signal: Hypercorn itself waits for a client that reads nothing."""


def serve(config: ConsoleConfig, host: str, port: int, *, schema_registry: str | None, history_minutes: int) -> None:
    """Serve until SIGINT or SIGTERM. Raises ``CommandError`` when the address is taken."""
    trio.run(_serve, config, host, port, schema_registry, history_minutes)


async def _serve(
    config: ConsoleConfig, host: str, port: int, schema_registry: str | None, history_minutes: int
) -> None:
    try:
        listener = _bind(host, port)
    except OSError as error:
        raise CommandError(f"cannot listen on {join_address(host, port)}: {error.strerror or error}") from error
    async with Interrupts() as interrupts, trio.open_nursery() as nursery:
        stop = trio.Event()
        interrupts.on_first(stop.set)
        nursery.start_soon(_end_in_time, stop)
        bound = listener.getsockname()[1]
        settings: dict[str, Any] = {
            "bootstrap_servers": config.bootstrap,
            "default_api_timeout_ms": API_TIMEOUT_MS,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "client_id": "anabranch-console",
        }
        async with (
            Admin(**settings) as admin,
            LogReader(env=client_env(), **settings, fetch_max_wait_ms=0) as reader,  # pages do not wait for new records
            Registry(schema_registry) if schema_registry else contextlib.nullcontext() as registry,
        ):
            history = History(history_minutes) if history_minutes else None
            watch = Watch(admin, reader, registry, history)
            console = Console(watch, replace(config, hosts=(host, *config.hosts)))
            if history is not None:
                nursery.start_soon(watch.sample_for_ever, history)
            name = f"[{host}]" if ":" in host else host
            print(f"The console is at http://{'localhost' if host in WILDCARDS else name}:{bound}/", flush=True)
            await serve_http(cast(Any, console.app()), _http_config(listener), shutdown_trigger=stop.wait)
            nursery.cancel_scope.cancel()


def _http_config(listener: socket.socket) -> Config:
    """Hypercorn's configuration. Hypercorn owns the listener from now on."""
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.graceful_timeout = GRACE_S
    config.keep_alive_timeout = REQUEST_S  # also the limit for a request's head; a stream has no limit
    config.h11_max_incomplete_size = 64 * 1024
    config.include_server_header = False
    config.accesslog = None
    config.loglevel = "WARNING"
    return config


async def _end_in_time(stop: trio.Event) -> None:
    await stop.wait()
    await trio.sleep(END_S)
    os._exit(0)


WILDCARDS = ("0.0.0.0", "::")


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(100)
    return listener
