"""Anabranch as a wheel installs it: compiled, for the clients of the benchmark, or of an earlier commit."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD_DEADLINE_S = 600


class NotInstalled(Exception):
    """The wheel could not be built or installed here; the message gives the reason."""


def install(source: Path, site: Path, *, compiled: bool) -> None:
    """Build a wheel of a checkout and install it below ``site``, without dependencies. Raises ``NotInstalled``."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--target", str(site), str(source)],
        env={**os.environ, "ANABRANCH_COMPILE": "1" if compiled else "0"},
        capture_output=True,
        text=True,
        timeout=BUILD_DEADLINE_S,
    )
    if done.returncode != 0:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise NotInstalled(output[-1] if output else "pip gave no reason")


def install_revision(revision: str, site: Path) -> str:
    """Install an earlier commit below ``site``, for the dependencies of this one. Returns its short name.

    Raises ``NotInstalled``, also for a revision that the repository does not have.
    """
    with tempfile.TemporaryDirectory(prefix="anabranch-earlier-") as folder:
        named = subprocess.run(
            ["git", "rev-parse", "--short=8", "--verify", f"{revision}^{{commit}}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if named.returncode != 0:
            raise NotInstalled(f"{revision!r} is no commit of this repository: {named.stderr.strip()}")
        name = named.stdout.strip()
        archive = subprocess.run(["git", "archive", name], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        install(Path(folder), site, compiled=False)
        return name


def client_environment(site: Path | None) -> dict[str, str]:
    """The environment of a process that imports Anabranch from ``site``, or from the checkout for None.

    ``PYTHONSAFEPATH`` keeps the packages of the working directory out, also for the processes that it starts.
    """
    return dict(os.environ) if site is None else {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
