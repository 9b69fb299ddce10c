"""Output of ``anabranch audit`` to a terminal, and to a pipe. The audit itself is a fake."""

from __future__ import annotations

import contextlib
import os
import pty
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the audit needs the extra [audit]")
pytest.importorskip("pyspark", reason="the audit needs the extra [audit]")

from anabranch.audit import run
from anabranch.audit.class_archive import NO_ARCHIVE, ClassArchive, archive_of_user
from anabranch.audit.progress import AuditProgress
from anabranch.audit.report import AuditReport, Check, Violation
from anabranch.cli.audit import audit
from anabranch.command_error import CommandError
from tests.support.audit.samples import write_sample

HEADINGS = ("check", "looked at", "outcome")
REPORT = AuditReport(
    directory="d", topics=["t"], partitions=1, segments=1, batches=2, records=3, bytes=4, epochs=[], hot_keys=[],
    checks=[Check("crc", 2, 1, [Violation("t", 0, 7, "t-0/0.log", 61, "is wrong")]), Check("key order", 3)],
)  # fmt: skip


@pytest.fixture
def progresses(monkeypatch: pytest.MonkeyPatch) -> list[AuditProgress | None]:
    progresses: list[AuditProgress | None] = []

    def run_audit(directory: Path, *, progress: AuditProgress | None, **_: Any) -> AuditReport:
        progresses.append(progress)
        if progress is not None:
            progress.begin("starting Spark")
            progress.begin("reading")
            progress.tasks(3, 7)
        return REPORT

    monkeypatch.setattr(run, "run_audit", run_audit)
    return progresses


class Terminal:
    """A pseudoterminal that replaces standard output and error."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        self._saved = os.dup(2)
        os.dup2(theirs, 2)
        os.close(theirs)
        self.stream = os.fdopen(2, "w", closefd=False)

    def until(self, text: str) -> str:
        """Return the output up to ``text``, or until ten seconds pass without output."""
        self.stream.flush()
        drawn = b""
        while text.encode() not in drawn and select.select([self._ours], [], [], 10)[0]:
            drawn += os.read(self._ours, 1 << 16)
        return drawn.decode()

    def close(self) -> None:
        os.dup2(self._saved, 2)
        os.close(self._saved)
        os.close(self._ours)


@contextlib.contextmanager
def on_terminal() -> Iterator[Terminal]:
    """Put a terminal in place during a test. A fixture cannot do this: pytest resets standard error after fixtures."""
    terminal = Terminal()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (("TERM", "xterm"), ("COLUMNS", "120")):
                patch.setenv(name, value)
            patch.setattr("sys.stdout", terminal.stream)
            patch.setattr("sys.stderr", terminal.stream)
            yield terminal
    finally:
        terminal.close()


def test_a_terminal_has_a_line_for_each_part_and_headings(progresses: list) -> None:
    with on_terminal() as terminal:
        assert audit(Path("d")) == 1
        drawn = terminal.until("could be decided")
    assert drawn.index("starting Spark") < drawn.index("reading") < drawn.index("looked at") < drawn.index("Violations")
    assert all(heading in drawn for heading in HEADINGS)
    assert "3/7" in drawn
    last = drawn.rsplit("starting Spark", 1)[1]
    assert last.count("0:00:0") == 2, "each line stays, with its time"


def test_progress_is_drawn_while_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def run_audit(directory: Path, *, progress: AuditProgress, **_: Any) -> AuditReport:
        with run._captured_stderr():
            progress.begin("starting Spark")
            drawn.append(terminal.until("starting Spark"))
        return REPORT

    monkeypatch.setattr(run, "run_audit", run_audit)
    with on_terminal() as terminal:
        audit(Path("d"))
    assert "starting Spark" in drawn[0]


def test_a_pipe_gets_neither_progress_nor_headings(progresses: list, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(Path("d")) == 1
    assert progresses == [None]
    printed, drawn = capsys.readouterr()
    assert drawn == ""
    lines = printed.splitlines()
    assert lines[0] == "1 segment file, 4 bytes, 2 batches, 3 records"
    assert [line.split()[0] for line in lines[1:3]] == ["crc", "key"]
    assert "Violations" not in printed and "looked at" not in printed


@pytest.mark.parametrize(
    ("options", "is_used"), [({}, True), ({"class_archive": False}, False), ({"master": "spark://host:1"}, False)]
)
def test_a_local_audit_uses_the_users_archive_of_classes_unless_it_is_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], is_used: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_sample(tmp_path / "export")
    given = []

    def spark_session(*_: Any, classes: ClassArchive, **__: Any) -> None:
        given.append(classes)
        raise RuntimeError("no Spark here")

    monkeypatch.setattr(run, "spark_session", spark_session)
    with pytest.raises(CommandError, match="no Spark here"):
        audit(tmp_path / "export", **options)
    assert given == [archive_of_user() if is_used else NO_ARCHIVE]
