"""A command that SIGINT ends while no broker answers."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.seen.terminal import heed_sigint

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("arguments", [("topics", "list"), ("groups", "describe", "g"), ("consume", "t"), ("top",)])
def test_an_interrupted_command_prints_nothing_more(arguments: tuple[str, ...]) -> None:
    """No broker listens at the address: the first warning shows that the command waits."""
    line = [sys.executable, "-m", "anabranch.cli.main", *arguments, "-b", "127.0.0.1:1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, **pipes, text=True, preexec_fn=heed_sigint) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("anabranch: no broker answers at 127.0.0.1:1")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == ""
