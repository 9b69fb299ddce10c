"""The destination of an export: local directories, fsspec's file systems, and destinations that cannot be written."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from anabranch.audit.manifest import MANIFEST_NAME, Manifest
from anabranch.cli.export import _print as print_report
from anabranch.command_error import CommandError
from anabranch.export.destination import Destination, FsspecDestination, LocalDestination, open_destination
from tests.support.audit.exported_cluster import Cluster, batches


@pytest.fixture(params=["path", "memory", "fsspec-local"])
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> Destination:
    if request.param == "path":
        return open_destination(tmp_path / "out")
    if request.param == "memory":
        return open_destination(f"memory://{uuid.uuid4()}/out")
    return FsspecDestination("local", LocalFileSystem(), str(tmp_path / "out"))


def test_files_are_written_listed_replaced_and_removed(destination: Destination) -> None:
    with destination.hold():
        assert (destination.sizes(), destination.read("a/b/c")) == ({}, None)
        destination.write("a/b/c", [b"one", b"two"])
        destination.write("d", [])
        assert destination.sizes() == {"a/b/c": 6, "d": 0}
        destination.write("a/b/c", [b"three"])
        destination.flush()
        assert destination.read("a/b/c") == b"three"
        destination.remove("d")
        destination.remove("d")
        assert destination.sizes() == {"a/b/c": 5}


def broken() -> Iterator[bytes]:
    yield b"half"
    raise OSError("broken")


def test_a_failed_write_leaves_the_earlier_file(destination: Destination) -> None:
    with destination.hold():
        destination.write("old", [b"whole"])
        for name in ("old", "new"):
            with pytest.raises(OSError, match="broken"):
                destination.write(name, broken())
        assert destination.sizes() == {"old": 5}
        destination.write("new", [b"later"])
        assert destination.read("new") == b"later"


@pytest.mark.parametrize("scheme", ["", "file://", "local://"])
def test_paths_and_local_uris_are_local_destinations(tmp_path: Path, scheme: str) -> None:
    opened = open_destination(f"{scheme}{tmp_path}/out")
    assert isinstance(opened, LocalDestination)
    assert opened.root == tmp_path / "out"


def test_an_export_to_a_uri_is_the_same_as_to_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(tmp_path)
    cluster.replica(1).segment(0, batches(0, 3))
    cluster.high_watermark = 4
    uri = f"memory://{uuid.uuid4()}/exports"
    for high_watermark in (4, 6):
        cluster.high_watermark = high_watermark
        cluster.export()
        report = cluster.export(uri)
        assert (report.directory, report.added_segments) == (uri, 1)
    print_report(report)
    assert "anabranch audit" not in capsys.readouterr().out, "the export reads a directory"
    remote = fsspec.filesystem("memory")
    root = uri.removeprefix("memory:/")
    assert Manifest.decode(remote.cat_file(f"{root}/{MANIFEST_NAME}")) == cluster.manifest()
    local = sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert sorted(Path(path).relative_to(root) for path in remote.find(root)) == local
    for name in local:
        assert remote.cat_file(f"{root}/{name}") == (tmp_path / "out" / name).read_bytes()


def test_the_error_for_a_protocol_without_its_driver_names_the_package() -> None:
    with pytest.raises(CommandError, match=r"no driver for gs://: .*install gcsfs"):
        open_destination("gs://bucket/prefix")


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(CommandError, match="floppy://a: Protocol not known: floppy"):
        open_destination("floppy://a")


def test_the_error_for_a_uri_without_fsspec_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(CommandError, match=r"pip install 'anabranch\[export\]'"):
        open_destination("s3://bucket/prefix")


def test_two_exports_into_one_directory_are_refused(tmp_path: Path) -> None:
    with (
        open_destination(tmp_path).hold(),
        pytest.raises(CommandError, match=r"another export into .* is running"),
        open_destination(tmp_path).hold(),
    ):
        pass


# ---------------------------------------------------------------- no permission


@pytest.fixture
def shared() -> Iterator[Cluster]:
    """Yield a cluster with one topic, in a directory that every user can read."""
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        cluster = Cluster(Path(root))
        cluster.replica(1).segment(0, batches(0, 1))
        cluster.high_watermark = 2
        yield cluster


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Run the block as another user, because root may open everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_directory_that_may_not_be_created_is_named(shared: Cluster) -> None:
    os.chmod(shared.root, 0o555)
    with unprivileged(), pytest.raises(PermissionError, match=f"{shared.root}/out"):
        shared.export()


def test_an_export_that_may_not_be_written_is_named(shared: Cluster) -> None:
    (shared.root / "out").mkdir(0o555)
    with unprivileged(), pytest.raises(CommandError, match=r"cannot write \S+ in \S+/out: Permission denied"):
        shared.export()


def test_a_replica_that_may_not_be_read_is_named(shared: Cluster) -> None:
    (shared.root / "out").mkdir()
    os.chmod(shared.root / "out", 0o777)
    os.chmod(shared.replica(1).directory, 0o000)
    with (
        unprivileged(),
        pytest.raises(CommandError, match=r"cannot read \S+ of broker 1 on this machine; .*--log-dir 1="),
    ):
        shared.export()


def test_a_segment_that_may_not_be_read_is_named(shared: Cluster) -> None:
    (shared.root / "out").mkdir()
    os.chmod(shared.root / "out", 0o777)
    os.chmod(shared.replica(1).directory / f"{0:020d}.log", 0o000)
    with unprivileged(), pytest.raises(PermissionError, match=r"t-0/0{20}\.log"):
        shared.export()
