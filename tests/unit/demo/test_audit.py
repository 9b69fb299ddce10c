"""The audit at the end of the demo."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from anabranch.audit import run as audit_run
from anabranch.demo.run import audit_into

pytestmark = pytest.mark.trio

DEADLINE_S = 20.0


async def test_a_cancelled_audit_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark cannot be interrupted. Ctrl-C would have no effect for up to a minute."""
    began, released = threading.Event(), threading.Event()

    def run_audit(*args: Any, **kwargs: Any) -> None:
        began.set()
        released.wait(DEADLINE_S)
        raise RuntimeError("the audit was waited for")

    result: Any = SimpleNamespace()
    monkeypatch.setattr(audit_run, "run_audit", run_audit)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(audit_into, result, tmp_path, tmp_path / "audit.html")
            await trio.to_thread.run_sync(began.wait)
            nursery.cancel_scope.cancel()
    finally:
        released.set()
