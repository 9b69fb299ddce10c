"""A command that reaches no broker ends with one line, after the time that an environment variable gives."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.cli.main import CLIENTS, FILES, main

COMMANDS = {
    "topics": ["topics", "list"],
    "produce": ["produce", "t"],
    "consume": ["consume", "t"],
    "groups": ["groups", "describe", "g"],
    "features": ["features", "describe"],
    "kafka-features": ["kafka-features", "describe"],
    "cluster": ["cluster"],
    "brokers": ["brokers"],
    "log-dirs": ["log-dirs"],
    "delete-records": ["delete-records", "t", "--partition", "0", "--before-offset", "1"],
    "top": ["top", "--json"],
    "configs": ["configs", "describe", "topic", "t"],
    "export": ["export", "--topic", "t", "--to", "there"],
}
SERVES_WITHOUT_A_BROKER = {"console"}


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is bound, and where nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_every_command_that_asks_a_broker_is_here() -> None:
    asking = {*CLIENTS, *FILES} - SERVES_WITHOUT_A_BROKER - {"dump-log", "audit"}
    assert COMMANDS.keys() == asking


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_a_broker_ends_in_time_with_one_line(
    closed_port: int,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANABRANCH_TIMEOUT_MS", "300")
    monkeypatch.setattr("sys.stdin", io.StringIO("x\n"))
    server = ["--bootstrap-server", f"127.0.0.1:{closed_port}"]
    kafkas = command == "kafka-features"
    with pytest.raises(SystemExit) as ended:
        main([COMMANDS[command][0], *server, *COMMANDS[command][1:]] if kafkas else [*COMMANDS[command], *server])
    assert ended.value.code == 1
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert output.out == ""
    assert line.startswith("anabranch: REQUEST_TIMED_OUT: ") and "within 300 ms: " in line
    assert f"no connection to 127.0.0.1:{closed_port}" in line


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "x", "99999999999"])
def test_a_wrong_time_names_the_variable(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANABRANCH_TIMEOUT_MS", value)
    with pytest.raises(SystemExit) as ended:
        main(["topics", "list"])
    assert ended.value.code == 2
    expected = (
        f"anabranch: ANABRANCH_TIMEOUT_MS is {value!r}, and must be a number of milliseconds from 1 to 2147483647\n"
    )
    assert capsys.readouterr().err == expected
