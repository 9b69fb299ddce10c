"""The release of this software."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

SOFTWARE_NAME = "anabranch"


@cache
def software_version() -> str:
    """The installed version, from pyproject.toml."""
    try:
        return version(SOFTWARE_NAME)
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"
