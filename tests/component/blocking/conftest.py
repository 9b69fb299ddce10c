"""A fake broker in a thread, for blocking clients and for programs in other processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from tests.unit.client.fake_broker import FakeBroker

_DEADLINE_S = 120.0
Program = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A broker that serves the topic ``t``, with one partition, and ``many``, with four."""
    with start_blocking_portal() as portal:
        served = FakeBroker({"t": 1, "many": 4})
        with portal.wrap_async_context_manager(served.running()):
            yield served


@pytest.fixture
def run_program(broker: FakeBroker, tmp_path: Path) -> Program:
    """Run a program to its end, in a process of its own. ``BOOTSTRAP`` is the address of the broker."""

    def run(program: str) -> subprocess.CompletedProcess[str]:
        text = f"BOOTSTRAP = {broker.address!r}\n{textwrap.dedent(program)}"
        file = tmp_path / "program.py"
        file.write_text(text)
        return subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=_DEADLINE_S)

    return run
