"""`anabranch features`: the choice of levels, and its question (KIP-584). Golden pages have what the commands print."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from anabranch.cli import feature_changes as plan
from anabranch.command_error import CommandError
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_admin import FakeAdmin
from tests.unit.cli.test_pages import KNOWN


def test_upgrade_all_raises_and_adds_and_downgrade_all_lowers_and_deletes() -> None:
    release = {"groups": 3, "schema": 1}
    assert plan.upgrade_all(KNOWN, release) == [plan.LevelChange("groups", 2, 3), plan.LevelChange("schema", None, 1)]
    assert plan.downgrade_all(KNOWN, release) == [plan.LevelChange("gone", 4, None)]
    assert plan.downgrade_all(KNOWN, {"groups": 1, "gone": 4}) == [plan.LevelChange("groups", 2, 1)]


@pytest.mark.parametrize("entry", ["groups", "groups=", "=1", "groups=0", "groups=x", "groups=40000"])
def test_a_feature_level_is_a_number_of_at_least_1(entry: str) -> None:
    with pytest.raises(CommandError, match="FEATURE=LEVEL"):
        plan.parse_levels([entry], "=")


def answering(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Put a user at a terminal who gives this answer to each question."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _prompt: answer)


@pytest.mark.parametrize("answer", ["", "y", "Yes"])
def test_a_downgrade_is_confirmed_first(run: Run, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    answering(monkeypatch, answer)
    admin = FakeAdmin(features=KNOWN)
    status, out, _ = run(admin, "features", "downgrade", "--feature", "groups=1")
    assert (status, admin.calls) == (0, [("features", {"groups": "1 SAFE_DOWNGRADE"}, False)])
    assert out.splitlines() == [
        "Please confirm before downgrading the following features:",
        "1. groups from v2 (existing) to v1 (new)",
        "[Downgrade] Feature: groups\tExistingFinalizedMaxVersion: 2\tNewFinalizedMaxVersion: 1\tResult: OK",
    ]


@pytest.mark.parametrize("command", ["downgrade --feature groups=1", "downgrade --all", "disable --feature groups"])
def test_no_downgrade_or_deletion_happens_without_confirmation(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    answering(monkeypatch, "n")
    admin = FakeAdmin(features=KNOWN)
    status, _, err = run(admin, "features", *command.split())
    assert (status, err, admin.calls) == (1, "anabranch: not confirmed: nothing was changed\n", [])


@pytest.mark.parametrize(
    "command",
    ["downgrade --feature groups=1 --yes", "downgrade --feature groups=1 --dry-run", "upgrade --feature groups=3"],
)
def test_yes_and_a_dry_run_ask_no_question_and_an_upgrade_needs_none(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    answering(monkeypatch, "n")
    admin = FakeAdmin(features=KNOWN)
    assert run(admin, "features", *command.split())[0] == 0
    assert len(admin.calls) == 1


@pytest.mark.parametrize("line", ["describe --dry-run", "upgrade --feature a=1 --unsafe", "--unsafe --downgrade-all"])
def test_an_option_that_kafkas_tool_does_not_have_is_refused(run: Run, line: str) -> None:
    admin = FakeAdmin(features=KNOWN)
    assert run(admin, "kafka-features", "--bootstrap-server", "b:1", *line.split())[0] == 2
    assert admin.calls == []


def test_a_command_takes_the_server_and_a_config_file_before_and_after_it(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("request.timeout.ms=5000\nsecurity.protocol=PLAINTEXT\n")
    admin = FakeAdmin(features=KNOWN)
    assert run(admin, "kafka-features", "update", "--bootstrap-server", "b:1", "--upgrade", "groups:3")[0] == 0
    given = ("--bootstrap-server", "b:1", "--command-config", str(config), "describe")
    assert run(admin, "kafka-features", *given)[0] == 0
    assert len(admin.calls) == 1
    config.write_text("security.protocol=SSL\n")
    status, _, err = run(admin, "kafka-features", *given)
    assert status == 2 and "security.protocol=SSL, but no listener has security" in err
