"""The classes of Spark's JVM as its memory holds them, kept for the next start.

A short audit spends a quarter of its time on loading and checking Spark's classes. HotSpot writes those that it has
loaded to a file when it ends, and maps the file when it starts (JEP 350). It compares the jars' sizes and times with
those that the file names, and loads the classes as ever where they differ.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pyspark

_END_TIMEOUT_S = 60
_SILENT = "-Xlog:disable"
"""HotSpot prints a line for each class that it cannot keep."""


@dataclass(frozen=True)
class ClassArchive:
    """An archive at ``path``, for one Java and one PySpark. ``path`` None: there is none, and none is written."""

    path: Path | None
    may_write: bool = True

    @property
    def will_be_written(self) -> bool:
        """Whether the end of this process waits for a JVM that writes it."""
        return self.path is not None and self.may_write and not self.path.exists()

    def options(self) -> str:
        """The JVM's options that use the archive, or write it where there is none."""
        if self.path is not None and self.path.exists():
            return f'{_SILENT} "-XX:SharedArchiveFile={self.path}"'
        return f'{_SILENT} "-XX:ArchiveClassesAtExit={self._partial()}"' if self.will_be_written else ""

    def keep_at_exit(self, jvm: subprocess.Popen[bytes]) -> None:
        """``jvm`` has started with ``options``. When this process ends, the archive gets its name."""
        if self.path is not None and self.will_be_written:
            atexit.register(_keep, jvm, self._partial(), self.path)

    def remove(self) -> bool:
        """Remove the archive. Whether there was one."""
        if self.path is None or not self.path.exists():
            return False
        self.path.unlink(missing_ok=True)
        return True

    def _partial(self) -> Path:
        return Path(f"{self.path}.{os.getpid()}")


NO_ARCHIVE = ClassArchive(None)


def archive_of_user(*, may_write: bool = True) -> ClassArchive:
    """The archive of this user for the Java that PySpark starts.

    It is in ``anabranch`` below ``XDG_CACHE_HOME`` or ``~/.cache``. There is none for a Spark of ``SPARK_HOME``, nor in
    a directory of another user.
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
    if not is_own or '"' in str(directory):  # who may write there could have our JVM load any class
        return NO_ARCHIVE
    jars = str(Path(pyspark.__file__).parent)
    of = (str(java.resolve()), built.st_mtime_ns, built.st_size, jars, pyspark.__version__)
    name = hashlib.sha256(repr(of).encode()).hexdigest()[:16]
    return ClassArchive(directory / f"spark-classes-{name}.jsa", may_write and os.access(directory, os.W_OK))


def _keep(jvm: subprocess.Popen[bytes], partial: Path, path: Path) -> None:
    """Have the JVM end, and give what it wrote its name: no other starts with a part of it."""
    try:
        if jvm.stdin is not None:
            jvm.stdin.close()  # PySpark's JVM ends with it
        if jvm.wait(_END_TIMEOUT_S) == 0:
            partial.replace(path)
    except (subprocess.TimeoutExpired, OSError):
        pass  # the next one starts as ever
    finally:
        jvm.kill()
        jvm.wait()
        partial.unlink(missing_ok=True)
