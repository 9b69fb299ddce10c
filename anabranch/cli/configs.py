"""``anabranch configs``: what topics and brokers are configured with."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from anabranch.cli.admin import parse_configs, with_admin
from anabranch.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, JsonFlag
from anabranch.cli.output import print_json, print_table
from anabranch.client.admin_types import ALL_BROKERS, ConfigSource
from anabranch.command_error import UsageError

app = App(name="configs", help="Describe and alter configs of topics and brokers.")

Kind = Literal["topic", "broker"]


@app.command
def describe(
    kind: Kind,
    name: str,
    *,
    all_: Annotated[bool, Parameter(name="--all", negative=())] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
) -> int:
    """Show the configs of one topic or broker.

    Parameters
    ----------
    kind
        topic or broker.
    name
        The topic's name or the broker's id; all: the default of all brokers.
    all_
        Those at their default too.
    """
    broker = _broker_id(name) if kind == "broker" else None
    found = with_admin(
        bootstrap_server,
        lambda admin: (
            admin.describe_configs(topics=[name]) if broker is None else admin.describe_configs(brokers=[broker])
        ),
    )
    entries = found[name if broker is None else broker]
    chosen = [entries[key] for key in sorted(entries) if all_ or not entries[key].is_default]
    if json_:
        print_json(
            [
                {"name": e.name, "value": e.value, "source": source_name(e.source), "read_only": e.read_only}
                for e in chosen
            ]
        )
    else:
        print_table(["key", "value", "source"], [[e.name, e.value, source_name(e.source)] for e in chosen])
    return 0


def source_name(number: int) -> str:
    try:
        return ConfigSource(number).name
    except ValueError:
        return str(number)


def _broker_id(name: str) -> int:
    if name == "all":
        return ALL_BROKERS
    if not name.isdigit():
        raise UsageError(f"{name} is neither a broker id nor all; anabranch configs describe broker 1")
    return int(name)


@app.command
def alter(
    kind: Kind,
    name: str,
    *,
    config: Annotated[list[str] | None, Parameter(name="--set", negative=(), consume_multiple=False)] = None,
    delete: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=False)] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
) -> int:
    """Set configs of one topic or broker, or take them back to their default. They take effect at once.

    Parameters
    ----------
    kind
        topic or broker.
    name
        The topic's name or the broker's id; all: the default of all brokers.
    config
        key=value; may be given many times.
    delete
        A key; may be given many times.
    """
    changes: dict[str, str | None] = {**parse_configs(config), **dict.fromkeys(delete or [])}
    if not changes:
        raise UsageError("nothing to change: give --set key=value or --delete key")
    broker = _broker_id(name) if kind == "broker" else None
    with_admin(
        bootstrap_server,
        lambda admin: (
            admin.incremental_alter_configs(topics={name: changes})
            if broker is None
            else admin.incremental_alter_configs(brokers={broker: changes})
        ),
    )
    if json_:
        print_json({"kind": kind, "name": name, "configs": changes})
    else:
        print(f"altered {kind} {name}")
    return 0
