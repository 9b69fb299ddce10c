"""Shows the reason for a command's wait on a terminal, when the wait is long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

AFTER_S = 2.0


class Waiting:
    """A line on standard error that appears after ``AFTER_S`` and is removed at the end; only on a terminal."""

    def __init__(self, text: str, console: Console) -> None:
        self._spinner = Spinner("dots", text)
        self._live = Live(self._spinner, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._lock = threading.Lock()
        self._is_over = not console.is_terminal
        self._timer = threading.Timer(AFTER_S, self._begin)
        self._timer.daemon = True

    def start(self) -> None:
        if not self._is_over:
            self._timer.start()

    def _begin(self) -> None:
        with self._lock:
            if not self._is_over:
                self._live.start()

    def update(self, text: str) -> None:
        """Show a new reason for the wait."""
        self._spinner.update(text=text)

    def end(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            self._live.stop()


_current: list[Waiting] = []


def update(text: str) -> None:
    """Show a new reason for the wait, if a line is shown."""
    if _current:
        _current[-1].update(text)


@contextmanager
def waiting(text: str, console: Console | None = None) -> Iterator[None]:
    """Show ``text``, or the last text given to ``update``, while the block runs."""
    line = Waiting(text, console or Console(stderr=True))
    _current.append(line)
    line.start()
    try:
        yield
    finally:
        _current.pop()
        line.end()
