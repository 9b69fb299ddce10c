"""An archive of the loaded classes of Spark's JVM, for a faster next start.

A short audit spends a quarter of its time on loading and checking Spark's classes. HotSpot writes its loaded classes to
a file when it ends, and maps the file when it starts (JEP 350). HotSpot loads the classes from the jars if the sizes or
times of the jars differ from the values in the file.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark

END_TIMEOUT_S = 60.0
"""A JVM that has not written its archive within this time is killed."""
KEPT = 3
"""How many archives of a user are kept: those that were used last. An archive has about 170 MB."""
_NAMED = "spark-classes-"
_SILENT = "-Xlog:disable"
"""Silences HotSpot, which prints a line for each class that it cannot archive."""


@dataclass(frozen=True)
class ClassArchive:
    """An archive at ``path``, for one Java and one PySpark. With ``path`` None no archive is used or written."""

    path: Path | None
    may_write: bool = True
    end_timeout_s: float = END_TIMEOUT_S

    @property
    def will_be_written(self) -> bool:
        """Whether this process, at its end, waits for a JVM that writes the archive."""
        return self.path is not None and self.may_write and not self.path.exists()

    def options(self) -> str:
        """The JVM's options: to use the archive if it exists, else to write it."""
        if self.path is not None and self.path.exists():
            with suppress(OSError):
                os.utime(self.path)  # archives that were not used for long are removed first
            return f'{_SILENT} "-XX:SharedArchiveFile={self.path}"'
        return f'{_SILENT} "-XX:ArchiveClassesAtExit={self._partial()}"' if self.will_be_written else ""

    def keep_at_exit(self, jvm: subprocess.Popen[bytes]) -> None:
        """When this process ends, give the archive of ``jvm`` its name. ``jvm`` was started with ``options``."""
        if self.path is not None and self.will_be_written:
            atexit.register(_keep, jvm, self._partial(), self.path, self.end_timeout_s)

    def remove(self) -> bool:
        """Remove the archive. False when there was none."""
        if self.path is None or not self.path.exists():
            return False
        self.path.unlink(missing_ok=True)
        return True

    def _partial(self) -> Path:
        return Path(f"{self.path}.{os.getpid()}")


NO_ARCHIVE = ClassArchive(None)


def archive_of_user(*, may_write: bool = True) -> ClassArchive:
    """The archive of this user for the Java that PySpark starts.

    It is in ``anabranch`` below ``XDG_CACHE_HOME`` or ``~/.cache``. There is no archive for a Spark of ``SPARK_HOME``,
    or when the directory belongs to another user.
    """
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "")
    if os.name != "posix" or "SPARK_HOME" in os.environ or not java.is_file():
        return NO_ARCHIVE
    try:
        directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "anabranch")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_own = directory.stat().st_uid == os.getuid()
        built = java.resolve().stat()
    except (OSError, RuntimeError):  # RuntimeError: this user has no home
        return NO_ARCHIVE
    if not is_own or '"' in str(directory):  # the directory's owner could make our JVM load any class
        return NO_ARCHIVE
    jars = str(Path(pyspark.__file__).parent)
    of = (str(java.resolve()), built.st_mtime_ns, built.st_size, jars, pyspark.__version__)
    name = hashlib.sha256(repr(of).encode()).hexdigest()[:16]
    return ClassArchive(directory / f"{_NAMED}{name}.jsa", may_write and os.access(directory, os.W_OK))


def _keep(jvm: subprocess.Popen[bytes], partial: Path, path: Path, timeout_s: float) -> None:
    """End the JVM, and rename its complete archive, so that no JVM starts with a partial one."""
    try:
        if jvm.stdin is not None:
            jvm.stdin.close()  # PySpark's JVM ends with it
        if jvm.wait(timeout_s) == 0:
            partial.replace(path)
            _remove_unused(path.parent)
    except (subprocess.TimeoutExpired, OSError):
        pass  # the next JVM starts without an archive
    finally:
        jvm.kill()
        jvm.wait()
        partial.unlink(missing_ok=True)


def _remove_unused(directory: Path) -> None:
    """Remove archives of other Java and PySpark installations; the ``KEPT`` archives that were used last stay."""
    archives = sorted(directory.glob(f"{_NAMED}*.jsa"), key=lambda archive: archive.stat().st_mtime_ns)
    for archive in archives[:-KEPT]:
        archive.unlink(missing_ok=True)
