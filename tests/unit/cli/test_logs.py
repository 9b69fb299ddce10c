"""The clients' warnings that a command prints."""

from __future__ import annotations

import logging

import pytest

from anabranch.cli import progress
from anabranch.cli.logs import warnings_shown
from anabranch.client.net.metadata import BEFORE_CONTACT


def test_an_outage_from_the_start_is_shown_while_the_command_waits_and_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error with which the command ends says the same."""
    waiting: list[str] = []
    monkeypatch.setattr(progress, "update", waiting.append)
    log = logging.getLogger("anabranch.client.net.metadata")
    with warnings_shown():
        log.warning("no broker answers", extra={BEFORE_CONTACT: True})
        log.warning("no broker answers any more", extra={BEFORE_CONTACT: False})
    assert (waiting, capsys.readouterr().err) == (["no broker answers"], "anabranch: no broker answers any more\n")
