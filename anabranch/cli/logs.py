"""What the clients log, as a command shows it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Told(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(self.format(record))


@contextmanager
def warnings_shown(show: Callable[[str], None] | None = None) -> Iterator[None]:
    """Give the warnings of the clients to ``show``, each as one line like this command's own errors.

    None: to standard error.
    """
    logger = logging.getLogger("anabranch")
    handler = logging.StreamHandler(sys.stderr) if show is None else _Told(show)
    handler.setFormatter(logging.Formatter("anabranch: %(message)s"))
    handler.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
