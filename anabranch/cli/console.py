"""``anabranch console``: a web page of a cluster."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from anabranch.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Int
from anabranch.cli.signals import end_on_sigterm
from anabranch.command_error import CommandError, UsageError
from anabranch.protocol.addresses import split_address

DEFAULT_LISTEN = "127.0.0.1:8480"
MOST_MINUTES = 24 * 60


def console(
    *,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    listen: str = DEFAULT_LISTEN,
    allow_host: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=False)] = None,
    allow_changes: Annotated[bool, Parameter(negative=())] = False,
    schema_registry: str | None = None,
    history_minutes: Int = 60,
) -> int:
    """Serve a web page of a cluster, until Ctrl-C: its problems, the moves of keys, and the waits of partitions.

    Parameters
    ----------
    listen
        HOST:PORT to listen on; port 0 takes a free one.
    allow_host
        A host name, besides localhost, by which browsers may reach the console; may be given many times.
    allow_changes
        Let the page resize topics, set offsets and write records. Everyone who can reach the page can do this.
    schema_registry
        URL of a schema registry: messages in Avro and Protobuf are shown by their schemas.
    history_minutes
        How long rates, lags and resizes are kept for the charts, from 1 to 1,440; 0: no charts, and no requests while
        no page is open.
    """
    try:
        host, port = split_address(listen)
    except ValueError:
        host, port = "", 0
    if not host:
        raise UsageError(f"--listen {listen}: HOST:PORT is needed, such as {DEFAULT_LISTEN}")
    if schema_registry is not None and not schema_registry.startswith(("http://", "https://")):
        raise UsageError(f"--schema-registry {schema_registry}: an http:// or https:// URL is needed")
    if not 0 <= history_minutes <= MOST_MINUTES:
        raise UsageError(f"--history-minutes {history_minutes}: a number from 0 to {MOST_MINUTES:,} is needed")
    try:
        from anabranch.console.app import ConsoleConfig
        from anabranch.console.serve import serve
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: pip install 'anabranch[console]'") from error
    end_on_sigterm()
    config = ConsoleConfig(bootstrap_server, allow_host or [], allow_changes)
    serve(config, host, port, schema_registry=schema_registry, history_minutes=history_minutes)
    return 0
