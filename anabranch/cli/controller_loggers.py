"""The loggers of a controller, through its own listener: clients connect only to brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from anabranch.cli.options import api_timeout_ms
from anabranch.client.admin import codec
from anabranch.client.admin.types import ConfigEntry
from anabranch.command_error import CommandError, UsageError
from anabranch.protocol.addresses import split_server
from anabranch.runtime.channel import Channel
from anabranch.runtime.real_trio import TrioNetwork


def describe(address: str, controller_id: int) -> Mapping[str, ConfigEntry]:
    """The level in force of each logger, by name. Raises ``KafkaError`` and ``CommandError``."""
    request = codec.describe_configs([codec.ConfigOwner.loggers(controller_id)], None)
    return codec.read_configs(_asked(address, request))[str(controller_id)]


def alter(address: str, controller_id: int, levels: Mapping[str, str | None]) -> None:
    """Set levels until the controller ends. Raises ``KafkaError`` and ``CommandError``."""
    request = codec.incremental_alter_configs(codec.ConfigOwner.loggers(controller_id), levels, False)
    error = codec.first_resource_error(_asked(address, request))
    if error is not None:
        raise error


def _asked(address: str, request: Any) -> Any:
    try:
        host, port = split_server(address)
    except ValueError as error:
        raise UsageError(f"--bootstrap-controller: {error}") from None

    timeout_s = api_timeout_ms() / 1000

    async def ask() -> Any:
        async with Channel.open(TrioNetwork(), host, port, "anabranch", timeout_s=timeout_s, negotiate=True) as channel:
            return await channel.request(request, timeout_s=timeout_s)

    try:
        return trio.run(ask)
    except OSError as error:
        raise CommandError(f"no controller answers at {address}: {error}") from None
