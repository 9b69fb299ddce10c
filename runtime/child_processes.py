"""Child processes that end with their parent."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Make a child end with its parent, also when the parent is killed (Linux). Runs in the child, before exec.

    The signal is sent when the *thread* that forked ends, so only the main thread may use this.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
