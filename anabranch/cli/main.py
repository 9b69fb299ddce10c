"""The ``anabranch`` command: the table of commands and the one place where errors become a line and an exit status.

Commands are given as import paths, so ``anabranch topics list`` imports neither Spark nor the broker.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import App, CycloptsError, CycloptsPanel, MissingArgumentError, UnusedCliTokensError
from rich.console import RenderableType

from anabranch.cli import exit_status
from anabranch.cli.errors import report_error
from anabranch.cli.own_command import NAME
from anabranch.command_error import UsageError
from anabranch.runtime.release import describe_release

SERVERS = {
    "up": ("anabranch.cli.up:up", "A whole cluster on this machine, in the foreground."),
    "demo": ("anabranch.cli.demo:demo", "Stream real events through a local cluster and prove their order."),
    "zookeeper": ("anabranch.cli.servers:zookeeper", "One ZooKeeper server."),
    "controller": ("anabranch.cli.servers:controller", "One controller."),
    "broker": ("anabranch.cli.servers:broker", "One broker."),
    "health": ("anabranch.cli.servers:health", "Check that a broker or controller serves."),
}
CLIENTS = {
    "topics": ("anabranch.cli.topics:app", "Create, list, describe, alter, move, delete topics."),
    "produce": ("anabranch.cli.produce:produce", "Write lines of standard input as records."),
    "consume": ("anabranch.cli.consume:consume", "Print records."),
    "console": ("anabranch.cli.console:console", "Serve a web page of a cluster."),
    "groups": ("anabranch.cli.groups:app", "List, describe, reset, delete consumer groups."),
    "features": ("anabranch.cli.features:app", "Describe, upgrade, downgrade, disable feature levels."),
    "kafka-features": ("anabranch.cli.kafka_features:kafka_features", "Change feature levels as Kafka's tool does."),
    "cluster": ("anabranch.cli.cluster:cluster", "The cluster in a few numbers."),
    "brokers": ("anabranch.cli.cluster:brokers", "List the brokers."),
    "log-dirs": ("anabranch.cli.cluster:log_dirs", "Show the size of each log directory."),
    "delete-records": ("anabranch.cli.cluster:delete_records", "Delete the oldest records of a topic."),
    "top": ("anabranch.cli.top:top", "Rates of topics and lags of groups, live."),
    "configs": ("anabranch.cli.configs:app", "Describe and alter configs of topics and brokers."),
}
SHELL = {"completion": ("anabranch.cli.completion:completion", "Print a script that completes commands in a shell.")}
FILES = {
    "export": ("anabranch.cli.export:export", "Copy a topic's segment files."),
    "dump-log": ("anabranch.cli.dump_log:dump_log", "Print the contents of segment and index files."),
    "audit": ("anabranch.cli.audit:audit", "Check exported segment files with Spark."),
}


def build_app() -> App:
    """The command tree. A command is imported when it is called or its help is shown."""
    app = App(
        name="anabranch",
        help="A message log that speaks the Kafka protocol. `anabranch up` starts a cluster on this machine.",
        version=describe_release,
    )
    groups = (("Run a cluster", SERVERS), ("Use a cluster", CLIENTS), ("Segment files", FILES), ("Shell", SHELL))
    for title, commands in groups:
        for name, (target, summary) in commands.items():
            app.command(target, name=name, group=title, help=summary)
    return app


def main(argv: list[str] | None = None) -> None:
    """Entry point. Ends with a status of ``exit_status``; a failure prints one line on stderr."""
    arguments = sys.argv[1:] if argv is None else argv
    _open_closed_streams()
    try:
        _check_texts(arguments)
        result = build_app()(arguments, result_action="return_value", error_formatter=_wrong_usage)
    except KeyboardInterrupt:
        sys.exit(exit_status.INTERRUPTED)
    except BrokenPipeError:
        _end_without_reader()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # rich turns the error into exit status 1
            _end_without_reader()
        raise
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is None:
            sys.exit(exit_status.INTERRUPTED)
        if not isinstance(group, Exception):
            raise
        sys.exit(report_error(group))
    except Exception as error:
        sys.exit(report_error(error))
    sys.exit(result if isinstance(result, int) else exit_status.DONE)


def _open_closed_streams() -> None:
    """Discard output where the shell has closed its stream (``>&-``), so that no other file gets the descriptor."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _wrong_usage(error: CycloptsError) -> RenderableType:
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return CycloptsPanel(
            f"Unexpected: {' '.join(error.unused_tokens)}. --help shows the command's arguments and options."
        )
    missing = error.argument if isinstance(error, MissingArgumentError) else None
    if missing is not None and missing.field_info.is_positional:
        name = missing.name.lstrip("-").upper()
        usage = " ".join([NAME, *map(shlex.quote, error.root_input_tokens or ()), name])
        return CycloptsPanel(f"{name} is missing: {usage}")
    return CycloptsPanel(error)


def _end_without_reader() -> NoReturn:
    """End without output: the reader of standard output has closed it."""
    sys.stderr.close()
    sys.exit(exit_status.NO_READER)


def _check_texts(arguments: Sequence[str]) -> None:
    """Refuse arguments that are not UTF-8, before an encoder gets them. Paths of files may be any bytes."""
    if not arguments or arguments[0] not in CLIENTS:
        return
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"the argument {os.fsencode(argument)!r} is not UTF-8") from None


if __name__ == "__main__":
    main()
