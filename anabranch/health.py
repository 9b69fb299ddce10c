"""``python -m anabranch.health broker|controller``: checks that a server serves. Exit status 0, or 1 with a reason.

The command is for container health checks. It takes the same configuration as the checked server (file, environment,
``--set``). It imports no event loop and no ZooKeeper client, because it may run every few seconds. A broker serves when
each of its listeners responds to ApiVersions and names this broker in Metadata. This shows that the broker is
registered, and that it has received metadata from the controller. A controller serves when its listener responds,
whether it is active or standby.

Where ``metrics.listener`` is set, ``/health/ready`` there must report the server as ready too: it has ZooKeeper, its
background tasks run, and its loop is not blocked.

Failures of the background work of a serving server are printed, one line each: a log that cannot be compacted, a log
dir that refuses writes, a listener that cannot accept. Such failures are no reason to restart the server, so the exit
status is 0, or 1 with ``--strict``. ``--json`` prints one document instead, also for a server that does not serve.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import sys
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from anabranch.protocol.addresses import join_address, split_address
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.framing import (
    HEALTH_CHECK,
    ClientConnection,
    FrameError,
    RequestHeader,
    decode_response,
    encode_request,
)
from anabranch.protocol.generated.api_versions import ApiVersionsRequest
from anabranch.protocol.generated.metadata import MetadataRequest
from anabranch.protocol.message import Message
from anabranch.protocol.message_limits import MAX_FRAME_BYTES
from anabranch.protocol.primitives import DecodeError
from anabranch.runtime.properties_file import read_properties
from anabranch.zk_schemas.config_def import ConfigError

TIMEOUT_S = 3.0
_LOOPBACK = "127.0.0.1"
_ANY = ("", "0.0.0.0", "::")
_VERSIONS = {ApiKey.API_VERSIONS: 3, ApiKey.METADATA: 1}
_WHO_ASKS = ApiVersionsRequest(client_software_name=HEALTH_CHECK, client_software_version="1")


class UnhealthyError(Exception):
    """The server does not serve; the message has the request and the result."""


def known_brokers(host: str, port: int, timeout_s: float = TIMEOUT_S) -> list[int]:
    """The ids of the brokers that this broker knows, including itself. Raises ``UnhealthyError``."""
    return _broker(host, port, timeout_s)[0]


def _broker(host: str, port: int, timeout_s: float) -> tuple[list[int], list[str]]:
    versions, metadata = _ask(host, port, [_WHO_ASKS, MetadataRequest(topics=[])], timeout_s)
    return sorted(broker.node_id for broker in metadata.brokers), list(versions.background_failures)


def check_broker(host: str, port: int, broker_id: int, timeout_s: float = TIMEOUT_S) -> list[str]:
    """The broker's background failures. Raises ``UnhealthyError`` unless it responds and lists ``broker_id``."""
    known, failures = _broker(host, port, timeout_s)
    if broker_id not in known:
        raise UnhealthyError(
            f"{join_address(host, port)} answers, but broker {broker_id} is not registered: it knows brokers {known}"
        )
    return failures


def check_controller(host: str, port: int, timeout_s: float = TIMEOUT_S) -> list[str]:
    """The controller's background failures. Raises ``UnhealthyError`` unless its listener responds."""
    (versions,) = _ask(host, port, [_WHO_ASKS], timeout_s)
    return list(versions.background_failures)


def check_ready(host: str, port: int, timeout_s: float = TIMEOUT_S) -> list[str]:
    """The problems that ``/health/ready`` lists. Raises ``UnhealthyError`` unless the server is ready."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", "/health/ready")
        answer = connection.getresponse()
        problems = [str(problem["what"]) for problem in json.loads(answer.read())["problems"]]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise UnhealthyError(f"{join_address(host, port)}/health/ready: {error}") from error
    finally:
        connection.close()
    if answer.status != HTTPStatus.OK:
        raise UnhealthyError("; ".join(problems) or f"{join_address(host, port)}/health/ready: status {answer.status}")
    return problems


def _check_listener(address: str | None) -> list[str]:
    """``check_ready`` at the address of ``metrics.listener``, if it is set."""
    if address is None:
        return []
    host, port = split_address(address)
    return check_ready(_LOOPBACK if host in _ANY else host, port)


def _ask(host: str, port: int, requests: Sequence[Message], timeout_s: float) -> list[Any]:
    """The responses, in order, over one connection. ``timeout_s`` bounds each wait for the peer."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            return [_exchange(connection, number, request) for number, request in enumerate(requests)]
    except (OSError, FrameError, DecodeError) as error:
        raise UnhealthyError(f"{join_address(host, port)}: {error}") from error


def _exchange(connection: socket.socket, correlation_id: int, request: Any) -> Any:
    key = ApiKey(request.API_KEY)
    version = _VERSIONS[key]
    parts = encode_request(RequestHeader(key, version, correlation_id, HEALTH_CHECK, True), request)
    connection.sendall(b"".join(part for part in parts if isinstance(part, bytes | bytearray | memoryview)))
    frames = ClientConnection(MAX_FRAME_BYTES)
    while (frame := frames.next_frame()) is None:
        received = connection.recv_into(frames.buffer())
        if received == 0:
            raise ConnectionError(f"the server closed the connection instead of answering {key.name}")
        frames.received(received)
    _, response = decode_response(key, version, frame)
    error_code = getattr(response, "error_code", ErrorCode.NONE)
    if error_code != ErrorCode.NONE:
        raise ConnectionError(f"the response to {key.name} has the error {ErrorCode.of(error_code).name}")
    return response


def _check_configured_broker(properties: str | None, where: str, settings: Sequence[str]) -> list[str]:
    from anabranch.broker.config import BrokerConfig
    from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
    from anabranch.zk_schemas.static_keys import for_broker, gather

    given, _ = for_broker(gather(BROKER_CONFIGS, properties, where, os.environ, settings).values)
    config = BrokerConfig.from_given(given, socket.gethostname())
    failures: dict[str, None] = {}
    for listener in config.listeners:
        host = _LOOPBACK if listener.host in _ANY else listener.host
        failures |= dict.fromkeys(check_broker(host, listener.port, config.broker_id))
    return list(failures | dict.fromkeys(_check_listener(config.values.metrics_listener)))


def _check_configured_controller(properties: str | None, where: str, settings: Sequence[str]) -> list[str]:
    from anabranch.controller.config import CONTROLLER_CONFIGS, ControllerConfig
    from anabranch.zk_schemas.static_keys import for_controller, gather

    given, _ = for_controller(gather(CONTROLLER_CONFIGS, properties, where, os.environ, settings).values)
    config = ControllerConfig.parse(given)
    failures = check_controller(config.host, config.port)
    return list(dict.fromkeys([*failures, *_check_listener(config.metrics_listener)]))


CHECKS = {"broker": _check_configured_broker, "controller": _check_configured_controller}


def main(argv: Sequence[str] | None = None) -> int:
    """0 when the server serves, 1 when it does not, 2 when its configuration cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m anabranch.health", description="Does this server serve?")
    parser.add_argument("role", choices=sorted(CHECKS))
    parser.add_argument("--config", type=Path, help="the properties file of the server")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the other sources")
    parser.add_argument("--strict", action="store_true", help="exit status 1 also when background work fails")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    arguments = parser.parse_args(argv)
    error: UnhealthyError | None = None
    failures: list[str] = []
    try:
        properties = read_properties(arguments.config) if arguments.config is not None else None
        failures = CHECKS[arguments.role](properties, str(arguments.config or ""), arguments.set)
    except UnhealthyError as unhealthy:
        error = unhealthy
    except (ConfigError, OSError) as wrong:
        print(f"{arguments.role}: {wrong}", file=sys.stderr)  # noqa: T201
        return 2
    if arguments.json:
        reason = None if error is None else str(error)
        answer = {"role": arguments.role, "serves": error is None, "error": reason, "failing": failures}
        print(json.dumps(answer, indent=2))  # noqa: T201
    else:
        for failure in failures:
            print(f"failing: {failure}")  # noqa: T201
    if error is not None:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 1 if failures and arguments.strict else 0


if __name__ == "__main__":
    sys.exit(main())
