"""Wrong usage: exit status 2 and a sentence, before a broker is asked anything."""

from __future__ import annotations

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
]


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_usage_has_status_2_and_a_sentence(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.err and "Error:" not in said.out + said.err
