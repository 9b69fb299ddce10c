"""The release of this software."""

from __future__ import annotations

import platform
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version

SOFTWARE_NAME = "anabranch"
_REFUSED = re.compile(r"[^a-zA-Z0-9.-]")


@cache
def software_version() -> str:
    """The installed version; the build took it from the git tag (PEP 440)."""
    try:
        return version(SOFTWARE_NAME)
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"


@cache
def sent_version() -> str:
    """The version as ApiVersions requests state it."""
    return accepted(software_version())


def accepted(version: str) -> str:
    """A version in the form that brokers accept: the ``+`` before a commit is none of KIP-511's characters."""
    return _REFUSED.sub("-", version)


def describe_release() -> str:
    """The version and the interpreter: ``0.1.0 (CPython 3.11.2)``."""
    return f"{software_version()} ({platform.python_implementation()} {platform.python_version()})"
