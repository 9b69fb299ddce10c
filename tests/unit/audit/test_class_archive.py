"""The audit's reaction if Spark does not start with an archive of its classes. Spark's builder is a fake."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.audit import class_archive, run
from anabranch.audit.class_archive import NO_ARCHIVE, ClassArchive

SETTINGS = {run._JAVA_OPTIONS: "-XX:+UseSerialGC"}


class Builder:
    """Fails to start a session if the options of its JVM contain ``refused``."""

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.options = SETTINGS[run._JAVA_OPTIONS]
        self.tried: list[str] = []

    def config(self, name: str, value: str) -> Builder:
        assert name == run._JAVA_OPTIONS
        self.options = value
        return self

    def getOrCreate(self) -> Any:
        self.tried.append(self.options)
        if self.refused in self.options:
            raise OSError("no gateway")
        return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=None))


def test_an_archive_with_which_spark_does_not_start_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "classes.jsa"
    path.write_bytes(b"bad")
    builder = Builder("SharedArchiveFile")
    run._started(builder, SETTINGS, ClassArchive(path))  # type: ignore[arg-type]
    assert builder.tried == [f'-XX:+UseSerialGC -Xlog:disable "-XX:SharedArchiveFile={path}"', "-XX:+UseSerialGC"]
    assert not path.exists()


@pytest.mark.parametrize(
    "archive", [NO_ARCHIVE, ClassArchive(Path("/nowhere/classes.jsa"))], ids=["no archive", "missing file"]
)
def test_a_spark_that_fails_without_an_archive_is_started_only_once(archive: ClassArchive) -> None:
    builder = Builder("UseSerialGC")
    with pytest.raises(RuntimeError, match="Spark did not start: no gateway"):
        run._started(builder, SETTINGS, archive)  # type: ignore[arg-type]
    assert len(builder.tried) == 1


def test_the_most_recently_used_archives_are_kept(tmp_path: Path) -> None:
    young, old, used, new = (tmp_path / f"spark-classes-{name}.jsa" for name in ("young", "old", "used", "new"))
    other = tmp_path / "other.jsa"
    for age_s, path in enumerate((young, old, used, other), 1000):
        path.write_bytes(b"classes")
        os.utime(path, (time.time() - age_s,) * 2)
    assert str(used) in ClassArchive(used).options()
    partial = tmp_path / "partial"
    partial.write_bytes(b"classes")
    jvm: Any = SimpleNamespace(stdin=None, wait=lambda _timeout_s=None: 0, kill=lambda: None)
    class_archive._keep(jvm, partial, new, 1.0)
    assert set(tmp_path.iterdir()) == {new, used, young, other}
