"""The log of a process: the level of each logger, which may change while it runs (KIP-412), and the form of a line.

structlog's loggers and those of the standard library (kazoo's, ``zk_kazoo``'s) share one output. A logger has the name
of its module. A logger without a level of its own has its parent's level.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

ROOT = "root"
"""The name of the parent of all loggers, for setting and describing its level."""
TRACE = 5
LEVELS = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""The levels by Kafka's names."""
FORMATS = CONSOLE, JSON = "console", "json"
_QUIET = {"kazoo": logging.WARNING}
"""The levels of verbose libraries' loggers, unless the operator sets others."""
_OURS = "anabranch"
_FIRST = ["timestamp", "level", "logger", "event"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of a server for its log."""
    parser.add_argument(
        "--log-level",
        action="append",
        default=[],
        metavar="[LOGGER=]LEVEL",
        help="sets logging.levels; may be repeated",
    )
    parser.add_argument("--log-format", choices=FORMATS, help="sets logging.format")


def settings(arguments: argparse.Namespace) -> list[str]:
    """The flags as ``key=value``."""
    found = [f"logging.levels={','.join(arguments.log_level)}"] if arguments.log_level else []
    return found + ([f"logging.format={arguments.log_format}"] if arguments.log_format else [])


def begin(stream: TextIO, levels: Iterable[str] = ("INFO",), form: str = CONSOLE) -> None:
    """Log to ``stream`` from now on. ``LEVEL`` is for all loggers, ``LOGGER=LEVEL`` for a logger and those below it."""
    shared: list[Processor] = [
        structlog.stdlib.add_logger_name,
        _add_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    renderer = (
        structlog.processors.JSONRenderer()
        if form == JSON
        else structlog.processors.KeyValueRenderer(key_order=_FIRST, drop_missing=True)
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _name_foreign],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.ExceptionRenderer(),
                _in_order,
                renderer,
            ],
        )
    )
    logging.addLevelName(TRACE, "TRACE")
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(logging.INFO)
    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(level)
    for entry in levels:
        name, level_name = parse_level(entry)
        set_level(name, level_name)


def parse_level(entry: str) -> tuple[str, str]:
    """The logger and the level of ``LEVEL`` or ``LOGGER=LEVEL``."""
    name, _, level = entry.rpartition("=")
    return name.strip() or ROOT, level.strip().upper()


def set_level(name: str, level: str | None) -> None:
    """Set a logger's level; None gives it its parent's level. Raises ``KeyError`` for a level not in ``LEVELS``."""
    _logger(name).setLevel(logging.NOTSET if level is None else LEVELS[level])


def levels() -> dict[str, str]:
    """The level in force of every logger, also of modules that have not logged yet."""
    return {name: level_name(_logger(name).getEffectiveLevel()) for name in sorted(names())}


def level_name(level: int) -> str:
    """Kafka's name of a standard library level: the highest of ``LEVELS`` that is not above it."""
    return next((name for name, number in reversed(LEVELS.items()) if number <= level), "TRACE")


def names() -> set[str]:
    """The names of all loggers, also of modules that have not logged yet."""
    modules = {name for name in sys.modules if name == _OURS or name.startswith(f"{_OURS}.")}
    return {ROOT, *modules, *logging.root.manager.loggerDict}


def _logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _add_level(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Add the level by the name that both libraries use, in lower case."""
    record = event.get("_record")
    if record is not None:
        event["level"] = record.levelname.lower()
    else:
        event["level"] = "error" if method == "exception" else method
    return event


def _name_foreign(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Name the event of a library that logs texts, such as kazoo."""
    library = event["logger"].partition(".")[0]
    if library != _OURS:
        event["message"], event["event"] = event["event"], f"{library}.message"
    return event


def _in_order(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {**{name: event[name] for name in _FIRST if name in event}, **event}
