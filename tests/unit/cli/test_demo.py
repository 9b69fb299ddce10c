"""``anabranch demo``: what it prints besides its story."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from anabranch.cli import demo


def test_warnings_of_its_own_clients_go_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(*_: object) -> bool:
        logging.getLogger("anabranch.client.net.metadata").warning("no broker answers")
        return True

    monkeypatch.setattr(demo, "_run", run)
    assert demo.demo(dir=tmp_path / "demo") == 0
    assert capsys.readouterr().err == ""
    assert (tmp_path / "demo" / demo.CLIENT_LOG).read_text() == "anabranch: no broker answers\n"
