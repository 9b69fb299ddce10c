"""The display while a command waits, and the clients' warnings."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console

from anabranch.cli import export, progress
from anabranch.cli.logs import warnings_shown
from anabranch.client.net.metadata import BEFORE_CONTACT
from anabranch.command_error import CommandError
from anabranch.export.run import NoProgress


class Screen(io.StringIO):
    """The content of a terminal; ``wrote`` is set when anything was written."""

    def __init__(self) -> None:
        super().__init__()
        self.wrote = threading.Event()

    def write(self, text: str) -> int:
        self.wrote.set()
        return super().write(text)


def test_a_terminal_shows_the_reason_for_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    screen = Screen()
    with progress.waiting("waiting for h:1", Console(file=screen, force_terminal=True)):
        progress.update("t: partitions 4, 5 drain")
        assert screen.wrote.wait(60)
    assert "t: partitions 4, 5 drain" in screen.getvalue()
    progress.update("no command waits, so this text is not shown")


def test_a_short_wait_and_a_pipe_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, before = Screen(), set(threading.enumerate())
    with progress.waiting("waiting for h:1", Console(file=screen, force_terminal=True)):
        (timer,) = set(threading.enumerate()) - before
    timer.join()  # the display does not begin after the end of the wait
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    piped, before = Screen(), set(threading.enumerate())
    with progress.waiting("waiting for h:1", Console(file=piped, force_terminal=False)):
        assert set(threading.enumerate()) <= before
    assert "waiting" not in screen.getvalue() and piped.getvalue() == ""


def test_export_looks_for_the_topic_before_it_shows_its_own_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two displays at once would overwrite one another."""
    shown: list[str] = []

    @contextmanager
    def bars() -> Iterator[NoProgress]:
        shown.append("bars")
        yield NoProgress()

    def no_topic(server: str, call: object) -> tuple[list[str], list[str]]:
        shown.append("look")
        return [], ["t"]

    monkeypatch.setattr(export, "progress_bar", bars)
    monkeypatch.setattr(export, "with_admin", no_topic)
    with pytest.raises(CommandError, match="t does not exist"):
        export.export(topic="t", to="there")
    assert shown == ["look"]


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
