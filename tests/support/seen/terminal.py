"""Runs a program on a terminal and returns its output."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from collections.abc import Mapping, Sequence


def run_on_terminal(
    command: Sequence[str], environment: Mapping[str, str], *, stdout: int | None = None, term: str = "xterm"
) -> tuple[int, str, str]:
    """The exit status, the terminal's content, and the output to ``stdout`` when that is a pipe."""
    ours, theirs = pty.openpty()
    drawn = b""
    env = {**environment, "TERM": term, "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=theirs if stdout is None else stdout, stderr=theirs, env=env) as running:
        os.close(theirs)
        with contextlib.suppress(OSError):  # a terminal reports a closed peer by an OSError
            while chunk := os.read(ours, 1 << 16):
                drawn += chunk
        printed, _ = running.communicate()
    os.close(ours)
    return running.returncode, drawn.decode(), (printed or b"").decode()
