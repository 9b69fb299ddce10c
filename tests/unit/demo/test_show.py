"""The demo's output at its end."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from anabranch.cli.demo import has_screen, show, spark_text
from anabranch.demo.hand_over import Percentiles
from anabranch.demo.resizing import Done
from anabranch.demo.run import DemoResult
from anabranch.demo.verify import RunVerdict
from anabranch.export.run import ExportReport

SCREEN = (80, 25)
TOOK = Percentiles(1_000, 12.5, 101.25)


def audit(**statuses: str) -> dict[str, Any]:
    checks = [{"name": name, "status": status, "violations": []} for name, status in statuses.items()]
    return {"passed": "violated" not in statuses.values(), "checks": checks}


def shown(**parts: Any) -> list[str]:
    steps = [Done(before, after, 0, 0, 0.2, 2 if (before, after) == (9, 6) else None) for before, after in STEPS]
    result = DemoResult(
        **{
            "verdict": RunVerdict(events=101_229, keys=10_101),
            "control": RunVerdict(events=101_229, keys=10_101, out_of_order=122, wrong_states=23_574),
            "control_out_of_order_growing": 86,
            "steps": steps,
            "keys_moved": 20_123,
            "hand_over_growing": TOOK,
            "hand_over_shrinking": TOOK,
            "hand_over_killed": TOOK,
            "produce_s": 25.1,
            "paused_s": 5.5,
            "deliver_s": 25.3,
            "exported": ExportReport("file-changes", "anabranch-demo/export", 13, 45, 10_334_027, 45, 10_334_027, 0, 1),
            "drained_s": 2.7,
            "audit": audit(**{"crc": "passed", "key order": "passed", "replicas": "unknown"}),
            **parts,
        }
    )
    out = io.StringIO()
    show(result, Path("anabranch-demo"), Console(file=out, width=SCREEN[0]))
    return [line.rstrip() for line in out.getvalue().splitlines()]


STEPS = [(4, 6), (6, 9), (9, 6), (6, 4), (4, 8), (8, 4)]


def test_the_result_fits_on_one_screen() -> None:
    lines = shown()
    assert "PASS" in lines and len(lines) < SCREEN[1]
    assert "anabranch-demo/audit.html" in lines[-1]


def test_a_violation_on_either_side_is_shown_as_a_failure() -> None:
    lines = shown(verdict=RunVerdict(events=3, keys=1, lost=1, examples=["lost: event 2"]))
    assert "FAIL" in lines and "lost: event 2" in lines
    lines = shown(audit=audit(**{"crc": "violated", "key order": "passed"}))
    assert "FAIL" in lines and any(line.endswith("2 of 2 checks decided, 1 passed, violated: crc") for line in lines)


def test_an_unknown_check_is_not_counted_as_decided() -> None:
    assert spark_text(audit(a="passed", b="unknown", c="unknown")) == "1 of 3 checks decided, 1 passed"


@pytest.mark.parametrize("key", ["DISPLAY", "WAYLAND_DISPLAY"])
def test_a_browser_is_opened_only_on_a_screen(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a screen, Python opens a browser in the terminal, which covers the demo and takes the demo's Ctrl-C."""
    monkeypatch.setattr(sys, "platform", "linux")
    assert has_screen({key: ":0"})
    assert not has_screen({key: ""}) and not has_screen({"BROWSER": "lynx"})
    monkeypatch.setattr(sys, "platform", "darwin")
    assert has_screen({})
