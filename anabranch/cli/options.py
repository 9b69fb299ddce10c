"""Options that several commands take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter, Token

from anabranch.client.config import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP
from anabranch.command_error import UsageError

__all__ = ["DEFAULT_BOOTSTRAP"]


def whole(_type: Any, tokens: Sequence[Token]) -> int:
    """Parse a whole number: cyclopts itself would round a fraction."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


INT32, INT64 = (1 << 31) - 1, (1 << 63) - 1
BROKERS_CHOOSE = -1


def _between(lowest: int, highest: int, *others: int) -> Parameter:
    def convert(type_: Any, tokens: Sequence[Token]) -> int:
        number = whole(type_, tokens)
        if not lowest <= number <= highest and number not in others:
            raise ValueError(f"{number} is not from {lowest} to {highest}")
        return number

    return Parameter(converter=convert)


Int: TypeAlias = Annotated[int, Parameter(converter=whole)]
Natural: TypeAlias = Annotated[int, _between(0, INT32)]
"""A number from 0: a partition, a broker, a time in milliseconds, a count."""
Offset: TypeAlias = Annotated[int, _between(0, INT64)]
NewTopicCount: TypeAlias = Annotated[int, _between(1, INT32, BROKERS_CHOOSE)]
"""A count of partitions or replicas for a new topic."""
API_TIMEOUT_MS = 20_000
"""How long a command tries before it fails, in ms: a user waits at a terminal."""
TIMEOUT_VARIABLE = "ANABRANCH_TIMEOUT_MS"
Bootstrap: TypeAlias = Annotated[
    str,
    Parameter(
        name=["--bootstrap-server", "-b"],
        env_var=BOOTSTRAP_VARIABLE,
        help=f"Brokers, host:port,... A command fails if none answers for {TIMEOUT_VARIABLE} ({API_TIMEOUT_MS}).",
    ),
]
JsonFlag: TypeAlias = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON instead of a table.")]
TsvFlag: TypeAlias = Annotated[
    bool, Parameter(name="--tsv", negative=(), help="Print tab-separated lines instead of a table.")
]
JsonFile: TypeAlias = Annotated[Path | None, Parameter(name="--json", help="Write the result as JSON to this file.")]
Settings: TypeAlias = Annotated[list[str] | None, Parameter(name="--set", negative=(), consume_multiple=False)]


def api_timeout_ms() -> int:
    """How long a command waits for an answer: the environment variable, or else the default."""
    given = os.environ.get(TIMEOUT_VARIABLE) or str(API_TIMEOUT_MS)
    if not given.isdecimal() or not 1 <= int(given) <= INT32:
        raise UsageError(f"{TIMEOUT_VARIABLE} is {given!r}, and must be a number of milliseconds from 1 to {INT32}")
    return int(given)


def pairs_of(option: str, settings: Sequence[str] | None, example: str) -> dict[str, str]:
    """The ``key=value`` pairs of an option. Raises ``UsageError`` for a pair without ``=`` or without a key."""
    parsed = {}
    for setting in settings or []:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise UsageError(f"{option} {setting}: expected key=value, e.g. {option} {example}")
        parsed[key] = value
    return parsed


def client_settings(settings: Sequence[str] | None) -> dict[str, Any]:
    """The pairs of ``--set`` as client configs: dots in Kafka's names become underscores."""
    pairs = pairs_of("--set", settings, "compression_type=zstd")
    return {key.replace(".", "_"): value for key, value in pairs.items()}
