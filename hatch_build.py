"""Compile the hot modules with mypyc when a wheel is built; the same sources run uncompiled everywhere else.

``ANABRANCH_COMPILE=1`` asks for it (mypy and setuptools then become build requirements, a failure fails the build),
``0`` forbids it. Without the variable a wheel is compiled when mypy, setuptools and a C compiler happen to be there,
and pure otherwise. Editable installs are always pure.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED_MODULES = (
    "anabranch/protocol/batch_layout.py",
    "anabranch/protocol/records.py",
    "anabranch/protocol/produced_batch.py",
    "anabranch/protocol/batch_builder.py",
    "anabranch/protocol/key_placement.py",
    "anabranch/client/producer/accumulator.py",
    "anabranch/client/producer/partition_queue.py",
    "anabranch/client/producer/placement_while_resized.py",
    "anabranch/client/producer/producer_batch.py",
    "anabranch/client/producer/sent_record.py",
)
# What mypy must see to know the types the compiled modules use, and the packages by which it names a module.
_SOURCES = "anabranch"
_SWITCH = "ANABRANCH_COMPILE"
_REQUIREMENTS = ["mypy>=1.13", "setuptools>=65"]
# The project's own settings do not apply: they name packages that a build environment lacks.
_MYPY_CONFIG = "[mypy]\nignore_missing_imports = True\nfollow_imports = silent\n"


class CompileError(RuntimeError):
    """mypyc or the C compiler failed; the message ends with what it said."""


class CustomBuildHook(BuildHookInterface):
    """Puts the extension modules into a standard wheel next to their sources."""

    def dependencies(self) -> list[str]:
        return _REQUIREMENTS if _switch() == "1" else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version != "standard" or not _wanted():
            return
        self._work = tempfile.TemporaryDirectory(prefix="anabranch-build-")
        try:
            built = compile_modules(Path(self.root), Path(self._work.name))
        except CompileError as error:
            if _switch() == "1":
                raise
            self.app.display_warning(f"building a pure wheel: {error}")
            return
        for path in built:
            build_data["force_include"][str(path)] = path.relative_to(self._work.name).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_work"):
            self._work.cleanup()


def _switch() -> str:
    value = os.environ.get(_SWITCH, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{_SWITCH} is {value!r}, it can be 0, 1 or unset")
    return value


def _wanted() -> bool:
    switch = _switch()
    return switch == "1" or (switch == "" and _can_compile())


def _can_compile() -> bool:
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    has_modules = all(importlib.util.find_spec(name) is not None for name in ("mypyc", "setuptools"))
    return has_modules and shutil.which(compiler) is not None


def compile_modules(root: Path, work: Path) -> list[Path]:
    """Compile ``COMPILED_MODULES`` of the checkout ``root`` in the empty directory ``work``.

    Returns the extension modules; below ``work`` they lie as they must lie in site-packages. Raises CompileError.
    """
    shutil.copytree(root / _SOURCES, work / _SOURCES, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.pyd"))
    (work / "mypy.ini").write_text(_MYPY_CONFIG)
    command = [sys.executable, "-m", "mypyc", "--config-file", "mypy.ini", *COMPILED_MODULES]
    result = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built = [path for path in sorted(work.rglob(f"*{suffix}")) if "build" not in path.relative_to(work).parts]
    if result.returncode != 0 or len(built) < len(COMPILED_MODULES):
        output = (result.stdout + result.stderr).strip().splitlines()[-15:]
        raise CompileError("mypyc failed:\n" + "\n".join(output))
    return built
