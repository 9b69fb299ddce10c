"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import Parameter

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

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
