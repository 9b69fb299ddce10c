"""The command that starts this program again from the same shell."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "anabranch"


def this_command() -> str:
    """The text to type for ``anabranch`` in the shell that this process was started from."""
    return own_command(shutil.which(NAME), sys.executable, os.getcwd())


def own_command(found: str | None, executable: str, directory: str) -> str:
    """The text to type for ``anabranch``.

    ``found`` is the command of that name on the PATH, ``executable`` the Python that runs this program, ``directory``
    the shell's working directory. A command of the same name from another installation is not this program.
    """
    script = Path(executable).parent / NAME
    if found is not None and Path(found).resolve() == script.resolve():
        return NAME
    if not script.exists():
        return f"{shlex.quote(executable)} -m anabranch.cli.main"
    if script.is_relative_to(directory):
        script = script.relative_to(directory)
    return shlex.quote(str(script))
