"""Makes an environment in which a program finds only the packages that some of our extras install."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OF_MAKE_DEMO = ("local", "audit", "console")
"""The extras of ``make demo`` and ``make up``."""
_WITH_PYTHON = frozenset({"pip", "setuptools"})

_HIDING = '''"""Hides packages from this interpreter and from those that it starts."""

import sys

HIDDEN = frozenset({hidden!r})


class Hiding:
    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else self._finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self._finder, name)


sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
'''


def environment(directory: Path, extras: tuple[str, ...] = OF_MAKE_DEMO) -> dict[str, str]:
    """The environment variables of such a program. Python runs the file in ``directory`` at its start."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sitecustomize.py").write_text(_HIDING.format(hidden=sorted(_hidden(extras))))
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), *([inherited] if inherited else [])])}


def _hidden(extras: tuple[str, ...]) -> set[str]:
    """The importable names of installed packages that ``extras`` do not require."""
    kept = _WITH_PYTHON | _required("anabranch", extras)
    return {
        name
        for name, owners in metadata.packages_distributions().items()
        if not any(canonicalize_name(owner) in kept for owner in owners)
    }


def _required(distribution: str, extras: tuple[str, ...]) -> set[str]:
    """The distribution itself, and all distributions that are required directly or indirectly."""
    found: set[str] = set()
    asked = {(distribution, extra) for extra in ("", *extras)}
    left = list(asked)
    while left:
        name, extra = left.pop()
        found.add(canonicalize_name(name))
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # not needed on this platform
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                new = {(requirement.name, wanted) for wanted in ("", *requirement.extras)} - asked
                asked |= new
                left += new
    return found
