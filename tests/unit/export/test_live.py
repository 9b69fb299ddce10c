"""Repeated exports of a topic copy only new data, and notice changes on the brokers."""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from fastcrc import crc32

from anabranch.audit.discovery import discover, replica_files
from anabranch.audit.file_checks import wrong_files
from anabranch.audit.manifest import EpochStart, LayoutLine, OffsetRange
from anabranch.command_error import CommandError
from anabranch.export import live, segment_pieces
from anabranch.export import run as export_run
from anabranch.export.destination import LocalDestination
from tests.support.audit.exported_cluster import Cluster, batches, offsets


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path)
    cluster.replica(1).segment(0, batches(0, 3))
    cluster.replica(1).segment(6, batches(6, 3))
    cluster.high_watermark = 12
    return cluster


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "RETRY_DELAY_S", 0.0)


def grow(cluster: Cluster) -> None:
    """Append four more offsets to the last segment, and a new segment with two offsets."""
    leader = cluster.replica(cluster.leader)
    leader.append(6, batches(12, 2))
    leader.segment(16, batches(16, 1))
    cluster.high_watermark = 18


def mtimes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in directory.glob("*.*")}


# ---------------------------------------------------------------- copied data


def test_the_manifest_describes_the_files(cluster: Cluster) -> None:
    cluster.replica(1).epochs([(0, 0), (3, 8), (9, 12)])
    report = cluster.export()
    manifest = cluster.manifest()
    assert (manifest.cluster_id, manifest.topic_id) == ("cluster-a", "AAAAAAAAAAAAAAAAAAAABw")
    (partition,) = manifest.partitions
    assert (partition.log_start_offset, partition.high_watermark, partition.leader) == (0, 12, 1)
    assert partition.leader_epochs == [EpochStart(0, 0), EpochStart(3, 8)], "epoch 9 has no record yet"
    assert [(s.base_offset, s.end_offset, s.broker, s.source_position) for s in partition.segments] == [
        (0, 6, 1, 0), (6, 12, 1, 0)
    ]  # fmt: skip
    for segment in partition.segments:
        for entry in (segment, *segment.files):
            data = (cluster.out / entry.name).read_bytes()
            assert (len(data), crc32.iscsi(data)) == (entry.size_bytes, entry.crc32c)
    assert [file.name for file in partition.segments[0].files] == [f"{0:020d}.index"]
    assert (report.segments, report.added_segments, report.added_bytes) == (2, 2, report.bytes)
    assert not list(cluster.out.parent.glob("**/*.part*"))


def test_a_repeated_export_adds_only_new_records(cluster: Cluster) -> None:
    cluster.export()
    before = mtimes(cluster.out)
    grow(cluster)
    report = cluster.export()
    assert (report.added_segments, report.added_bytes) == (2, len(batches(12, 3)))
    assert [s.base_offset for s in cluster.manifest().partitions[0].segments] == [0, 6, 12, 16]
    assert cluster.exported() == list(range(18))
    assert cluster.manifest().partitions[0].segments[2].source == f"{6:020d}.log"
    after = mtimes(cluster.out)
    assert {name: after[name] for name in before if name[0] == "0"} == {n: t for n, t in before.items() if n[0] == "0"}
    assert list(wrong_files(discover(cluster.root / "out")[0])) == []


def test_an_export_without_new_records_does_not_change_the_manifest(cluster: Cluster) -> None:
    cluster.export()
    before = mtimes(cluster.root / "out")
    report = cluster.export()
    assert (report.added_segments, report.added_bytes, report.generation) == (0, 0, 1)
    assert mtimes(cluster.root / "out") == before


def test_the_manifest_is_replaced_after_everything_else(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.export()
    grow(cluster)
    written = []
    write = LocalDestination.write

    def noted(self: LocalDestination, path: str, chunks: Iterable[bytes]) -> None:
        written.append(path)
        write(self, path, chunks)

    monkeypatch.setattr(LocalDestination, "write", noted)
    cluster.export()
    assert written.index("manifest.json") == len(written) - 1
    assert len(written) == len(set(written))


def test_a_crc_covers_all_chunks_of_a_file(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_pieces, "CHUNK_BYTES", 100)
    cluster.export()
    for segment in cluster.manifest().partitions[0].segments:
        assert segment.crc32c == crc32.iscsi((cluster.out / segment.name).read_bytes())


def test_the_segment_with_the_log_start_is_copied_whole(cluster: Cluster) -> None:
    cluster.log_start = 7  # DeleteRecords may cut at any offset
    cluster.export()
    assert cluster.exported() == [6, 7, 8, 9, 10, 11]
    assert cluster.manifest().partitions[0].log_start_offset == 7


def test_a_partition_without_records_has_no_segments(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.replica(1).segment(0, b"")
    assert cluster.export().segments == 0
    assert cluster.manifest().partitions[0].segments == []


def test_an_export_continues_from_another_leader(cluster: Cluster) -> None:
    cluster.export()
    cluster.leader = 2
    cluster.replica(2).segment(0, batches(0, 8))
    cluster.replica(2).epochs([(0, 0), (1, 14)])
    cluster.high_watermark = 16
    cluster.export()
    (partition,) = cluster.manifest().partitions
    assert cluster.exported() == list(range(16))
    assert (partition.segments[2].broker, partition.segments[2].source_position) == (2, len(batches(0, 6)))
    assert partition.leader_epochs == [EpochStart(0, 0), EpochStart(1, 14)]


# ---------------------------------------------------------------- layouts


def test_layouts_that_the_leader_missed_are_taken_from_the_others_that_can_be_reached(cluster: Cluster) -> None:
    cluster.replica(1).layouts("0 4 4 0", "5 4 9 2")
    cluster.live = (1, 3)
    cluster.export()
    assert cluster.manifest().partitions[0].layouts == [LayoutLine(0, 4, 4, 0), LayoutLine(5, 4, 9, 2)]
    cluster.live = (1, 2, 3)
    cluster.replica(2).layouts("0 4 4 0", "3 4 6 1")
    cluster.replica(3).layouts("4 4 6 1", "5 4 9 2")
    grow(cluster)
    cluster.export()
    manifest = cluster.manifest()
    assert manifest.partitions[0].layouts == [
        LayoutLine(0, 4, 4, 0), LayoutLine(3, 4, 6, 1), LayoutLine(4, 4, 6, 1), LayoutLine(5, 4, 9, 2)
    ]  # fmt: skip
    assert (manifest.undeleted_partition_count, manifest.layout_version) == (9, 2)


def test_layouts_of_earlier_exports_are_kept(cluster: Cluster) -> None:
    cluster.replica(1).layouts("0 4 4 0", "3 4 6 1")
    cluster.export()
    cluster.replica(1).layouts("5 4 9 2")
    grow(cluster)
    cluster.export()
    assert cluster.manifest().partitions[0].layouts == [
        LayoutLine(0, 4, 4, 0),
        LayoutLine(3, 4, 6, 1),
        LayoutLine(5, 4, 9, 2),
    ]


def test_replicas_that_contradict_each_other_are_an_error(cluster: Cluster) -> None:
    cluster.replica(1).layouts("3 4 6 1")
    cluster.replica(2).layouts("3 4 9 2")
    with pytest.raises(CommandError, match="replicas disagree about the layout of leader epoch 3"):
        cluster.export()


# ---------------------------------------------------------------- replicas


@pytest.fixture
def replicated(cluster: Cluster) -> Cluster:
    cluster.replica(2).segment(0, batches(0, 6))
    cluster.replica(3).segment(0, batches(0, 4))
    cluster.replica(3).high_watermark(6)
    cluster.isr = (1, 2)
    return cluster


def test_each_replica_has_a_directory_of_its_own(replicated: Cluster) -> None:
    report = replicated.export(all_replicas=True)
    assert (report.replicas, report.unread) == (2, ())
    second, third = replica_files(discover(replicated.root / "out")[0])
    assert (second.broker, second.manifest.partitions[0].high_watermark) == (2, 12)
    assert offsets(Path(second.directory) / "t-0" / f"{0:020d}.log") == list(range(12))
    for files in (second, third):
        assert list(wrong_files(files)) == []


def test_a_replica_out_of_sync_is_copied_up_to_its_own_high_watermark(replicated: Cluster) -> None:
    replicated.export(all_replicas=True)
    third = replica_files(discover(replicated.root / "out")[0])[1]
    assert (third.broker, third.manifest.partitions[0].high_watermark) == (3, 6)
    assert offsets(Path(third.directory) / "t-0" / f"{0:020d}.log") == list(range(6))


def test_a_repeated_export_continues_replicas_and_names_a_broker_that_is_down(replicated: Cluster) -> None:
    replicated.export(all_replicas=True)
    replicated.live = (1, 2)
    grow(replicated)
    replicated.replica(2).append(0, batches(12, 3))
    report = replicated.export(all_replicas=True)
    assert report.unread == (3,)
    second, third = replica_files(discover(replicated.root / "out")[0])
    assert [s.base_offset for s in second.manifest.partitions[0].segments] == [0, 12]
    assert third.manifest.partitions[0].high_watermark == 6


def test_a_follower_that_became_the_leader_stays_a_replica_of_the_export(replicated: Cluster) -> None:
    replicated.export(all_replicas=True)
    replicated.leader, replicated.high_watermark = 2, 14
    for broker, base in ((1, 6), (2, 0)):
        replicated.replica(broker).append(base, batches(12, 1))
    replicated.export(all_replicas=True)
    replicas = replicated.manifest().partitions[0].replicas
    assert [(r.broker, r.high_watermark) for r in replicas] == [(1, 14), (2, 14), (3, 6)]
    assert replicated.exported() == list(range(14))


def test_a_replica_that_is_removed_meanwhile_is_left_out(replicated: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def reassignment() -> None:
        shutil.rmtree(replicated.replica(2).directory)
        replicated.assigned = replicated.isr = (1, 3)

    changed_at(3, monkeypatch, reassignment)  # the leader has two segments
    replicated.replica(3).append(0, batches(8, 2))
    assert replicated.export(all_replicas=True).segments == 3
    replicas = replicated.manifest().partitions[0].replicas
    assert [(r.broker, r.high_watermark, len(r.segments)) for r in replicas] == [(3, 6, 1)]


def test_an_unreachable_replica_is_listed_only_up_to_its_exported_end(
    replicated: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicated.replica(2).segment(0, batches(0, 2))
    replicated.replica(2).segment(4, batches(4, 4))
    disk = FullDisk(monkeypatch, len(batches(0, 8)))
    with pytest.raises(CommandError, match="No space left"):
        replicated.export(all_replicas=True)
    disk.room, replicated.live = 10**6, (1, 3)
    assert replicated.export(all_replicas=True).unread == (2,)
    replicas = replicated.manifest().partitions[0].replicas
    assert [(r.broker, r.high_watermark, len(r.segments)) for r in replicas] == [(2, 4, 1), (3, 6, 1)]


# ---------------------------------------------------------------- retention, compaction, truncation


def test_records_removed_by_retention_stay_exported(cluster: Cluster) -> None:
    cluster.export()
    grow(cluster)
    cluster.replica(1).remove(0)
    cluster.log_start = 6
    report = cluster.export()
    assert cluster.exported() == list(range(18))
    assert cluster.manifest().partitions[0].log_start_offset == 0
    assert report.missing == {}


def test_offsets_removed_before_they_were_exported_are_missing(cluster: Cluster) -> None:
    cluster.export()
    grow(cluster)
    cluster.replica(1).remove(0)
    cluster.replica(1).remove(6)
    cluster.log_start = 16
    report = cluster.export()
    assert report.missing == {"t-0": [(12, 16)]}
    assert cluster.manifest().partitions[0].missing == [OffsetRange(12, 16)]
    assert cluster.exported() == [*range(12), 16, 17]
    assert cluster.export().missing == {"t-0": [(12, 16)]}, "still missing in the next export"


def test_all_records_removed_before_their_export_are_missing(cluster: Cluster) -> None:
    cluster.export()
    cluster.replica(1).remove(0)
    cluster.replica(1).remove(6)
    cluster.replica(1).segment(20, b"")
    cluster.log_start = cluster.high_watermark = 20
    assert cluster.export().missing == {"t-0": [(12, 20)]}
    cluster.replica(1).append(20, batches(20, 1))
    cluster.high_watermark = 22
    assert cluster.export().missing == {"t-0": [(12, 20)]}
    assert cluster.exported() == [*range(12), 20, 21]


def changed_at(number: int, monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Call ``change`` before the segment with that number is opened."""
    opened = []
    open_piece = export_run.open_piece

    def changing(directory: Path, segment, start: int, limit: int):
        opened.append(segment)
        if len(opened) == number:
            change()
        return open_piece(directory, segment, start, limit)

    monkeypatch.setattr(export_run, "open_piece", changing)


def test_a_first_export_begins_again_after_retention_removed_its_segments(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(cluster)

    def retention() -> None:
        cluster.replica(1).remove(0)
        cluster.replica(1).remove(6)
        cluster.log_start = 16

    changed_at(2, monkeypatch, retention)
    assert cluster.export().missing == {}
    assert cluster.exported() == [16, 17]
    assert cluster.manifest().partitions[0].log_start_offset == 16
    assert not (cluster.out / f"{0:020d}.log").exists(), "a segment that no manifest names is removed"


def test_a_compaction_during_an_export_loses_no_record_that_it_kept(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(cluster)

    def compaction() -> None:
        cluster.replica(1).segment(0, batches(0, 1) + batches(8, 4))
        cluster.replica(1).remove(6)

    changed_at(2, monkeypatch, compaction)
    cluster.export()
    assert cluster.exported() == [0, 1, 2, 3, 4, 5, *range(8, 18)]


def test_an_exported_segment_that_was_compacted_stays_as_it_was(cluster: Cluster) -> None:
    cluster.cleanup_policy = "compact"
    cluster.export()
    grow(cluster)
    cluster.replica(1).segment(0, batches(2, 1) + batches(14, 1))
    cluster.replica(1).remove(6)
    cluster.export()
    assert cluster.exported() == [*range(12), 14, 15, 16, 17]
    cluster.cleanup_policy = "delete"
    cluster.replica(1).append(16, batches(18, 1))
    cluster.high_watermark = 20
    cluster.export()
    assert cluster.manifest().is_compacted, "the export still has gaps"


def test_a_log_that_was_truncated_and_written_again_is_refused(cluster: Cluster) -> None:
    cluster.replica(1).epochs([(0, 0), (1, 4)])
    cluster.export()
    cluster.replica(1).epochs([(0, 0), (1, 4), (2, 8)])
    cluster.high_watermark = 18
    before = (cluster.root / "out" / "manifest.json").read_bytes()
    with pytest.raises(CommandError, match="offset 11 was exported in leader epoch 1 and is now of leader epoch 2"):
        cluster.export()
    assert (cluster.root / "out" / "manifest.json").read_bytes() == before


def test_batches_across_the_exported_end_are_refused(cluster: Cluster) -> None:
    cluster.export()
    cluster.replica(1).segment(6, batches(6, 2) + batches(11, 2))
    cluster.high_watermark = 15
    with pytest.raises(CommandError, match="no batch begins at offset 12 any more: a batch has the offsets 11-12"):
        cluster.export()


def test_an_export_of_a_log_that_keeps_changing_fails(cluster: Cluster) -> None:
    (cluster.replica(1).directory / f"{0:020d}.log.swap").touch()
    with pytest.raises(CommandError, match="changed 21 times"):
        cluster.export()


# ---------------------------------------------------------------- interruptions


class FullDisk:
    """Has room for ``room`` bytes of segment files. The next write leaves half of the chunk and raises ENOSPC."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self.written: list[str] = []
        write = LocalDestination.write
        disk = self

        def limited(destination: LocalDestination, path: str, chunks: Iterable[bytes]) -> None:
            def counted() -> Iterator[bytes]:
                for chunk in chunks:
                    disk.room -= len(chunk) if path.endswith(".log") else 0
                    if disk.room < 0 and path.endswith(".log"):
                        yield chunk[: len(chunk) // 2]
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    yield chunk

            write(destination, path, counted())
            self.written.append(path)

        monkeypatch.setattr(LocalDestination, "write", limited)


def test_a_full_disk_is_named_and_the_next_export_continues(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(monkeypatch, len(batches(0, 5)))
    with pytest.raises(CommandError, match=r"cannot write t-0/0{19}6.log in .*out: No space left on device"):
        cluster.export(partial_every=1)
    assert not (cluster.root / "out" / "manifest.json").exists()
    assert not list(cluster.out.glob("*.part"))
    disk.room, disk.written = 10**6, []
    report = cluster.export()
    assert (report.added_segments, report.resumed_bytes) == (2, len(batches(0, 3)))
    assert f"t-0/{0:020d}.log" not in disk.written
    assert cluster.exported() == list(range(12))
    assert not (cluster.root / "out" / "manifest.json.partial").exists()


def killed_after(cluster: Cluster, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Export, and stop as after a kill: ``writes`` writes are complete, and the next write is not."""
    count = [0]
    write = LocalDestination.write

    class KilledError(BaseException):
        pass

    def limited(destination: LocalDestination, path: str, chunks: Iterable[bytes]) -> None:
        count[0] += 1
        if count[0] > writes:
            (destination.root / (path + ".part")).parent.mkdir(exist_ok=True)
            (destination.root / (path + ".part")).write_bytes(b"half")
            raise KilledError
        write(destination, path, chunks)

    with monkeypatch.context() as patch:
        patch.setattr(LocalDestination, "write", limited)
        with pytest.raises(KilledError):
            cluster.export(partial_every=1)


@pytest.mark.parametrize("writes", range(9))
def test_an_export_continues_after_a_kill_at_any_write(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    killed_after(cluster, writes, monkeypatch)
    grow(cluster)
    cluster.export()
    assert cluster.exported() == list(range(18))
    assert list(wrong_files(discover(cluster.root / "out")[0])) == []
    assert not list((cluster.root / "out").glob("**/*.part*"))


@pytest.mark.parametrize("writes", range(9))
def test_a_kill_at_any_write_of_a_repeated_export_leaves_the_previous_one_whole(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    cluster.export()
    grow(cluster)
    killed_after(cluster, writes, monkeypatch)
    assert cluster.exported() == list(range(12))
    assert list(wrong_files(discover(cluster.root / "out")[0])) == []
    cluster.replica(1).append(16, batches(18, 1))
    cluster.high_watermark = 20
    cluster.export()
    assert cluster.exported() == list(range(20))
    assert list(wrong_files(discover(cluster.root / "out")[0])) == []
    assert not list((cluster.root / "out").glob("**/*.part*"))


def test_a_half_copied_file_is_copied_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_after(cluster, 7, monkeypatch)
    half = cluster.out / f"{6:020d}.log"
    assert half.exists()
    half.write_bytes(half.read_bytes()[:-10])
    cluster.export()
    assert cluster.exported() == list(range(12))


# ---------------------------------------------------------------- refused exports


def version_1(cluster: Cluster) -> None:
    path = cluster.root / "out" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 1}))


def recreated(cluster: Cluster) -> None:
    cluster.topic_id, cluster.incarnation = uuid.UUID(int=8), 41


SECOND = f"{6:020d}.log"
REFUSED: dict[str, tuple[Callable[[Cluster], object], str]] = {
    "another cluster": (
        lambda cluster: setattr(cluster, "cluster_id", "cluster-b"),
        "of cluster cluster-a, but the topic to export is of cluster cluster-b",
    ),
    "an earlier topic of the same name": (
        recreated,
        "of topic id AAAAAAAAAAAAAAAAAAAABw, but the topic to export is of topic id AAAAAAAAAAAAAAAAAAAACA",
    ),
    "a manifest of version 1": (version_1, "by an earlier version"),
    "a malformed manifest": (
        lambda cluster: (cluster.root / "out" / "manifest.json").write_text("{"),
        r"manifest.json: .*export into a new directory",
    ),
    "a missing file": (
        lambda cluster: (cluster.out / SECOND).unlink(),
        f"disagrees with 1 of its files: t-0/{SECOND} is missing",
    ),
    "a shorter file": (
        lambda cluster: (cluster.out / SECOND).write_bytes(b"short"),
        f"disagrees with 1 of its files: t-0/{SECOND} has 5 bytes, {len(batches(0, 3))} were exported",
    ),
    "no leader": (lambda cluster: setattr(cluster, "leader", -1), "partition 0 of t has no leader"),
    "a shorter log": (
        lambda cluster: setattr(cluster, "high_watermark", 10),
        "t-0: exported up to offset 12, but its high watermark is 10",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_export_that_does_not_continue_the_earlier_one_is_refused(cluster: Cluster, case: str) -> None:
    change, message = REFUSED[case]
    cluster.export()
    change(cluster)
    with pytest.raises(CommandError, match=message):
        cluster.export()


def test_a_directory_with_other_files_and_an_export_of_another_topic_are_refused(cluster: Cluster) -> None:
    other = cluster.root / "out" / "thesis.txt"
    other.parent.mkdir()
    other.touch()
    with pytest.raises(CommandError, match="is not empty and holds no export"):
        cluster.export()
    other.unlink()
    cluster.export()
    with pytest.raises(CommandError, match="holds an export of topic t, not of other"):
        cluster.export(topic="other")


def test_the_export_continues_after_a_shrink_changed_the_topic_id(cluster: Cluster) -> None:
    cluster.export()
    cluster.topic_id = uuid.UUID(int=8)
    grow(cluster)
    cluster.export()
    assert cluster.manifest().topic_id == "AAAAAAAAAAAAAAAAAAAABw", (
        "a reader that follows the topic knows it by this id"
    )
    assert cluster.exported() == list(range(18))


def test_without_an_incarnation_a_topic_is_identified_by_its_topic_id(cluster: Cluster) -> None:
    cluster.incarnation = -1
    cluster.export()
    cluster.export()
    cluster.topic_id = uuid.UUID(int=8)
    with pytest.raises(CommandError, match="of topic id AAAAAAAAAAAAAAAAAAAABw"):
        cluster.export()


def test_an_interrupted_export_of_another_cluster_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_after(cluster, 4, monkeypatch)
    cluster.cluster_id = "cluster-b"
    with pytest.raises(CommandError, match="of cluster cluster-a, but the topic to export is of cluster cluster-b"):
        cluster.export()


def test_a_foreign_segment_below_the_exported_end_is_left_for_the_audit(cluster: Cluster) -> None:
    cluster.export()
    shutil.copy(cluster.out / f"{6:020d}.log", cluster.out / f"{8:020d}.log")
    grow(cluster)
    cluster.export()
    (violation,) = wrong_files(discover(cluster.root / "out")[0])
    assert violation.message == "not in the manifest"
