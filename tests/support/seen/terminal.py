"""What a program writes to a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from collections.abc import Mapping, Sequence


def run_on_terminal(
    command: Sequence[str], environment: Mapping[str, str], *, stdout: int | None = None, term: str = "xterm"
) -> tuple[int, str, str]:
    """The exit status, what was drawn, and what went to ``stdout`` where that is a pipe."""
    ours, theirs = pty.openpty()
    drawn = b""
    env = {**environment, "TERM": term, "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=theirs if stdout is None else stdout, stderr=theirs, env=env) as running:
        os.close(theirs)
        with contextlib.suppress(OSError):  # how a terminal says that the other side is closed
            while chunk := os.read(ours, 1 << 16):
                drawn += chunk
        printed, _ = running.communicate()
    os.close(ours)
    return running.returncode, drawn.decode(), (printed or b"").decode()
