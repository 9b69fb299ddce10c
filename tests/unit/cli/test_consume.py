"""Checks of ``consume`` before its first request to a broker."""

from __future__ import annotations

import pytest

from anabranch.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "name a topic"),
        (("t", "--offset", "1"), "--offset needs --partition"),
        (("t", "--group", "g", "--tail", "1"), "do not go with --group"),
        (("t", "--tail", "1", "--from-beginning"), "give only one of"),
        (("t", "--tail", "-1"), "-1 is not from 0 to"),
        (("t", "--from-timestamp", "yesterday"), "--from-timestamp yesterday: expected a time"),
        (("t", "--format", "xml"), "--format xml is neither"),
        (("t", "--format", "%q"), "%q is not one of"),
        (("t", "--json", "--format", "tsv"), "give --json or --format tsv, not both"),
        (("t", "--set", "max_poll_records=no"), "max_poll_records"),
    ],
)
def test_wrong_usage_is_reported_without_a_cluster(
    arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["consume", *arguments])
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err
