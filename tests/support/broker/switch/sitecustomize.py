"""Lets a server of a test run another release: its sources, which a file beside the server's properties names.

``tests/support/broker/releases.py`` puts this folder into ``PYTHONPATH``. A finder of its own is needed: ``python -m``
puts the working directory before every other place.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


class EarlierRelease:
    def __init__(self, sources: str) -> None:
        self._sources = sources

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [self._sources]) if path is None else None


for _word in sys.orig_argv:
    if _word.endswith(".properties") and (_file := Path(f"{_word}.release")).exists():
        sys.meta_path.insert(0, EarlierRelease(_file.read_text()))  # type: ignore[arg-type]
