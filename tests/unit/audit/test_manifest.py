"""The manifest, layout histories, and the facts that are inferred without a manifest."""

from pathlib import Path

import pytest

from anabranch.audit.discovery import TopicFiles, discover, replica_files
from anabranch.audit.file_checks import (
    PartitionSummary,
    changed_files,
    wrong_files,
    wrong_leader_epochs,
    wrong_log_ends,
)
from anabranch.audit.manifest import (
    EpochStart,
    FileEntry,
    LayoutLine,
    Manifest,
    ManifestError,
    OffsetRange,
    PartitionEntry,
    ReplicaEntry,
    SegmentEntry,
    decode_layouts,
    layouts_until,
    merge_layouts,
)
from tests.support.audit.samples import write_sample

HISTORY = [LayoutLine(0, 4, 4, 0), LayoutLine(3, 4, 6, 1), LayoutLine(7, 4, 4, 2)]


def manifest(**changes) -> Manifest:
    values = {
        "topic": "t",
        "cleanup_policy": "delete",
        "initial_partition_count": 4,
        "undeleted_partition_count": 4,
        "partitions": [PartitionEntry(0, 0, 10, [SegmentEntry("0" * 20 + ".log", 0, 77)], HISTORY)],
    }
    return Manifest(**{**values, **changes})


def test_a_manifest_is_read_back_as_written() -> None:
    assert Manifest.decode(manifest().encode()) == manifest()


SEGMENT = SegmentEntry("0" * 20 + ".log", 0, 77, 10, 5, [FileEntry("0" * 20 + ".index", 8, 6)], 1, "0" * 20 + ".log", 0)
EPOCHS = [EpochStart(0, 0), EpochStart(4, 7)]
REPLICA = ReplicaEntry(2, 3, 9, [SEGMENT], EPOCHS[:1], [OffsetRange(4, 6)])


def test_replicas_epochs_and_files_are_read_back_as_written() -> None:
    partition = PartitionEntry(1, 0, 10, [SEGMENT], HISTORY, EPOCHS, [OffsetRange(2, 3)], 1, [REPLICA])
    whole = manifest(partitions=[partition], cluster_id="c", topic_id="i", generation=3)
    assert Manifest.decode(whole.encode()) == whole


def test_a_manifest_of_version_1_is_read() -> None:
    text = b"""{"topic": "t", "cleanup_policy": "delete", "initial_partition_count": 4, "undeleted_partition_count": 4,
        "layout_version": 2, "version": 1, "partitions": [{"partition": 0, "log_start_offset": 0, "high_watermark": 10,
        "segments": [{"name": "00000000000000000000.log", "base_offset": 0, "size_bytes": 77}], "layouts": [
        {"leader_epoch": 0, "initial_partition_count": 4, "undeleted_partition_count": 4, "layout_version": 0}]}]}"""
    read = Manifest.decode(text)
    assert read.partitions == [PartitionEntry(0, 0, 10, [SegmentEntry("0" * 20 + ".log", 0, 77)], HISTORY[:1])]
    assert (read.version, read.cluster_id, read.topic_id, read.generation) == (1, "", "", 0)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "m.json"),
        (b"{}", "topic"),
        (b'{"topic": 3}', "topic"),
        (manifest(version=9).encode(), "version 9"),
        (manifest(initial_partition_count=0).encode(), "initial partition count 0 is not from 1"),
        (manifest(initial_partition_count=5).encode(), "initial partition count 5 is not from 1"),
    ],
)
def test_an_invalid_manifest_is_refused_with_the_reason(data: bytes, expected: str) -> None:
    with pytest.raises(ManifestError, match=expected):
        Manifest.decode(data, "m.json")


def test_a_topic_is_compacted_if_compact_is_one_of_its_policies() -> None:
    assert manifest(cleanup_policy="compact,delete").is_compacted
    assert not manifest().is_compacted


@pytest.mark.parametrize(("epoch", "version"), [(-1, 0), (0, 0), (2, 0), (3, 1), (6, 1), (7, 2), (99, 2)])
def test_a_leader_epoch_has_the_layout_of_the_last_line_up_to_it(epoch: int, version: int) -> None:
    layouts = layouts_until(manifest(), manifest().partitions[0], epoch)
    assert layouts[-1].layout_version == version
    assert layouts == [LayoutLine(-1, 4, 4, 0), *(x for x in HISTORY if x.leader_epoch <= epoch)]


def test_without_history_only_a_topic_that_was_never_resized_has_a_known_layout() -> None:
    bare = PartitionEntry(0, 0, 10, [], [])
    assert layouts_until(manifest(), bare, 5) == [LayoutLine(-1, 4, 4, 0)]
    assert layouts_until(manifest(undeleted_partition_count=6), bare, 5) == []
    assert layouts_until(manifest(initial_partition_count=-1, undeleted_partition_count=-1), bare, 5) == []


def test_layout_histories_of_replicas_are_merged() -> None:
    assert merge_layouts([HISTORY[:1], HISTORY[1:], [HISTORY[2], HISTORY[0]], []]) == HISTORY


def test_layout_histories_that_disagree_are_an_error() -> None:
    with pytest.raises(ManifestError, match="leader epoch 3"):
        merge_layouts([HISTORY, [LayoutLine(3, 4, 5, 1)]])


def test_layouts_are_read_from_a_checkpoint_and_a_malformed_one_is_named() -> None:
    assert decode_layouts("0\n3\n0 4 4 0\n3 4 6 1\n7 4 4 2\n", "p") == HISTORY
    for text in ("", "0\n", "1\n0\n", "0\n2\n0 4 4 0\n", "0\n1\n0 4 4\n", "0\n1\nx 4 4 0\n"):
        with pytest.raises(ManifestError, match="some-path"):
            decode_layouts(text, "some-path")


# ---------------------------------------------------------------- discovery


def test_an_export_is_found_by_its_manifest(tmp_path: Path) -> None:
    writer = write_sample(tmp_path)
    (topic,) = discover(tmp_path)
    assert (topic.inferred, topic.manifest) == (False, writer.manifest())


def test_the_replicas_of_each_broker_have_a_manifest_of_their_own(tmp_path: Path) -> None:
    other = ReplicaEntry(3, 0, 10, [])
    partitions = [
        PartitionEntry(0, 0, 10, [SEGMENT], HISTORY, EPOCHS, replicas=[REPLICA, other]),
        PartitionEntry(1, 0, 10, [SEGMENT], HISTORY, EPOCHS, replicas=[other]),
    ]
    (tmp_path / "manifest.json").write_bytes(manifest(partitions=partitions).encode())
    second, third = replica_files(discover(tmp_path)[0])
    assert (second.broker, second.directory) == (2, str(tmp_path / "replicas" / "2"))
    assert second.manifest == manifest(
        partitions=[PartitionEntry(0, 3, 9, [SEGMENT], HISTORY, EPOCHS[:1], [OffsetRange(4, 6)])]
    )
    assert (third.broker, [p.partition for p in third.manifest.partitions]) == (3, [0, 1])


def test_an_export_that_has_not_ended_is_refused(tmp_path: Path) -> None:
    write_sample(tmp_path)
    (tmp_path / "manifest.json").rename(tmp_path / "manifest.json.partial")
    with pytest.raises(ManifestError, match="is not complete"):
        discover(tmp_path)


def test_a_manifest_is_inferred_from_a_log_directory(tmp_path: Path) -> None:
    writer = write_sample(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "not-a-partition").mkdir()
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nevents 1 5\n")
    (tmp_path / "cleaner-offset-checkpoint").touch()  # Kafka leaves this file empty until the first compaction
    (tmp_path / "events-2" / "partition-count-checkpoint").write_text("0\n1\n0 3 3 0\n")
    (topic,) = discover(tmp_path)
    assert topic.inferred
    assert (topic.manifest.topic, topic.manifest.cleanup_policy) == ("events", "delete")
    assert [p.log_start_offset for p in topic.manifest.partitions] == [-1, 5, -1]
    assert [p.segments for p in topic.manifest.partitions] == [p.segments for p in writer.manifest().partitions]
    assert (topic.manifest.initial_partition_count, topic.manifest.undeleted_partition_count) == (3, 3)


def test_an_entry_of_the_cleaner_checkpoint_shows_a_compacted_topic(tmp_path: Path) -> None:
    write_sample(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nevents 0 40\n")
    assert discover(tmp_path)[0].manifest.is_compacted


def test_the_directory_of_one_partition_is_enough(tmp_path: Path) -> None:
    write_sample(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (topic,) = discover(tmp_path / "events-1")
    assert [p.partition for p in topic.manifest.partitions] == [1]
    assert topic.manifest.initial_partition_count == -1


def test_a_directory_without_an_export_or_partitions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").touch()
    with pytest.raises(ManifestError, match="neither"):
        discover(tmp_path)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    write_sample(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "log-start-offset-checkpoint").write_text("0\nmany\n")
    with pytest.raises(ManifestError, match="log-start-offset-checkpoint"):
        discover(tmp_path)


# ---------------------------------------------------------------- files


def test_files_are_compared_with_the_manifest(tmp_path: Path) -> None:
    writer = write_sample(tmp_path)
    (topic,) = discover(tmp_path)
    assert list(wrong_files(topic)) == []
    gone, cut = writer.partitions[0].segments[0], writer.partitions[1].segments[1]
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    (tmp_path / "events-2" / f"{1:020d}.log").touch()
    (tmp_path / "events-2" / f"{writer.partitions[2].offset:020d}.log").touch()  # of an unfinished export
    found = list(wrong_files(topic))
    assert [x.partition for x in found] == [0, 1, 2]
    assert ["missing" in found[0].message, "the manifest says" in found[1].message] == [True] * 2
    assert "not in the manifest" in found[2].message


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 9, None),
        (1, 9, "log start offset is 0"),
        (0, 8, "high watermark is 10"),
        (0, 10, "beyond the high watermark"),
        (None, None, "no batch"),
    ],
)
def test_a_log_that_does_not_start_or_end_as_in_the_manifest_is_reported(
    tmp_path: Path, first: int | None, last: int | None, expected: str | None
) -> None:
    write_sample(tmp_path)
    (topic,) = discover(tmp_path)
    object.__setattr__(topic, "manifest", manifest())
    found = list(wrong_log_ends(topic, {0: PartitionSummary(3, 10, first, last)}))
    assert [expected in x.message for x in found] == ([True] if expected else [])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({0: (0, 4), 2: (5, 9)}, []),
        ({-1: (0, 9)}, []),  # written by a release without epochs
        ({0: (0, 4), 1: (5, 9)}, ["has no epoch 1"]),
        ({0: (0, 5), 2: (6, 9)}, ["epoch 0 ends at offset 4"]),
        ({0: (0, 3), 2: (4, 9)}, ["epoch 2 begins at offset 5"]),
    ],
)
def test_leader_epochs_that_contradict_the_history_are_reported(
    tmp_path: Path, found: dict, expected: list[str]
) -> None:
    write_sample(tmp_path)
    (topic,) = discover(tmp_path)
    entry = PartitionEntry(0, 0, 10, [], leader_epochs=[EpochStart(0, 0), EpochStart(2, 5)])
    faults = list(wrong_leader_epochs(topic, [(entry, found)]))
    assert len(faults) == len(expected) and all(text in fault.message for text, fault in zip(expected, faults))
    assert list(wrong_leader_epochs(topic, [(PartitionEntry(0, 0, 10, []), found)])) == []


def test_foreign_and_changed_files_are_named(tmp_path: Path) -> None:
    writer = write_sample(tmp_path)
    segment = writer.partitions[0].segments[0]
    (segment.parent / "notes.txt").touch()
    (segment.parent / "leader-epoch-checkpoint").touch()
    (segment.parent / "00000000000000000000.producers").touch()
    (topic,) = discover(tmp_path)
    (foreign,) = wrong_files(topic)
    assert (foreign.segment, "not a file of a log" in foreign.message) == ("events-0/notes.txt", True)
    entry = SegmentEntry(segment.name, 0, 100, crc32c=5)
    topic = TopicFiles(str(tmp_path), manifest(partitions=[PartitionEntry(0, 0, 10, [entry])]), False)
    name = f"{topic.manifest.topic}-0/{segment.name}"
    assert [x.segment for x in changed_files(topic, {name: (100, 6)})] == [name]
    assert list(changed_files(topic, {name: (100, 5)})) == list(changed_files(topic, {name: (99, 6)})) == []
