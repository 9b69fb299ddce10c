"""Other projects' programs from Maven Central, fetched once and kept in ``.cache``."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

CACHE = Path(__file__).resolve().parents[1] / ".cache"
DEADLINE_S = 600


class PeerUnavailable(Exception):
    """Another project's program is not available here; the message names the missing part."""


def resolved(directory: Path, what: str, *arguments: str) -> Path:
    """Return ``directory`` once Maven has copied ``what`` into it with these arguments, now or in an earlier run.

    Raises ``PeerUnavailable``.
    """
    complete = directory / ".complete"
    if complete.exists():
        return directory
    with _lock():
        if not complete.exists():
            _run(directory, what, arguments)
            complete.touch()
    return directory


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """Let one process at a time run Maven: two would write the same files of its local repository, and one may fail."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "maven.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(directory: Path, what: str, arguments: tuple[str, ...]) -> None:
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise PeerUnavailable(f"{program} is not installed; {what} comes through Maven")
    directory.mkdir(parents=True, exist_ok=True)
    command = ["mvn", "-q", "-B", *arguments, f"-DoutputDirectory={directory}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"Maven did not resolve {what} within {DEADLINE_S} s") from None
    if done.returncode != 0:
        reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), "no reason given")
        raise PeerUnavailable(f"Maven could not resolve {what}: {reason.strip()[:300]}")
