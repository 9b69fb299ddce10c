"""Wrong usage: exit status 2 and a sentence, before a broker is asked anything."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from anabranch.cli.main import main

WRONG = [
    ("topics", "creat", "t"),
    ("topics", "create"),
    ("topics", "describe", "--nope"),
    ("topics", "alter", "t"),
    ("topics", "reassign", "t", "--replicas", "99999999999"),
    ("topics", "reassign", "t", "--replicas", "1,-2"),
    ("topics", "elect-leaders", "--partition", "1"),
    ("groups", "describe"),
    ("groups", "delete"),
    ("groups", "reset-offsets", "g", "--topic", "t"),
    ("groups", "reset-offsets", "g", "--topic", "t", "--to-offset", "99999999999999999999"),
    ("groups", "reset-offsets", "g", "--topic", "t", "--to-datetime", "0001-01-01"),
    ("configs", "alter", "topic", "t"),
    ("produce", "t", "--set", "linger_ms=x"),
    ("topics", "list", "-b", "host"),
    ("export", "--topic", "t", "--to", "there", "--log-dir", "x"),
    ("configs", "alter", "broker", "x", "--set", "a=b"),
    ("topics", "create", "\udcff"),
    ("groups", "describe", "g", "-b", "\udcff:1"),
]


@pytest.mark.parametrize("arguments", WRONG, ids=ascii)
def test_wrong_usage_has_status_2_and_a_sentence(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.err and "Error:" not in said.out + said.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((".", "--first", "-1"), "-1 is not from 0"),
        ((".", "--max-decompressed-bytes", "0"), "--max-decompressed-bytes: at least 1"),
        ((".", "--html-rows", "0"), "--html-rows and --html-lanes: at least 1"),
        ((".", "--json", "/nowhere/report.json"), "--json /nowhere/report.json: /nowhere is no directory"),
        ((".", "--html", "/nowhere/page.html"), "--html /nowhere/page.html: /nowhere is no directory"),
        (("s3://bucket/events",), "s3://bucket/events: the audit reads a directory, not a URI"),
    ],
)
def test_an_audit_that_cannot_end_well_is_not_begun(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["audit", *arguments])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("topics", "list"), ("groups", "describe", "g"), ("consume", "t"), ("top",)])
def test_a_command_that_is_interrupted_says_nothing_more(arguments: tuple[str, ...]) -> None:
    """At an address where none answers: the first warning shows that it waits."""
    line = [sys.executable, "-m", "anabranch.cli.main", *arguments, "-b", "127.0.0.1:1"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("anabranch: no broker answers at 127.0.0.1:1")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == ""
