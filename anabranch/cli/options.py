"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter, Token

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def whole(_type: Any, tokens: Sequence[Token]) -> int:
    """A whole number; by itself cyclopts rounds a fraction."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


Int: TypeAlias = Annotated[int, Parameter(converter=whole)]
Bootstrap: TypeAlias = Annotated[
    str,
    Parameter(name=["--bootstrap-server", "-b"], env_var="ANABRANCH_BOOTSTRAP_SERVER", help="Brokers, host:port,..."),
]
JsonFlag: TypeAlias = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON instead of a table.")]
JsonFile: TypeAlias = Annotated[Path | None, Parameter(name="--json", help="Write the result as JSON to this file.")]
Settings: TypeAlias = Annotated[
    list[str] | None,
    Parameter(name="--set", negative=(), consume_multiple=False, help="key=value; may be given many times."),
]
