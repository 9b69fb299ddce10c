"""The ``anabranch`` command: the table of commands and the one place where errors become a line and an exit status.

Commands are given as import paths, so ``anabranch topics list`` imports neither Spark nor the broker.
"""

from __future__ import annotations

import sys

from cyclopts import App

from anabranch.cli.errors import report_error

SERVERS = {
    "up": "anabranch.cli.up:up",
    "demo": "anabranch.cli.demo:demo",
    "zookeeper": "anabranch.cli.servers:zookeeper",
    "controller": "anabranch.cli.servers:controller",
    "broker": "anabranch.cli.servers:broker",
}
CLIENTS = {
    "topics": "anabranch.cli.topics:app",
    "produce": "anabranch.cli.produce:produce",
    "consume": "anabranch.cli.consume:consume",
    "groups": "anabranch.cli.groups:app",
    "configs": "anabranch.cli.configs:app",
}
FILES = {
    "export": "anabranch.cli.export:export",
    "dump-log": "anabranch.cli.dump_log:dump_log",
    "audit": "anabranch.cli.audit:audit",
}


def build_app() -> App:
    """The command tree; nothing of it is imported until it is called or its help is asked for."""
    app = App(
        name="anabranch",
        help="A message log that speaks the Kafka protocol. `anabranch up` starts a cluster on this machine.",
    )
    for title, commands in (("Run a cluster", SERVERS), ("Talk to a cluster", CLIENTS), ("Segment files", FILES)):
        for name, target in commands.items():
            app.command(target, name=name, group=title)
    return app


def main(argv: list[str] | None = None) -> None:
    """Entry point. Exit status: 0 done, 1 failed (one line on stderr says why), 2 wrong usage, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        result = build_app()(arguments, result_action="return_value")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away; nothing is left to say
        sys.exit(141)
    except Exception as error:
        sys.exit(report_error(error))
    sys.exit(result if isinstance(result, int) else 0)


if __name__ == "__main__":
    main()
