"""``anabranch console``: a web page of a cluster."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from anabranch.cli.options import DEFAULT_BOOTSTRAP, Bootstrap
from anabranch.cli.signals import end_on_sigterm
from anabranch.command_error import CommandError, UsageError
from anabranch.protocol.addresses import split_address

DEFAULT_LISTEN = "127.0.0.1:8480"


def console(
    *,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    listen: str = DEFAULT_LISTEN,
    allow_host: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=False)] = None,
    allow_changes: Annotated[bool, Parameter(negative=())] = False,
    schema_registry: str | None = None,
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
    """
    try:
        host, port = split_address(listen)
    except ValueError:
        host, port = "", 0
    if not host:
        raise UsageError(f"--listen {listen}: HOST:PORT is needed, such as {DEFAULT_LISTEN}")
    if schema_registry is not None and not schema_registry.startswith(("http://", "https://")):
        raise UsageError(f"--schema-registry {schema_registry}: an http:// or https:// URL is needed")
    try:
        from anabranch.console.serve import serve
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: pip install 'anabranch[console]'") from error
    end_on_sigterm()
    serve(
        bootstrap_server,
        host,
        port,
        allow_host or [],
        allow_changes=allow_changes,
        schema_registry=schema_registry,
    )
    return 0
