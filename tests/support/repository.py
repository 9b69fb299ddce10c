"""Repositories of git in a test's directory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
_SETTINGS = ("user.name=t", "user.email=t@example.org", "commit.gpgSign=false", "tag.gpgSign=false")


def git(root: Path, *command: str) -> None:
    settings = (word for setting in _SETTINGS for word in ("-c", setting))
    subprocess.run(["git", *settings, *command], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    """Commit the files below ``root``, changed or not."""
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "--message=m")
