"""The demo from its command line, and the audit of its export after one record is edited."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.cli.own_command import this_command
from anabranch.protocol.records import iter_batches
from tests.support.install import only_extras
from tests.support.seen.cli_schema import valid_json
from tests.support.seen.page_blocks import join_lines

pytestmark = pytest.mark.integration

README = Path(__file__).resolve().parents[2] / "README.md"
EVENTS = 8_000
SECONDS = 10
"""Shorter than a resize with a killed broker takes, so that the stream has to wait for the resize."""


def anabranch(
    *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None, timeout_s: float = 280
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anabranch.cli.main", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s)


def test_the_demo_passes_and_the_audit_names_an_edited_record(tmp_path: Path) -> None:
    """The demo runs with only the packages that ``make demo`` installs."""
    env = only_extras.environment(tmp_path / "hiding")
    directory, result_file = tmp_path / "anabranch-demo", tmp_path / "result.json"
    sizes = ["--events", str(EVENTS), "--seconds", str(SECONDS)]
    done = anabranch("demo", *sizes, "--dir", str(directory), "--json", str(result_file), env=env)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "PASS" in done.stdout
    result = valid_json("demo", result_file.read_text())
    assert (result["passed"], result["violations"]) == (True, 0)
    assert (result["delivered"]["events"], result["control"]["events"], result["audit"]["records"]) == (EVENTS,) * 3
    assert result["partitions"] == [4, 6, 9, 6, 4, 8, 4]
    assert [resize["killed"] is not None for resize in result["resizes"]] == [False, False, True, False, False, False]
    assert result["keys_moved"] > 0
    for hand_over in ("hand_over_growing", "hand_over_shrinking", "hand_over_broker_killed"):
        took = result[hand_over]
        assert took["count"] > 0 and 0 < took["p50_ms"] <= took["p99_ms"], f"{hand_over}: {took}"
    assert result["control_violations"] > 0, "the control kept the order too, so the demo shows no difference"
    assert result["audit"]["passed"] is True
    checks = {check["name"]: check for check in result["audit"]["checks"]}
    for name in ("key order", "placement", "duplicates"):
        assert (checks[name]["status"], checks[name]["counted"]) == ("passed", EVENTS)
    assert result["drained_seconds"] is not None
    rows = {line.split("  ")[0]: line.split()[-2:] for line in done.stdout.splitlines() if line.strip()}
    assert rows["violations"] == ["0", f"{result['control_violations']:,}"]
    decided = [check for check in checks.values() if check["status"] != "unknown"]
    assert f"{len(decided)} of {len(checks)} checks decided, {len(decided)} passed" in done.stdout

    page = (directory / "audit.html").read_text()
    assert "4 → 6 → 9 → 6 → 4 → 8 → 4" in page and "Every key is in order" in page
    page_line, _, command = done.stdout.splitlines()[-1].partition("; live, in the console: ")
    assert page_line == f"Every split and merge: {directory / 'audit.html'}"
    assert command == f"{this_command()} demo --watch", "the demo was started from this directory"

    segment = max((directory / "export").rglob("*.log"), key=lambda path: path.stat().st_size)
    data = bytearray(segment.read_bytes())
    batch = next(iter_batches(data))
    record = batch.records()[0]
    at = data.index(record.value or b"")
    data[at] ^= 0x01
    segment.write_bytes(data)
    report_file = tmp_path / "audit.json"
    command = re.search(
        r"^\.venv/bin/anabranch (audit anabranch-demo/export .*)$", join_lines(README.read_text()), re.MULTILINE
    )
    assert command is not None
    # The archive of classes would cost more than the audit; tests/integration/test_class_archive.py writes one.
    options = ["--json", str(report_file), "--no-class-archive"]
    audited = anabranch(*shlex.split(command[1]), *options, cwd=tmp_path, env=env)
    assert (audited.returncode, audited.stderr) == (1, "")
    assert "FAIL" in audited.stdout
    failed = {
        check["name"]: check for check in json.loads(report_file.read_text())["checks"] if check["status"] == "violated"
    }
    offender = failed["crc"]["offenders"][0]
    assert offender["segment"].endswith(f"{segment.parent.name}/{segment.name}")
    assert offender["offset"] == record.offset
    assert segment.name in audited.stdout
    page = (tmp_path / "audit.html").read_text()
    assert "2 checks found violations: segment files, crc" in page and f"{segment.parent.name}/{segment.name}" in page


def test_a_stream_of_zero_seconds_is_refused(tmp_path: Path) -> None:
    done = anabranch("demo", "--seconds", "0", "--dir", str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "anabranch: --seconds 0: must be more than 0\n")


def test_a_directory_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = anabranch("demo", "--dir", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert (tmp_path / "mine").read_text() == "precious"
