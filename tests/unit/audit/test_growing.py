"""A stream over a growing export reads every record once across restarts, and refuses lost or foreign data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="the audit needs the extra [audit]")

from anabranch.audit.discovery import discover
from anabranch.audit.growing import beginning, decode, encode, followed, latest, read_slice, slices
from anabranch.audit.manifest import MANIFEST_NAME, Manifest, ManifestError, OffsetRange
from anabranch.protocol.batch_builder import retain_records
from anabranch.protocol.records import RecordBatch, iter_batches
from anabranch.protocol.stream_offsets import CheckpointError, DataLossError
from tests.support.audit.samples import TopicWriter


def fail(what: str) -> None:
    raise DataLossError(what)


class Export:
    """A topic of two partitions that is exported repeatedly, and a stream that follows the export."""

    def __init__(self, root: Path, cleanup_policy: str = "delete") -> None:
        self.root = root
        self.writer = TopicWriter(root, "events", 2, cleanup_policy=cleanup_policy)
        self.read: list[tuple[int, int]] = []
        self.offset: dict = {}
        self.lost: Callable[[str], None] = fail

    def export(self, change: Callable[[Manifest], Manifest] = lambda manifest: manifest) -> None:
        """Write five records to each partition in new segments, and a manifest that names the segments."""
        for partition in self.writer.partitions.values():
            partition.roll()
            partition.append([(b"k", b"%d" % n) for n in range(3)])
            partition.append([(b"k", b"%d" % n) for n in range(2)])
        self.write_manifest(change)

    def write_manifest(self, change: Callable[[Manifest], Manifest] = lambda manifest: manifest) -> None:
        manifest = msgspec.structs.replace(self.writer.manifest(), cluster_id="C", topic_id="T")
        for entry in manifest.partitions:
            bases = [segment.base_offset for segment in entry.segments]
            ends = [*bases[1:], entry.high_watermark]
            entry.segments[:] = [
                msgspec.structs.replace(segment, end_offset=end)
                for segment, end in zip(entry.segments, ends, strict=True)
            ]
        (self.root / MANIFEST_NAME).write_bytes(change(manifest).encode())

    def micro_batch(self, *, repeat: bool = False) -> list[tuple[int, int]]:
        """Return the records of the next micro-batch, or the last micro-batch's records again, as after a restart."""
        topic = followed(discover(self.root), str(self.root))
        start = self.offset or encode(beginning(topic.manifest))
        end = encode(latest(topic.manifest, decode(start), self.lost))
        found = []
        for one in slices(topic, decode(start), decode(end), self.lost):
            for rows, keep in read_slice(one, None, self.lost):
                columns = rows.arrow(["partition", "offset"], keep).to_pydict()
                found += zip(columns["partition"], columns["offset"], strict=True)
        if not repeat:
            self.offset = end
        return sorted(found)


def records(partition: int, first: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(first, end)]


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path)


def test_each_export_is_read_once(export: Export) -> None:
    export.export()
    assert export.micro_batch() == records(0, 0, 5) + records(1, 0, 5)
    assert export.micro_batch() == []
    export.export()
    export.export()
    assert export.micro_batch(repeat=True) == records(0, 5, 15) + records(1, 5, 15)
    assert export.micro_batch() == records(0, 5, 15) + records(1, 5, 15)


def test_a_new_partition_is_read_from_its_first_record(export: Export) -> None:
    export.export()
    export.micro_batch()
    export.writer.add_partition(2)
    export.writer.partitions[2].offset = 40
    export.export()
    found = export.micro_batch(repeat=True)
    assert found == export.micro_batch() == records(0, 5, 10) + records(1, 5, 10) + records(2, 40, 45)
    before = export.offset
    assert export.micro_batch() == []
    assert export.offset == before, "Spark runs a micro-batch whenever the end differs"


@pytest.mark.parametrize(("field", "value"), [("topic_id", "U"), ("cluster_id", "D"), ("topic", "other")])
def test_another_topics_checkpoint_is_refused(export: Export, field: str, value: str) -> None:
    export.export()
    export.micro_batch()
    export.write_manifest(lambda manifest: msgspec.structs.replace(manifest, **{field: value}))
    with pytest.raises(CheckpointError, match=f"the checkpoint is of .*, and the export is of .*{value}"):
        export.micro_batch()


@pytest.mark.parametrize("offset", [{"version": 1}, {"version": 2, "format": "anabranch-segments"}])
def test_another_sources_checkpoint_is_refused(export: Export, offset: dict) -> None:
    with pytest.raises(CheckpointError, match="of another source or of a newer release"):
        decode(offset)


def test_a_checkpoint_keeps_its_form() -> None:
    found = {
        "version": 1,
        "format": "anabranch-segments",
        "topic": "events",
        "cluster_id": "C",
        "topic_id": "T",
        "partitions": {"0": {"offset": 120}, "4": {"offset": 7, "begin": 3}},
    }
    assert list(encode(decode(found)).items()) == list(found.items())
    for name in ("topic", "cluster_id", "topic_id", "partitions"):
        with pytest.raises(CheckpointError, match=f"offsets are malformed: KeyError\\('{name}'\\) in"):
            decode({key: value for key, value in found.items() if key != name})


def test_a_directory_without_identity_is_refused(export: Export) -> None:
    export.export(lambda manifest: msgspec.structs.replace(manifest, topic_id=""))
    with pytest.raises(ManifestError, match=r"a stream needs a .* with a topic id"):
        export.micro_batch()


def vanish(export: Export) -> None:
    export.writer.partitions[0].segments[1].unlink()


def cut(export: Export) -> None:
    path = export.writer.partitions[0].segments[1]
    path.write_bytes(path.read_bytes()[:-1])


def cut_behind_the_manifest(export: Export) -> None:
    """Drop whole batches and set the manifest's size, as a compaction of the exported file does."""
    path = export.writer.partitions[0].segments[1]
    data = path.read_bytes()
    path.write_bytes(data[: RecordBatch(data).length])
    export.write_manifest()


def compact(export: Export) -> None:
    path = export.writer.partitions[0].segments[1]
    data = path.read_bytes()
    batch = next(iter_batches(data))
    path.write_bytes(bytes(retain_records(batch, batch.records()[1:])) + data[batch.length :])
    export.write_manifest()


def damage(export: Export) -> None:
    path = export.writer.partitions[0].segments[1]
    data = bytearray(path.read_bytes())
    data[RecordBatch(data).length + 61] ^= 0xFF
    path.write_bytes(data)


def truncate(export: Export) -> None:
    def earlier(manifest: Manifest) -> Manifest:
        first, *rest = manifest.partitions
        return msgspec.structs.replace(manifest, partitions=[msgspec.structs.replace(first, high_watermark=2), *rest])

    export.write_manifest(earlier)


def drop(export: Export) -> None:
    export.write_manifest(lambda manifest: msgspec.structs.replace(manifest, partitions=manifest.partitions[1:]))


def expire(export: Export) -> None:
    def missing(manifest: Manifest) -> Manifest:
        first, *rest = manifest.partitions
        changed = msgspec.structs.replace(first, segments=[first.segments[0]], missing=[OffsetRange(5, 10)])
        return msgspec.structs.replace(manifest, partitions=[changed, *rest])

    export.write_manifest(missing)


LOSSES = {
    vanish: (r"is missing, the export wrote \d+", []),
    cut: (r"has \d+ bytes, the export wrote \d+", records(0, 5, 8)),
    cut_behind_the_manifest: ("ends at offset 8, the export wrote it up to offset 10", records(0, 5, 8)),
    compact: ("offset 6 follows offset 4", records(0, 6, 10)),
    damage: (r"events-0/0+5.log, byte \d+: ", None),
    truncate: ("events-0 was read up to offset 5, and the export ends at offset 2", []),
    drop: ("events-0 was read up to offset 5, and is not in the export", []),
    expire: (r"events-0: no exported segment has the offsets \[5, 10\)", []),
}


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_the_error_for_lost_data_names_the_data(export: Export, lose: Callable[[Export], None]) -> None:
    message, left = LOSSES[lose]
    export.export()
    export.micro_batch()
    export.export()
    lose(export)
    with pytest.raises(DataLossError, match=message):
        export.micro_batch()

    warnings: list[str] = []
    export.lost = warnings.append
    found = export.micro_batch()
    assert warnings
    if left is not None:
        assert found == left + records(1, 5, 10), "the rest is read"
    warnings.clear()
    if lose is not drop:
        assert export.micro_batch() == [] and warnings == []


def test_compaction_of_a_compacted_topic_is_not_reported_as_loss(tmp_path: Path) -> None:
    export = Export(tmp_path, "compact")
    export.export()
    export.micro_batch()
    export.export()
    compact(export)
    assert export.micro_batch() == records(0, 6, 10) + records(1, 5, 10)
    export.export()

    def missing(manifest: Manifest) -> Manifest:
        first, *rest = manifest.partitions
        changed = msgspec.structs.replace(first, segments=first.segments[:2], missing=[OffsetRange(10, 15)])
        return msgspec.structs.replace(manifest, partitions=[changed, *rest])

    export.write_manifest(missing)
    with pytest.raises(DataLossError, match=r"no exported segment has the offsets \[10, 15\)"):
        export.micro_batch()
