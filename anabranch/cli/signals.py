"""Waiting for the signals that end a server."""

from __future__ import annotations

import signal


def wait_for_stop_signal() -> None:
    """Block until SIGINT or SIGTERM comes."""
    numbers = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        signal.sigwait(numbers)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
