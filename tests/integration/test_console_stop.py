"""SIGINT and SIGTERM end ``anabranch console`` soon and without errors, whatever its clients do."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.integration

DEADLINE_S = 60
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
STREAM = b"GET /live?path=/ HTTP/1.1\r\nHost: localhost\r\n\r\n"
FILE = b"GET /static/console.css HTTP/1.1\r\nHost: localhost\r\n\r\n"


def ask_nothing(_client: socket.socket) -> None:
    pass


def keep_the_connection(client: socket.socket) -> None:
    client.sendall(HEALTH)
    assert b"200" in client.recv(4096)


def hold_a_stream(client: socket.socket) -> None:
    client.sendall(STREAM)
    assert b"text/event-stream" in client.recv(4096)


def ask_and_read_nothing(client: socket.socket) -> None:
    """Send requests until the console waits for room in the connection and reads no more."""
    client.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.sendall(FILE * 200_000)


@pytest.mark.parametrize(
    ("behave", "number"),
    [
        (ask_nothing, signal.SIGTERM),
        (ask_nothing, signal.SIGINT),
        (keep_the_connection, signal.SIGINT),
        (hold_a_stream, signal.SIGINT),
        (ask_and_read_nothing, signal.SIGINT),
    ],
)
def test_the_console_ends_soon_after_a_signal(behave: Callable[[socket.socket], None], number: signal.Signals) -> None:
    line = [sys.executable, "-m", "anabranch.cli.main", "console", "-b", "127.0.0.1:1", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found is not None
            with socket.create_connection(("127.0.0.1", int(found[1])), timeout=DEADLINE_S) as client:
                behave(client)
                process.send_signal(number)
                _, errors = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors and "descriptor" not in errors
