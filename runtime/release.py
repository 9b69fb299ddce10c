"""Which release of this software runs."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

SOFTWARE_NAME = "anabranch"


@cache
def software_version() -> str:
    """The version that was installed, as pyproject.toml has it."""
    try:
        return version(SOFTWARE_NAME)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
