"""Counts the lines of Python that run between two passes of the event loop: work of any kind, but not its time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import trio

_LIBRARIES = "site-packages"
_SAMPLE = 64


class ExecutedLines(trio.abc.Instrument):
    """Counts the lines of this project and of the standard library, and each round of a loop that fits in one line."""

    def __init__(self) -> None:
        self.most = 0
        """The largest number of lines in one pass."""
        self.where = ""
        """The number of lines, and the function that ran most of them."""
        self._count = 0
        self._seen: dict[CodeType, int] = {}
        """How often each function was met, looking at one line of ``_SAMPLE``."""

    def before_io_wait(self, timeout: float) -> None:
        if self._count > self.most:
            self.most = self._count
            code, seen = max(self._seen.items(), key=lambda found: found[1], default=(None, 0))
            self.where = f"{self.most} lines, of which {seen * _SAMPLE} in {code}"
        self._count = 0
        self._seen.clear()

    def _call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        file = frame.f_code.co_filename
        return None if file == __file__ or _LIBRARIES in file else self._line

    def _line(self, frame: FrameType, _event: str, _argument: object) -> Any:
        self._count += 1
        if self._count % _SAMPLE == 0:
            self._seen[frame.f_code] = self._seen.get(frame.f_code, 0) + 1
        return self._line

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count during the block, in this thread."""
        trio.lowlevel.add_instrument(self)
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)
            trio.lowlevel.remove_instrument(self)
