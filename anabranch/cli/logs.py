"""What the clients log, as a command shows it."""

from __future__ import annotations

import logging
import sys


def show_warnings() -> None:
    """Print the warnings of the clients on standard error, each as one line like this command's own errors."""
    logger = logging.getLogger("anabranch")
    if logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("anabranch: %(message)s"))
    handler.setLevel(logging.WARNING)
    logger.addHandler(handler)
    logger.propagate = False
