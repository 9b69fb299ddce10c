"""Waiting for the signals that end a server."""

from __future__ import annotations

import os
import signal

from anabranch.cli.exit_status import after_signal


def end_on_sigterm() -> None:
    """Let SIGTERM end this process until its server handles the signal itself.

    Other processes do this by default. The first process of a container does not: without this function it would
    ignore a SIGTERM while it waits for ZooKeeper.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(after_signal(number)))


def wait_for_stop_signal() -> None:
    """Block until SIGINT or SIGTERM comes."""
    numbers = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        signal.sigwait(numbers)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
