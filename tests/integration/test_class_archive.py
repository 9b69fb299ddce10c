"""The archive of classes that Spark's JVM keeps for the next JVM, with a real JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.audit.class_archive import NO_ARCHIVE, ClassArchive, archive_of_user

DEADLINE_S = 360
PROGRAM = """
import json, sys
from pathlib import Path
from anabranch.audit.class_archive import ClassArchive
from anabranch.audit.run import spark_session

archive = ClassArchive(Path(sys.argv[1]), end_timeout_s=float(sys.argv[2]))
with spark_session("local[1]", short=True, classes=archive) as spark:
    print(json.dumps(sys.argv[1] in Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text()))
"""


def is_used(archive: Path) -> bool:
    """Run an audit to its end. Returns whether its JVM mapped this archive."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(archive), str(DEADLINE_S / 2)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    used: bool = json.loads(done.stdout)
    return used


def test_the_first_jvm_writes_an_archive_and_the_next_uses_it(tmp_path: Path) -> None:
    directory = tmp_path / "a directory"
    directory.mkdir()
    archive = directory / "classes.jsa"
    assert not is_used(archive)
    assert [path.name for path in directory.iterdir()] == ["classes.jsa"]
    written = archive.read_bytes()
    assert is_used(archive)
    assert archive.read_bytes() == written
    archive.write_bytes(b"no archive")
    assert not is_used(archive), "the JVM runs without an archive"


def test_the_archive_of_a_jvm_that_failed_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "classes.jsa"
    program = f"""
import subprocess, sys
from pathlib import Path
from anabranch.audit.class_archive import ClassArchive
archive = ClassArchive(Path({str(path)!r}))
partial = archive._partial()
partial.write_bytes(b"a part")
archive.keep_at_exit(subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(1)"], stdin=-1))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=DEADLINE_S)
    assert list(tmp_path.iterdir()) == []


def test_each_java_and_spark_of_a_user_has_its_own_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    archive = archive_of_user()
    assert archive.path is not None and archive.path.parent == tmp_path / "anabranch"
    assert (archive.will_be_written, archive_of_user(may_write=False).options()) == (True, "")
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert archive_of_user().path not in (None, archive.path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert archive_of_user() == NO_ARCHIVE
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("SPARK_HOME", os.fspath(tmp_path))
    assert archive_of_user() == NO_ARCHIVE


def test_without_a_directory_of_the_users_own_there_is_no_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert archive_of_user() == NO_ARCHIVE
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: -1)
        assert archive_of_user() == NO_ARCHIVE, "the directory belongs to another user"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", _no_home)
    assert archive_of_user() == NO_ARCHIVE
    assert NO_ARCHIVE.options() == "" and not NO_ARCHIVE.will_be_written and not NO_ARCHIVE.remove()


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_an_archive_is_removed_once(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "classes.jsa")
    (tmp_path / "classes.jsa").write_bytes(b"")
    assert [archive.remove(), archive.remove()] == [True, False]
