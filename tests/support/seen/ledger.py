"""The ledger of what is public: ``python -m tests.support.seen.ledger`` (``make gen``) writes ``docs/ledger``.

A file has one fact a line, sorted, so that the diff of a commit shows each public thing that the commit changes.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from cyclopts import App

from anabranch import wire_reference
from anabranch.cli import kafka_features
from anabranch.cli.main import build_app
from anabranch.client.client_metrics import ConsumerTraffic, ProducerTraffic
from anabranch.client.config import AdminConfig, ConsumerConfig, ProducerConfig
from anabranch.client.ordered_delivery.hand_over_metrics import HandOvers
from anabranch.client.producer.resize_metrics import ProducerMetrics
from anabranch.protocol.api_keys import API
from anabranch.protocol.own_tags import FIRST_OWN_API
from anabranch.protocol.schema import Field, table_named
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.config_def import REQUIRED, ConfigKey
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS
from anabranch.zk_schemas.features import REQUIRED as REQUIRED_FEATURES
from anabranch.zk_schemas.features import SUPPORTED
from anabranch.zk_schemas.topic_keys import TOPIC_CONFIGS
from anabranch.zk_schemas.znode import ZnodeReader
from tests.support.seen import log_events, metrics_page

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "ledger"
PUBLIC_MODULES = (
    "anabranch",
    "anabranch.audit",
    "anabranch.confluent",
    "anabranch.confluent.admin",
    "anabranch.prometheus",
    "anabranch.spark",
    "anabranch.sync",
)
"""The modules from which the pages of the documentation import."""
_ANNOTATION = re.compile(r"(: |-> )(['\"])(.*?)\2")


def wire() -> Iterator[str]:
    """The APIs with their versions; the fields of our own APIs; our own tagged fields; the levels of features."""
    for key, api in API.items():
        flexible = "never" if api.flexible_from is None else f"{api.flexible_from}+"
        versions, servers = f"{api.min_version}-{api.max_version}", wire_reference.servers(key)
        yield f"api {key.value} {api.name} {versions}, flexible {flexible}, served by {servers}"
        if key >= FIRST_OWN_API:
            for side, message in (("request", api.request), ("response", api.response)):
                yield from _fields(f"api {key.value} {side} ", table_named(message.TABLE).fields)
    for tag, message, path, found in wire_reference.own_tags():
        yield f"tag {tag} {message} {path}: {found.type} {wire_reference.version_range(found.versions)}"
    for name, levels in SUPPORTED.items():
        yield f"feature {name} {levels.min_version}-{levels.max_version}"
    for (name, level), others in REQUIRED_FEATURES.items():
        for other, least in others.items():
            yield f"feature {name} {level} requires {other} {least}"


def _fields(prefix: str, fields: tuple[Field, ...]) -> Iterator[str]:
    for found in fields:
        nullable = ", nullable" if found.nullable.first <= found.nullable.last else ""
        yield f"{prefix}{found.name}: {found.type} {wire_reference.version_range(found.versions)}{nullable}"
        yield from _fields(f"{prefix}{found.name}.", found.fields)


def znodes() -> Iterator[str]:
    """The paths, and the fields that the classes in ``zk_schemas`` read and write, by file."""
    for name, value in vars(paths).items():
        if not name.startswith("_") and isinstance(value, str) and value.startswith("/"):
            yield f"path {value}"
        elif inspect.isfunction(value):
            given = {parameter: f"<{parameter}>" for parameter in inspect.signature(value).parameters}
            yield f"path {value(**given)}"
    for file in sorted((ROOT / "zk_schemas").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and file.stem != "znode":
                if (taken := _taken_field(node)) is not None:
                    yield f"{file.stem} reads {taken}"
            elif isinstance(node, ast.FunctionDef) and node.name == "encode":
                yield from (f"{file.stem} writes {name}" for name in _written_fields(node))


def _taken_field(call: ast.Call) -> str | None:
    """``field: kind`` if the call reads a field of a znode."""
    if not isinstance(call.func, ast.Attribute) or not hasattr(ZnodeReader, call.func.attr) or not call.args:
        return None
    name, of = call.args[0], ast.unparse(call.func.value)
    is_reading = of in ("reader", "nested") or of.startswith("reader.")
    if call.func.attr in ("has", "fail") or not is_reading or not isinstance(name, ast.Constant):
        return None
    return f"{name.value}: {call.func.attr}"


def _written_fields(encode: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(encode):
        if isinstance(node, ast.Dict):
            yield from (key.value for key in node.keys if isinstance(key, ast.Constant))
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            yield node.slice.value


def keys() -> Iterator[str]:
    """The config keys with type, default and range."""
    for of, table in (("topic", TOPIC_CONFIGS), ("broker", BROKER_CONFIGS), ("controller", CONTROLLER_CONFIGS)):
        for key in table:
            changes = "" if of == "topic" else f", {key.update_mode.value}"
            limits = f", {key.validator}" if key.validator is not None else ""
            synonyms = "".join(f", default of {synonym.name}" for synonym in key.synonyms)
            yield f"{of} {key.name}: {key.type.name.lower()} = {_default(key)}{changes}{limits}{synonyms}"
    for of, config in (("producer", ProducerConfig), ("consumer", ConsumerConfig), ("admin", AdminConfig)):
        for found in dataclasses.fields(config):
            default = "" if found.default is dataclasses.MISSING else f" = {_shown(found.default)}"
            yield f"{of} {found.name}: {found.type}{default}"


def _default(key: ConfigKey) -> str:
    if key.default is REQUIRED:
        return "must be given"
    return "none" if key.default is None else key.format(key.default)


def _shown(value: object) -> str:
    return value.__qualname__ if callable(value) and hasattr(value, "__qualname__") else repr(value)


def metrics() -> Iterator[str]:
    """The metrics of processes, from their tables; and of clients."""
    for name, row in metrics_page.of_tables().items():
        yield f"{row.of} {row.type} {name}{{{','.join(row.labels or ())}}}: {row.meaning}"
    (of_resizes,) = ProducerMetrics().values().values()
    named = {
        "producer": {*of_resizes, *ProducerTraffic().values(0, 0)},
        "consumer": {*HandOvers().values(), *ConsumerTraffic().values([], 0)},
    }
    for client, names in named.items():
        yield from (f"{client} {name}" for name in names)


def events() -> Iterator[str]:
    """The log events with level, fields and loggers."""
    for line in log_events.table().splitlines()[2:]:
        event, level, fields, loggers = (cell.strip().replace("`", "") for cell in line.strip("|").split("|"))
        yield f"{event} {level} ({fields}) {loggers}"


def commands() -> Iterator[str]:
    """The commands with their arguments and options."""
    yield from _commands_of(build_app(), "")
    yield from _options_of(kafka_features.parser(), "kafka-features")


def _commands_of(group: App, prefix: str) -> Iterator[str]:
    for name in group:
        if name.startswith("-"):
            continue
        command = group[name]
        yield f"{prefix}{name}"
        if list(_commands_of(command, "")):
            yield from _commands_of(command, f"{prefix}{name} ")
            continue
        for argument in command.assemble_argument_collection():
            names = (
                argument.name.lstrip("-").upper() if argument.field_info.is_positional else ", ".join(argument.names)
            )
            default = argument.field_info.default
            value = "" if argument.required or default is inspect.Parameter.empty else f" = {default}"
            yield f"{prefix}{name} {names}: {_hint(argument.hint)}{value}".rstrip()


def _options_of(parser: argparse.ArgumentParser, prefix: str) -> Iterator[str]:
    for action in parser._actions:
        for name, command in (action.choices or {}).items() if isinstance(action.choices, dict) else ():
            yield f"{prefix} {name}"
            yield from _options_of(command, f"{prefix} {name}")
        yield from (f"{prefix} {option}" for option in action.option_strings)


def _hint(hint: Any) -> str:
    """A type in the form that every release of Python shares, without what cyclopts adds to it."""
    origin, given = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _hint(given[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, given))}]"
    if origin in (Union, UnionType):
        return " | ".join(map(_hint, given))
    name = "None" if hint is NoneType else getattr(origin or hint, "__name__", str(hint))
    return f"{name}[{', '.join(map(_hint, given))}]" if given else name


def python() -> Iterator[str]:
    """The names that programs import, and the public members of classes."""
    for name in PUBLIC_MODULES:
        module = importlib.import_module(name)
        for member in _public_names(module):
            yield from _described(f"{name}.{member}", getattr(module, member))


def _public_names(module: ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
    return sorted(listed if listed is not None else (name for name in own if not name.startswith("_")))


def _described(path: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{path}{_signature(value)}"
        return
    is_enum = issubclass(value, enum.Enum)
    bases = [base.__name__ for base in value.__mro__[1:-1] if base.__module__ not in ("abc", "enum", "typing")]
    signature = "" if is_enum else _signature(value)
    yield f"{path}{signature} is {', '.join(bases)}" if bases else f"{path}{signature}"
    if is_enum:
        yield from (f"{path}.{name} = {member.value!r}" for name, member in value.__members__.items())
    for name in sorted(_members(value)):
        member = inspect.getattr_static(value, name)
        yield f"{path}.{name}{_signature(getattr(value, name)) if not isinstance(member, property) else ''}"


def _members(value: type) -> set[str]:
    """The public members that classes of this project define; an error's are named once, at their class."""
    own = [each for each in value.__mro__ if each.__module__.startswith("anabranch")]
    if issubclass(value, BaseException):
        own = own[:1]
    enum_members = set(value.__members__) if issubclass(value, enum.Enum) else set()
    return {name for each in own for name in vars(each) if not name.startswith("_")} - enum_members


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    return _ANNOTATION.sub(r"\1\3", str(signature)) if callable(value) else ""


LEDGER: dict[str, Callable[[], Iterator[str]]] = {
    "wire": wire,
    "znodes": znodes,
    "config-keys": keys,
    "metrics": metrics,
    "log-events": events,
    "command-line": commands,
    "python-names": python,
}
"""The facts of each file of the ledger."""


def text(name: str) -> str:
    """The text of one file of the ledger."""
    return "".join(f"{line}\n" for line in sorted(set(LEDGER[name]())))


def main() -> None:
    for name in LEDGER:
        (FOLDER / f"{name}.txt").write_text(text(name))


if __name__ == "__main__":
    main()
