"""A command that SIGINT ends while no broker answers."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from tests.support.seen.terminal import heed_sigint

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("arguments", [("topics", "list"), ("groups", "describe", "g"), ("consume", "t"), ("top",)])
def test_an_interrupted_command_prints_nothing_more(arguments: tuple[str, ...]) -> None:
    """The listener never answers: its first connection shows that the command waits."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        line = [sys.executable, "-m", "anabranch.cli.main", *arguments, "-b", f"127.0.0.1:{listener.getsockname()[1]}"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(line, **pipes, text=True, preexec_fn=heed_sigint) as process:
            listener.accept()[0]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert process.stderr is not None
            errors = process.stderr.read().splitlines()
    assert [line for line in errors if "no broker answers" not in line] == []
