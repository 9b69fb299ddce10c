"""The rules that a test switches off: ``python -m tests.support.mutation_list`` (``make gen``) writes their list.

A test with the mark ``mutation`` switches a rule off, or breaks a history, and expects that a check finds it. The list
shows in the diff of a commit which of them it adds or takes away. ``make mutations`` runs them all.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests" / "mutations.txt"
MARK = "mark.mutation"
"""The files with this text are looked at."""


def mutations() -> list[str]:
    """The ids of the tests, sorted."""
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if MARK in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-m", "mutation", "--collect-only", *files]
    command += ["-p", "no:cacheprovider", "-o", "addopts=--strict-markers --import-mode=importlib -q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"pytest could not collect the tests: {done.stdout}{done.stderr}")
    return sorted({line for line in done.stdout.splitlines() if "::" in line})


def text() -> str:
    found = mutations()
    return "".join(f"{line}\n" for line in found)


if __name__ == "__main__":
    LIST.write_text(text())
