"""Some hundred hostile frames. ``make fuzz`` sends them for any time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.fuzz import run
from tests.fuzz.run import fuzz

pytestmark = pytest.mark.integration

FRAMES = 150
SEED = 5


def test_hostile_frames_neither_stop_a_process_nor_take_much_memory(tmp_path: Path) -> None:
    result = trio.run(fuzz, tmp_path / "cluster", SEED, lambda count: count < FRAMES)
    print(result.summary())
    assert not result.problems, f"seed {SEED}:\n{result.summary()}"
    assert result.frames.total() == 2 * FRAMES
    assert result.frames["answered"] and result.frames["closed"]


def test_failed_background_work_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of the log that every hostile run has stands for the failure."""
    monkeypatch.setattr(run, "FAILED", "connection.rejected")
    result = trio.run(fuzz, tmp_path / "cluster", SEED, lambda count: count < FRAMES)
    assert any("connection.rejected" in problem for problem in result.problems)
    assert result.frames.total() < 2 * FRAMES, "the run ends with the frame that caused it"
