"""The clients' log lines, as a command shows them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _LineHandler(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(self.format(record))


@contextmanager
def warnings_shown(show: Callable[[str], None] | None = None) -> Iterator[None]:
    """Pass each warning of the clients to ``show``, as one line in the format of this command's errors.

    By default the warnings are written to standard error.
    """
    logger = logging.getLogger("anabranch")
    handler = logging.StreamHandler(sys.stderr) if show is None else _LineHandler(show)
    handler.setFormatter(logging.Formatter("anabranch: %(message)s"))
    handler.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
