"""Runs command lines against a fake admin client."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch.cli import admin as cli_admin
from anabranch.cli.main import main
from anabranch.view import group_lag
from tests.unit.cli.fake_admin import FakeAdmin

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line against a fake admin client and return exit status, stdout and stderr."""

    def run_command(admin: FakeAdmin, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(cli_admin, "Admin", admin)
        monkeypatch.setattr(group_lag, "LogReader", admin)
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return run_command
