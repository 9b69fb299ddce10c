"""The clients' log lines, as a command shows them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anabranch.cli import progress
from anabranch.client.net.metadata import BEFORE_CONTACT


class _LineHandler(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(self.format(record))


def _is_no_outage(record: logging.LogRecord) -> bool:
    """Whether to print the warning. An outage from the start is only shown while the command waits."""
    if not getattr(record, BEFORE_CONTACT, False):
        return True
    progress.update(record.getMessage())
    return False


@contextmanager
def warnings_shown(show: Callable[[str], None] | None = None) -> Iterator[None]:
    """Pass each warning of the clients to ``show``, as one line in the format of this command's errors.

    By default the warnings are written to standard error, except for the warning that no broker has ever answered: the
    error with which the command ends says the same.
    """
    logger = logging.getLogger("anabranch")
    handler = logging.StreamHandler(sys.stderr) if show is None else _LineHandler(show)
    handler.setFormatter(logging.Formatter("anabranch: %(message)s"))
    handler.setLevel(logging.WARNING)
    if show is None:
        handler.addFilter(_is_no_outage)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
