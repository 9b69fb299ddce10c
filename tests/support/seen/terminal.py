"""Runs a program on a terminal and returns its output."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_on_terminal(
    command: Sequence[str], environment: Mapping[str, str], *, stdout: int | None = None, term: str = "xterm"
) -> tuple[int, str, str]:
    """The exit status, the terminal's content, and the output to ``stdout`` if ``stdout`` is a pipe."""
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


def heed_sigint() -> None:
    """Restore the action of SIGINT in a new process: a shell starts its background processes with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt_when_shown(
    command: Sequence[str], environment: Mapping[str, str], directory: Path, shows: str, deadline_s: float
) -> tuple[int, str]:
    """The exit status and the output of a program that gets Ctrl-C once its output matches ``shows``."""
    ours, theirs = pty.openpty()
    env = {**environment, "TERM": "dumb", "COLUMNS": "200"}
    running = subprocess.Popen(
        command, stdout=theirs, stderr=theirs, env=env, cwd=directory, preexec_fn=heed_sigint, start_new_session=True
    )
    os.close(theirs)
    deadline, drawn, is_interrupted = time.monotonic() + deadline_s, b"", False
    try:
        with contextlib.suppress(OSError):  # a terminal reports a closed peer by an OSError
            while select.select([ours], [], [], max(0, deadline - time.monotonic()))[0]:
                drawn += os.read(ours, 1 << 16)
                if not is_interrupted and re.search(shows, drawn.decode(errors="replace")):
                    is_interrupted = True
                    os.killpg(running.pid, signal.SIGINT)
        assert is_interrupted, f"does not show {shows!r}: {drawn.decode(errors='replace')}"
        return running.wait(deadline_s), drawn.decode(errors="replace")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        os.close(ours)
