"""``anabranch kafka-features``: the options of Kafka's ``kafka-features``, of 2.7, of 3.x and of the text of KIP-584.

Like Kafka's tool, the command never asks for confirmation. Combinations that Kafka's tool refuses are refused here.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from anabranch.cli import feature_changes as plan
from anabranch.cli import features
from anabranch.client.admin.types import FeatureMetadata
from anabranch.command_error import UsageError
from anabranch.runtime.properties_file import read_properties
from anabranch.zk_schemas.config_def import ConfigError, parse_properties

_METADATA = "--metadata names a version of KRaft's metadata.version, which a cluster with ZooKeeper does not have"
_ACTIONS = ("describe", "upgrade_all", "downgrade_all")
_COMMANDS = ("describe", "upgrade", "downgrade", "disable", "update")


def kafka_features(*arguments: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Takes the options of Kafka's kafka-features: `--describe`, `--upgrade-all`, `--downgrade-all`, `--dry-run`; or
    `describe`, `upgrade`, `downgrade`, `disable` with `--feature FEATURE=LEVEL`, or `update` with
    `--upgrade FEATURE:LEVEL`, `--downgrade FEATURE:LEVEL`, `--delete FEATURE`. Never asks for confirmation.
    """
    given = parser().parse_args(arguments)
    if "bootstrap_server" not in given:
        raise UsageError("--bootstrap-server is missing")
    if "command_config" in given:
        _check_config(given.command_config)
    return _run_action(given) if given.command is None else _run_command(given)


def _run_action(given: argparse.Namespace) -> int:
    """Carry out an option of Kafka 2.7: exactly one action."""
    actions = [action for action in _ACTIONS if getattr(given, action)]
    if len(actions) != 1:
        raise UsageError(
            f"take exactly one of --describe, --upgrade-all and --downgrade-all, or a command: {', '.join(_COMMANDS)}"
        )
    server, (action,) = given.bootstrap_server, actions
    if given.dry_run and action == "describe":
        raise UsageError("--dry-run goes only with --upgrade-all or --downgrade-all")
    if given.from_controller and action != "describe":
        raise UsageError("--from-controller goes only with --describe")
    if action == "describe":
        return features.show(server, from_controller=given.from_controller)
    if action == "upgrade_all":
        return features.upgrade(all_=True, dry_run=given.dry_run, bootstrap_server=server)
    return features.downgrade(all_=True, dry_run=given.dry_run, yes=True, bootstrap_server=server)


def _run_command(given: argparse.Namespace) -> int:
    """Carry out a command of Kafka 3.x, or ``update`` of the KIP."""
    if given.dry_run or given.from_controller or any(getattr(given, action) for action in _ACTIONS):
        raise UsageError("options of Kafka 2.7's tool, and options before the command, do not go with a command")
    server = given.bootstrap_server
    if given.command == "describe":
        return features.show(server)
    if given.command == "update":
        return _update(given)
    if getattr(given, "metadata", None) is not None:
        raise UsageError(_METADATA)
    if not given.feature:
        raise UsageError(f"name at least one feature to {given.command}: --feature")
    if given.command == "upgrade":
        return features.upgrade(feature=given.feature, dry_run=given.try_only, bootstrap_server=server)
    disables = given.command == "disable"
    levels, deleted = ({}, given.feature) if disables else _lowered(given.feature)
    if twice := sorted({name for name in deleted if [*levels, *deleted].count(name) > 1}):
        raise UsageError(f"feature {twice[0]} is named twice")
    return features.apply(
        server,
        lambda known: plan.changes(known, levels, deleted),
        "downgrade",
        force=given.unsafe,
        yes=True,
        dry_run=given.try_only,
    )


def _update(given: argparse.Namespace) -> int:
    """Make several changes in one request; each feature has its own result."""
    raised, lowered = (plan.parse_levels(_items(text), ":") for text in (given.upgrade, given.downgrade))
    deleted = _items(given.delete)
    named = [*raised, *lowered, *deleted]
    if not named:
        raise UsageError("name a feature: --upgrade FEATURE:LEVEL, --downgrade FEATURE:LEVEL or --delete FEATURE")
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise UsageError(f"feature {twice[0]} is named twice")

    def chosen(known: FeatureMetadata) -> list[plan.LevelChange]:
        upgrades = plan.changes(known, raised)
        for change in upgrades:
            if change.is_downgrade:
                raise UsageError(f"level {change.new} of {change.feature} is a downgrade: name it with --downgrade")
        return [*upgrades, *plan.changes(known, lowered), *plan.changes(known, {}, deleted)]

    return features.apply(given.bootstrap_server, chosen, "update", yes=True, dry_run=given.try_only)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _lowered(entries: list[str]) -> tuple[dict[str, int], list[str]]:
    """The levels of entries ``feature=level``, and the features with level 0, which deletes the finalized level."""
    deleted = [entry.removesuffix("=0") for entry in entries if entry.endswith("=0") and entry != "=0"]
    kept = [entry for entry in entries if not entry.endswith("=0") or entry == "=0"]
    return plan.parse_levels(kept, "="), deleted


def _check_config(path: Path) -> None:
    """Refuse a file that cannot be read, and security, which no listener has."""
    try:
        protocol = parse_properties(read_properties(path), str(path)).get("security.protocol", "PLAINTEXT")
    except ConfigError as error:
        raise UsageError(f"--command-config: {error}") from error
    if protocol != "PLAINTEXT":
        raise UsageError(f"--command-config: {path} has security.protocol={protocol}, but no listener has security")


def parser() -> argparse.ArgumentParser:
    of_all = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    of_all.add_argument("--bootstrap-server", default=argparse.SUPPRESS)
    of_all.add_argument("--command-config", type=Path, default=argparse.SUPPRESS, help="a properties file")
    of_all.add_argument("--yes", action="store_true", help="accepted and ignored: there is no question")
    parser = argparse.ArgumentParser(prog="anabranch kafka-features", allow_abbrev=False, parents=[of_all])
    parser.add_argument("--describe", action="store_true")
    parser.add_argument("--from-controller", action="store_true")
    parser.add_argument("--upgrade-all", action="store_true")
    parser.add_argument("--downgrade-all", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    commands = parser.add_subparsers(dest="command")
    made = {name: commands.add_parser(name, parents=[of_all], allow_abbrev=False) for name in _COMMANDS}
    for name in ("upgrade", "downgrade", "disable"):
        made[name].add_argument("--feature", action="append", default=[])
    for name in ("upgrade", "downgrade"):
        made[name].add_argument("--metadata")
    for name in ("downgrade", "disable"):
        made[name].add_argument("--unsafe", action="store_true")
    for name in ("upgrade", "downgrade", "delete"):
        made["update"].add_argument(f"--{name}", default="")
    for name in ("upgrade", "downgrade", "disable", "update"):
        made[name].add_argument("--dry-run", action="store_true", dest="try_only")
    return parser
