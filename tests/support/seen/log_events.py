"""The log events of docs/log-events.md and the code. ``python -m tests.support.seen.log_events`` writes the table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "log-events.md"
NAME = re.compile(r"^[a-z][a-z_]*(\.[a-z][a-z_]*)+$")
_PROCESSES = {"broker": "broker", "controller": "controller", "runtime": "both"}
_LOGGERS = {"logger", "_log", "log"}
_METHODS = {
    "debug": "DEBUG",
    "info": "INFO",
    "warning": "WARN",
    "error": "ERROR",
    "exception": "ERROR",
    "critical": "FATAL",
}
_MORE = {
    "autoscale.resize": "refused",
    "background.failed": "times, retry_s",
    "features.finalized": "the level of each feature",
    "reassignment.step": "replicas, adding, removing",
    "resize.waits": "topic, partitions, group, read, end, waits_for",
}
"""The fields of logging calls that pass a dict of fields."""
_TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


class Use(NamedTuple):
    """A logging call. ``event`` is None if it is not a literal."""

    place: str
    process: str
    logger: str
    level: str
    event: str | None
    fields: tuple[str, ...]


def uses() -> Iterator[Use]:
    """All logging calls of brokers, controllers and their common packages."""
    for package, process in _PROCESSES.items():
        for path in sorted((ROOT / package).rglob("*.py")):
            module = f"anabranch.{path.relative_to(ROOT).with_suffix('')}".replace("/", ".").removesuffix(".__main__")
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and _is_logging(node.func):
                    assert isinstance(node.func, ast.Attribute)
                    first = node.args[0] if len(node.args) == 1 else None
                    event = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
                    fields = tuple(k.arg or "..." for k in node.keywords if k.arg != "exc_info")
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    yield Use(place, process, module, _METHODS[node.func.attr], event, fields)


def _is_logging(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute) or function.attr not in _METHODS:
        return False
    of = function.value
    name = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""
    is_made_here = isinstance(of, ast.Call) and ast.unparse(of.func).endswith("get_logger")
    return name in _LOGGERS or is_made_here


def table() -> str:
    """A row for each event, in order of name."""
    found: dict[str, list[Use]] = {}
    for use in uses():
        found.setdefault(use.event or "", []).append(use)
    lines = ["| event | level | fields | loggers |", "|---|---|---|---|"]
    for event, places in sorted(found.items()):
        levels = ", ".join(dict.fromkeys(use.level for use in places))
        fields = ", ".join(dict.fromkeys(_MORE[event] if f == "..." else f for use in places for f in use.fields))
        loggers = ", ".join(f"`{name}`" for name in dict.fromkeys(use.logger for use in places))
        lines.append(f"| `{event}` | {levels} | {fields} | {loggers} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with the present table."""
    return _TABLE.sub(lambda _: table(), page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
