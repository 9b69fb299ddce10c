"""``anabranch configs``: the configs of topics and brokers, and the levels of loggers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Literal, TypeAlias

from cyclopts import App, Parameter

from anabranch import Admin, ErrorCode, KafkaError
from anabranch.cli import controller_loggers
from anabranch.cli.admin import parse_configs, with_admin
from anabranch.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, JsonFlag
from anabranch.cli.output import print_json, print_table
from anabranch.client.admin.types import ALL_BROKERS, ConfigEntry
from anabranch.command_error import CommandError, UsageError
from anabranch.protocol.plurals import counted
from anabranch.view.configs import source_name

app = App(name="configs", help="Describe and alter configs of topics and brokers.")

Kind = Literal["topic", "broker", "loggers"]
Controller: TypeAlias = Annotated[
    str | None,
    Parameter(name="--bootstrap-controller", help="For loggers: ask the controller at this host:port, not a broker."),
]


@app.command
def describe(
    kind: Kind,
    name: str,
    *,
    all_: Annotated[bool, Parameter(name="--all", negative=())] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    bootstrap_controller: Controller = None,
    json_: JsonFlag = False,
) -> int:
    """Show the configs of one topic or broker, or the levels of a broker's or controller's loggers.

    Parameters
    ----------
    kind
        topic, broker or loggers.
    name
        The topic's name; the broker's id, or all for the default of all brokers; for loggers, the id of a broker or
        controller.
    all_
        Also show the configs that have their default value.
    """
    _check_name(kind, name)
    if bootstrap_controller is not None:
        entries = controller_loggers.describe(bootstrap_controller, _controller_id(kind, name))
    else:
        entries = with_admin(bootstrap_server, lambda admin: _entries(admin, kind, name))
    chosen = [entries[key] for key in sorted(entries) if all_ or not entries[key].is_default]
    if json_:
        print_json(
            [
                {"name": e.name, "value": e.value, "source": source_name(e.source), "read_only": e.read_only}
                for e in chosen
            ]
        )
    elif not chosen and entries:
        print(f"no config is set for {kind} {name}; --all shows {counted(len(entries), 'default')}")
    else:
        print_table(["key", "value", "source"], [[e.name, e.value, source_name(e.source)] for e in chosen])
    return 0


def _check_name(kind: Kind, name: str) -> None:
    """Raise ``UsageError`` for an impossible name, before a request is sent."""
    if kind != "topic":
        _broker_id(kind, name)


async def _entries(admin: Admin, kind: Kind, name: str) -> Mapping[str, ConfigEntry]:
    if kind == "topic":
        return (await admin.describe_configs(topics=[name]))[name]
    broker = _broker_id(kind, name)
    if kind == "loggers":
        with _may_be_a_controller(broker):
            return await admin.describe_loggers(broker)
    return (await admin.describe_configs(brokers=[broker]))[broker]


def _controller_id(kind: Kind, name: str) -> int:
    if kind != "loggers":
        raise UsageError(
            f"--bootstrap-controller is for loggers, not for {kind}: anabranch configs describe loggers 1000"
        )
    return _broker_id(kind, name)


def _broker_id(kind: Kind, name: str) -> int:
    if name == "all" and kind == "broker":
        return ALL_BROKERS
    if not name.isdigit():
        wanted = "a broker id nor all" if kind == "broker" else "the id of a broker nor of a controller"
        raise UsageError(f"{name} is neither {wanted}; example: anabranch configs describe {kind} 1")
    return int(name)


@app.command
def alter(
    kind: Kind,
    name: str,
    *,
    config: Annotated[list[str] | None, Parameter(name="--set", negative=(), consume_multiple=False)] = None,
    delete: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=False)] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    bootstrap_controller: Controller = None,
    json_: JsonFlag = False,
) -> int:
    """Set configs of one topic or broker, or reset them to their default. They take effect at once.

    Levels of loggers hold until the process ends: anabranch configs alter loggers 1 --set anabranch.broker.log=DEBUG.

    Parameters
    ----------
    kind
        topic, broker or loggers.
    name
        The topic's name; the broker's id, or all for the default of all brokers; for loggers, the id of a broker or
        controller.
    config
        key=value; may be given many times.
    delete
        A key to set back to its default; may be given many times.
    """
    changes: dict[str, str | None] = {**parse_configs(config, "--set"), **dict.fromkeys(delete or [])}
    if not changes:
        raise UsageError("nothing to change: give --set key=value or --delete key")
    _check_name(kind, name)
    if bootstrap_controller is not None:
        controller_loggers.alter(bootstrap_controller, _controller_id(kind, name), changes)
    else:
        with_admin(bootstrap_server, lambda admin: _alter(admin, kind, name, changes))
    if json_:
        print_json({"kind": kind, "name": name, "configs": changes})
    else:
        print(f"altered {kind} {name}")
    return 0


async def _alter(admin: Admin, kind: Kind, name: str, changes: Mapping[str, str | None]) -> None:
    if kind == "topic":
        await admin.incremental_alter_configs(topics={name: changes})
    elif kind == "broker":
        await admin.incremental_alter_configs(brokers={_broker_id(kind, name): changes})
    else:
        broker = _broker_id(kind, name)
        with _may_be_a_controller(broker):
            await admin.alter_loggers(broker, changes)


@contextmanager
def _may_be_a_controller(server: int) -> Iterator[None]:
    """If no broker has the id, name the option for a controller's loggers: the id may be a controller's."""
    try:
        yield
    except KafkaError as error:
        if error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
            raise
        raise CommandError(
            f"there is no broker {server}; if it is a controller, give --bootstrap-controller HOST:PORT, the address of"
            " its controller.listener"
        ) from error
