"""Anabranch as a compiled wheel installs it, for the client processes of the benchmark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD_DEADLINE_S = 600


class NotCompiled(Exception):
    """The wheel could not be compiled here; the message gives the reason."""


def install_compiled(site: Path) -> None:
    """Build a wheel with ``ANABRANCH_COMPILE=1`` and install it below ``site``. Raises ``NotCompiled``."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--target", str(site), str(ROOT)],
        env={**os.environ, "ANABRANCH_COMPILE": "1"},
        capture_output=True,
        text=True,
        timeout=BUILD_DEADLINE_S,
    )
    if done.returncode != 0:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise NotCompiled(output[-1] if output else "pip gave no reason")


def client_environment(site: Path | None) -> dict[str, str]:
    """The environment of a client process that imports Anabranch from ``site``, or from the checkout for None."""
    return dict(os.environ) if site is None else {**os.environ, "PYTHONPATH": str(site)}
