"""What the clients log, as a command shows it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Print the warnings of the clients on standard error, each as one line like this command's own errors."""
    logger = logging.getLogger("anabranch")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("anabranch: %(message)s"))
    handler.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
