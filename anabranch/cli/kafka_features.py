"""``anabranch kafka-features``: the options of Kafka's ``kafka-features``, of KIP-584 (2.7) and of 3.x alike."""

from __future__ import annotations

import argparse
from typing import Annotated

from cyclopts import Parameter

from anabranch.cli import features
from anabranch.command_error import UsageError

_METADATA = "--metadata names a version of KRaft's metadata.version, which a cluster with ZooKeeper does not have"


def kafka_features(*arguments: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Takes the options of Kafka's kafka-features: `--describe`, `--upgrade-all`, `--downgrade-all`, `--dry-run`; or
    `describe`, `upgrade`, `downgrade`, `disable` with `--feature FEATURE=LEVEL`. Confirms a downgrade with `--yes`.
    """
    given = _parser().parse_args(arguments)
    server = given.bootstrap_server
    if given.command is not None and (given.describe or given.upgrade_all or given.downgrade_all):
        raise UsageError("take either a command or one of --describe, --upgrade-all, --downgrade-all")
    if given.describe or given.command == "describe":
        return features.describe(bootstrap_server=server)
    if given.upgrade_all:
        return features.upgrade(all_=True, dry_run=given.dry_run, bootstrap_server=server)
    if given.downgrade_all:
        return features.downgrade(all_=True, dry_run=given.dry_run, yes=given.yes, bootstrap_server=server)
    if given.command is None:
        raise UsageError("name a command: describe, upgrade, downgrade or disable")
    if given.metadata is not None:
        raise UsageError(_METADATA)
    if given.command == "upgrade":
        return features.upgrade(feature=given.feature, dry_run=given.dry_run, bootstrap_server=server)
    change = features.disable if given.command == "disable" else features.downgrade
    return change(
        feature=given.feature, force=given.unsafe, yes=given.yes, dry_run=given.dry_run, bootstrap_server=server
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="anabranch kafka-features", allow_abbrev=False)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--command-config", help="accepted and ignored: no listener has security")
    parser.add_argument("--describe", action="store_true")
    parser.add_argument("--upgrade-all", action="store_true")
    parser.add_argument("--downgrade-all", action="store_true")
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--dry-run", action="store_true", default=argparse.SUPPRESS)
    options.add_argument("--yes", action="store_true", default=argparse.SUPPRESS)
    options.add_argument("--unsafe", action="store_true", default=argparse.SUPPRESS)
    options.add_argument("--feature", action="append", default=argparse.SUPPRESS)
    options.add_argument("--metadata", default=argparse.SUPPRESS)
    for option in ("--dry-run", "--yes", "--unsafe"):
        parser.add_argument(option, action="store_true")
    parser.set_defaults(feature=[], metadata=None)
    commands = parser.add_subparsers(dest="command")
    for name in ("describe", "upgrade", "downgrade", "disable"):
        commands.add_parser(name, parents=[options], allow_abbrev=False)
    return parser
