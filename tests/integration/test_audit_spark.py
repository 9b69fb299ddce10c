"""The audit on real Spark: an intact export passes, and each kind of damage fails its check."""

import contextlib
import json
import os
import re
import shlex
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from anabranch.cli.main import main
from anabranch.protocol.batch_builder import build_batch, retain_records
from anabranch.protocol.batch_layout import CONTROL_ABORT, CONTROL_COMMIT
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.key_placement import MOVED_HEADER
from anabranch.protocol.records import RecordBatch, iter_batches
from tests.support.audit.history import History
from tests.support.audit.samples import T0, TopicWriter, write_sample
from tests.support.audit.violating_topic import MAX_DECOMPRESSED_BYTES, ViolatingTopic
from tests.support.seen.page_blocks import blocks

pytest.importorskip("pyspark", reason="the audit needs the extra [audit]")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from anabranch.audit import checks, datasource, run
from anabranch.audit.datasource import segment_frame
from anabranch.audit.discovery import discover
from anabranch.audit.manifest import MANIFEST_NAME, LayoutLine, ManifestError
from anabranch.audit.order_field import OrderFieldError
from anabranch.audit.parts import segment_parts
from anabranch.audit.report import AuditReport, Status
from anabranch.audit.run import audit_with, run_audit, spark_session
from tests.support.audit.mutations import RULES_OFF, Audited, RuleOff
from tests.support.log.batches import build_control_batch

pytestmark = pytest.mark.integration

Audit = Callable[..., AuditReport]
ROOT = Path(__file__).resolve().parents[2]
SCHEMA = Draft202012Validator(json.loads((ROOT / "docs" / "audit-report.schema.json").read_text()))


@pytest.fixture(scope="module")
def spark() -> Iterator:
    with spark_session("local[2]", short=True) as session:
        yield session


@pytest.fixture(scope="module")
def audit(spark) -> Audit:
    def run(directory: Path, order_by: str | None = "tsv:0", first: int = 10, **options: Any) -> AuditReport:
        report = audit_with(spark, str(directory), discover(directory), order_by, first, **options)
        SCHEMA.validate(json.loads(json.dumps(report.to_json())))
        return report

    return run


def failed(report: AuditReport) -> dict[str, list[str]]:
    return {check.name: [str(x) for x in check.violations] for check in report.checks if check.violation_count}


def test_an_intact_export_passes_and_all_of_it_is_checked(tmp_path: Path, audit: Audit) -> None:
    write_sample(tmp_path)
    report = audit(tmp_path)
    assert failed(report) == {}
    assert report.passed
    assert (report.partitions, report.segments, report.batches, report.records) == (3, 6, 36, 480)
    counted = {check.name: check.counted for check in report.checks}
    assert counted == {
        "segment files": 6,
        "log ends": 3,
        "crc": 36,
        "readable batches": 36,
        "contiguous offsets": 36,
        "indexes": 0,
        "leader epochs": 36,
        "producer sequences": 36,
        "control batches": 0,
        "replicas": 0,
        "duplicates": 480,
        "key order": 480,
        "placement": 480,
        "closed partitions": 480,
        "consumer positions": 0,
        "consumer key order": 0,
    }
    unknown = {check.name: check.undecided for check in report.checks if check.status is Status.UNKNOWN}
    assert unknown == {"indexes": 12, "replicas": 3, "consumer positions": 0, "consumer key order": 0}
    assert (report.decided, report.exit_status(), report.exit_status(strict=True)) == (12, 0, 1)
    assert [(x.partition, x.leader_epoch, x.first_offset, x.records) for x in report.epochs] == [
        (x.partition, 0, 0, x.last_offset + 1) for x in report.epochs
    ]
    assert sum(x.bytes for x in report.epochs) == sum(path.stat().st_size for path in tmp_path.rglob("*.log"))
    assert [(x.topic, x.records) for x in report.hot_keys] == [("events", 12)] * 20


def test_one_edited_record_is_named(tmp_path: Path, audit: Audit) -> None:
    writer = write_sample(tmp_path)
    segment = writer.partitions[1].segments[0]
    data = bytearray(segment.read_bytes())
    batch = next(iter_batches(data))
    edited = batch.records()[3]
    data[data.index(edited.value)] ^= 1
    segment.write_bytes(data)
    report = audit(tmp_path, order_by=None)
    (check,) = [check for check in report.checks if check.violation_count]
    assert (check.name, check.violation_count) == ("crc", 1)
    (violation,) = check.violations
    assert (violation.topic, violation.partition, violation.offset) == ("events", 1, edited.offset)
    assert violation.segment == f"events-1/{segment.name}"


def test_an_edit_of_several_bytes_names_the_batch(tmp_path: Path, audit: Audit) -> None:
    writer = write_sample(tmp_path)
    segment = writer.partitions[0].segments[0]
    segment.write_bytes(segment.read_bytes().replace(b"change of", b"CHANGE OF", 1))
    found = failed(audit(tmp_path))
    assert list(found) == ["crc"]
    assert "events-0 offset 0" in found["crc"][0] and "offsets 0-" in found["crc"][0]


def test_an_edited_compressed_batch_fails(tmp_path: Path, audit: Audit) -> None:
    writer = write_sample(tmp_path)
    segment = writer.partitions[0].segments[0]
    data = bytearray(segment.read_bytes())
    gzipped = next(batch for batch in iter_batches(data) if batch.compression is CompressionType.GZIP)
    position = data.index(bytes(gzipped.buffer))
    data[position + 90] ^= 0xFF
    segment.write_bytes(data)
    found = failed(audit(tmp_path))
    assert list(found) == ["crc"]
    assert f"events-0 offset {gzipped.base_offset}" in found["crc"][0]


def test_a_missing_segment_and_a_cut_one_are_reported(tmp_path: Path, audit: Audit) -> None:
    writer = write_sample(tmp_path)
    writer.partitions[0].segments[0].unlink()
    cut = writer.partitions[1].segments[1]
    batches = list(iter_batches(cut.read_bytes()))
    cut.write_bytes(cut.read_bytes()[: -batches[-1].length])
    found = failed(audit(tmp_path))
    assert sorted(found) == ["log ends", "segment files"]
    assert len(found["segment files"]) == 2
    assert any("the log start offset is 0" in x for x in found["log ends"])
    assert any(f"the high watermark is {writer.partitions[1].offset}" in x for x in found["log ends"])


def test_offsets_that_are_missing_from_every_export_are_reported_as_unknown_and_not_as_a_gap(
    tmp_path: Path, audit: Audit
) -> None:
    def skip(writer: TopicWriter) -> None:
        partition = writer.place(b"key-1")
        partition.offset, partition.sequence = partition.offset + 2, partition.sequence + 2
        partition.append([(b"key-1", b"9999\tlater")])

    writer = write_sample(tmp_path, skip)
    end = writer.place(b"key-1").offset - 1
    found = failed(audit(tmp_path))
    assert set(found) == {"contiguous offsets", "producer sequences"}
    assert f"offset {end} in" in found["contiguous offsets"][0]
    path = tmp_path / MANIFEST_NAME
    manifest = json.loads(path.read_bytes())
    for entry in manifest["partitions"]:
        if entry["high_watermark"] == end + 1:
            entry["missing"] = [{"first_offset": end - 2, "end_offset": end}]
    path.write_text(json.dumps(manifest))
    report = audit(tmp_path)
    assert failed(report) == {}
    unknown = {check.name: check.unknown for check in report.checks if check.status is Status.UNKNOWN}
    removed = "2 offsets were removed by their broker between two exports"
    assert (unknown["contiguous offsets"], unknown["producer sequences"]) == (removed, removed)


def test_a_compacted_topic_may_have_gaps(tmp_path: Path, audit: Audit) -> None:
    writer = TopicWriter(tmp_path, "table", 1, cleanup_policy="compact")
    batches = [
        RecordBatch(
            build_batch(
                [(b"k%d" % k, b"%d" % (n * 10 + k), (), T0) for k in range(5)],
                base_offset=n * 5,
                producer_id=1,
                producer_epoch=0,
                base_sequence=n * 5,
            )
        )
        for n in range(5)
    ]
    for batch, kept in zip(batches, [[0, 4], [], None, [2], [0, 1, 2, 3, 4]], strict=True):
        if kept is not None:
            records = batch.records()
            writer.partitions[0].write(retain_records(batch, [records[k] for k in kept]), 0)
    writer.partitions[0].offset = 25
    writer.finish()
    report = audit(tmp_path, order_by="tsv:0")
    assert failed(report) == {}
    assert report.records == 8


def test_records_of_a_key_out_of_order_are_reported(tmp_path: Path, audit: Audit) -> None:
    write_sample(tmp_path, lambda writer: writer.place(b"key-1").append([(b"key-1", b"3\tlate"), (b"key-1", b"no\t")]))
    found = failed(audit(tmp_path))
    assert list(found) == ["key order"]
    assert "order value 3 comes after 441" in found["key order"][0]
    assert "not an integer" in found["key order"][1]


def test_records_of_a_key_out_of_order_by_a_field_of_json_are_reported(tmp_path: Path, audit: Audit) -> None:
    writer = TopicWriter(tmp_path, "events", 1)
    values = [b'{"at": {"n": 2}}', b'{"at": {"n": 1}}', b'{"at": {}}']
    writer.place(b"key-1").append([(b"key-1", value) for value in values])
    writer.finish()
    found = failed(audit(tmp_path, order_by="json:at.n"))
    assert list(found) == ["key order"]
    assert "order value 1 comes after 2" in found["key order"][0]
    assert "value has no field at.n" in found["key order"][1]


def test_a_record_written_twice_by_a_producer_without_sequences_is_reported(tmp_path: Path, audit: Audit) -> None:
    def prepare(writer: TopicWriter) -> None:
        for _ in range(2):
            writer.place(b"key-1").append([(b"key-1", b"9999\ta")], producer_id=-1, sequence=-1)

    write_sample(tmp_path, prepare)
    found = failed(audit(tmp_path))
    assert list(found) == ["duplicates"]
    assert "order value 9999 already" in found["duplicates"][0]
    (check,) = [check for check in audit(tmp_path, order_by=None).checks if check.name == "duplicates"]
    assert (check.status, check.undecided) == (Status.UNKNOWN, 2), "without an order value duplicates are unknown"


def test_sequences_that_wrap_are_no_violation(tmp_path: Path, audit: Audit) -> None:
    writer = TopicWriter(tmp_path, "events", 1)
    writer.partitions[0].append([(b"k", b"1"), (b"k", b"2"), (b"k", b"3")], sequence=2**31 - 2)
    writer.partitions[0].append([(b"k", b"4")], sequence=1)
    writer.finish()
    assert failed(audit(tmp_path)) == {}


@pytest.mark.parametrize(("outcome", "repeats"), [(CONTROL_ABORT, 0), (CONTROL_COMMIT, 1)])
def test_records_of_an_aborted_transaction_do_not_count(
    tmp_path: Path, audit: Audit, outcome: int, repeats: int
) -> None:
    writer = TopicWriter(tmp_path, "events", 1)
    partition = writer.partitions[0]

    def transactional(sequence: int) -> bytes:
        records = [(b"k", b"5", (), T0)]
        return build_batch(
            records,
            base_offset=partition.offset,
            producer_id=4,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )

    partition.write(transactional(0), 1)
    partition.write(build_control_batch(outcome, 4, 0, 0, T0, base_offset=1), 1)
    partition.write(transactional(1), 1)
    partition.write(build_control_batch(CONTROL_COMMIT, 4, 0, 0, T0, base_offset=3), 1)
    writer.finish()
    assert len(failed(audit(tmp_path)).get("duplicates", [])) == repeats


def test_placement_and_order_are_checked_across_a_resize(tmp_path: Path, audit: Audit) -> None:
    """Resize 2 -> 3 partitions at leader epoch 1: moved keys continue in their new partition, in order."""
    writer = TopicWriter(tmp_path, "events", 2)
    writer.add_partition(2)
    old, new = LayoutLine(0, 2, 2, 0), LayoutLine(1, 2, 3, 1)
    writer.layouts = {0: [old, new], 1: [old, new], 2: [new]}
    keys = [b"key-%d" % n for n in range(30)]
    for n, key in enumerate(keys):
        writer.place(key, 2).append([(key, b"%d" % n)], leader_epoch=0)
    for n, key in enumerate(keys):
        writer.place(key, 3).append([(key, b"%d" % (100 + n))], leader_epoch=1)
    writer.finish()
    assert failed(audit(tmp_path)) == {}
    assert {writer.place(key, 2) is writer.place(key, 3) for key in keys} == {True, False}

    moved = next(key for key in keys if writer.place(key, 2) is not writer.place(key, 3))
    writer.place(moved, 2).append([(moved, b"200")], leader_epoch=1)
    writer.place(moved, 3).append([(moved, b"50")], leader_epoch=1)
    writer.finish()
    found = failed(audit(tmp_path))
    assert sorted(found) == ["key order", "placement"]
    assert len(found["placement"]) == 1


def test_only_tombstones_of_moved_keys_may_be_in_their_old_partition(tmp_path: Path, audit: Audit) -> None:
    """Resize 2 -> 3 of a compacted topic: only tombstones of a moved key may be in its old partition."""
    writer = TopicWriter(tmp_path, "table", 2, cleanup_policy="compact")
    writer.add_partition(2)
    old, new = LayoutLine(0, 2, 2, 0), LayoutLine(1, 2, 3, 1)
    writer.layouts = {0: [old, new], 1: [old, new], 2: [new]}
    keys = [b"key-%d" % n for n in range(30)]
    moved = [key for key in keys if writer.place(key, 3) is writer.partitions[2]]
    header = [(MOVED_HEADER, b"")]
    for key in keys:
        writer.place(key, 2).append([(key, b"1")])
    for key in keys:
        writer.place(key, 3).append([(key, b"2")], leader_epoch=1)
    for key in moved:
        writer.partitions[0].append([(key, None)], leader_epoch=1, headers=header)
    writer.finish()
    report = audit(tmp_path)
    assert failed(report) == {}
    counted = {check.name: check.counted for check in report.checks}
    assert (counted["placement"], counted["key order"]) == (60 + len(moved), 60)

    misplaced = f"key '{moved[0].decode()}' belongs in partition 2"
    writer.partitions[0].append([(moved[0], b"3")], leader_epoch=1, headers=header)
    writer.partitions[1].append([(moved[0], None)], leader_epoch=1, headers=header)
    writer.partitions[1].append([(moved[0], None)], leader_epoch=1)
    writer.finish()
    found = [message.split(": ", 1)[1] for message in failed(audit(tmp_path))["placement"]]
    assert found == [
        f"{misplaced}; the header {MOVED_HEADER} is only for tombstones, and this record has a value",
        f"{misplaced}; the key was never in the partition of this tombstone with the header {MOVED_HEADER}",
        misplaced,
    ]


def test_order_and_closed_partitions_are_checked_across_two_grows_and_a_shrink(tmp_path: Path, audit: Audit) -> None:
    """2 -> 3 -> 2 -> 3: keys move to partition 2, back, and to partition 2 again.

    The layouts decide the order of records; offsets and epochs do not. Partition 2 is closed only in its second leader
    epoch.
    """
    writer = TopicWriter(tmp_path, "events", 2)
    writer.add_partition(2)
    survivor = [LayoutLine(0, 2, 2, 0), LayoutLine(1, 2, 3, 1), LayoutLine(2, 2, 2, 2), LayoutLine(3, 2, 3, 3)]
    revived = [LayoutLine(8, 2, 3, 1), LayoutLine(9, 2, 2, 2), LayoutLine(10, 2, 3, 3)]
    writer.layouts = {0: survivor, 1: survivor, 2: revived}
    keys = [b"key-%d" % n for n in range(30)]
    for n, key in enumerate(keys):
        writer.place(key, 2).append([(key, b"%d" % n)], leader_epoch=0)
    for n, key in enumerate(keys):
        is_new = writer.place(key, 3) is writer.partitions[2]
        writer.place(key, 3).append([(key, b"%d" % (100 + n))], leader_epoch=8 if is_new else 1)
    for n, key in enumerate(keys):
        writer.place(key, 2).append([(key, b"%d" % (200 + n))], leader_epoch=2)
    writer.partitions[2].write(
        build_control_batch(CONTROL_COMMIT, 4, 0, 0, T0, base_offset=writer.partitions[2].offset, leader_epoch=9), 1
    )
    for n, key in enumerate(keys):
        moved = writer.place(key, 3) is writer.partitions[2]
        writer.place(key, 3).append([(key, b"%d" % (300 + n))], leader_epoch=10 if moved else 3)
    writer.finish()
    assert failed(audit(tmp_path)) == {}, "markers are written to a closed partition"

    writer.partitions[2].append([(None, b"400")], leader_epoch=9)
    writer.finish()
    found = failed(audit(tmp_path))
    assert list(found) == ["leader epochs", "closed partitions"]
    assert "record of leader epoch 9, in which the partition was closed" in found["closed partitions"][0]


def test_a_log_directory_without_manifest_is_checked_as_far_as_possible(tmp_path: Path, audit: Audit) -> None:
    writer = write_sample(tmp_path)
    (tmp_path / MANIFEST_NAME).unlink()
    report = audit(tmp_path)
    assert failed(report) == {}
    unknown = {check.name for check in report.checks if check.status is Status.UNKNOWN}
    assert unknown == {
        "segment files", "log ends", "indexes", "replicas", "key order", "placement", "closed partitions",
        "consumer positions", "consumer key order",
    }  # fmt: skip
    data = bytearray(writer.partitions[0].segments[0].read_bytes())
    data[80] ^= 1
    writer.partitions[0].segments[0].write_bytes(data)
    assert list(failed(audit(tmp_path))) == ["crc"]


def test_only_the_first_violations_are_kept_but_all_are_counted(tmp_path: Path, audit: Audit) -> None:
    write_sample(
        tmp_path,
        lambda writer: writer.place(b"key-1").append([(b"key-1", b"%d\tlate" % n) for n in range(400, 300, -3)]),
    )
    (check,) = [x for x in audit(tmp_path, first=4).checks if x.name == "key order"]
    assert (check.violation_count, len(check.violations)) == (34, 4)


def test_the_data_source_serves_users_without_an_import(tmp_path: Path, spark) -> None:
    write_sample(tmp_path)
    session = spark.newSession()  # no source is registered in it
    frame = session.read.format("anabranch-segments").load(str(tmp_path))
    rows = frame.where("key = cast('key-7' as binary)").orderBy("partition", "offset").collect()
    assert [bytes(row["value"]) for row in rows] == [b"%d\tchange of key-7" % (n * 40 + 7) for n in range(12)]
    assert len({row["partition"] for row in rows}) == 1

    def narrow(**options: str) -> DataFrame:
        reader = session.read.format("anabranch-segments").options(columns="offset, partition", **options)
        return reader.load(str(tmp_path))

    one = narrow(assign='{"events": [1]}', endingOffsets=json.dumps({"events": {"1": 100}}))
    assert one.columns == ["offset", "partition"]
    assert one.rdd.getNumPartitions() == 2, "each segment of the partition is a part"
    assert sorted(one.collect()) == [(offset, 1) for offset in range(100)]

    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    whole = narrow()
    counts = [whole.where(f"partition = {p}").count() for p in range(3)]
    assert whole.count() == sum(counts) == 480, "no query reads with the filters of another"
    with pytest.raises(Exception, match="topic events has no partition 7"):
        narrow(assign='{"events": [7]}').count()
    with pytest.raises(Exception, match="has no column 'ofset'"):
        session.read.format("anabranch-segments").option("columns", "ofset").load(str(tmp_path))


def test_a_stream_follows_an_export_and_continues_from_its_checkpoint(tmp_path: Path, spark) -> None:
    writer = write_sample(tmp_path / "export")
    checkpoint = str(tmp_path / "checkpoint")

    def export() -> None:
        manifest = msgspec.structs.replace(writer.manifest(), cluster_id="C", topic_id="T")
        for entry in manifest.partitions:
            ends = [*(segment.base_offset for segment in entry.segments[1:]), entry.high_watermark]
            pairs = zip(entry.segments, ends, strict=True)
            entry.segments[:] = [msgspec.structs.replace(segment, end_offset=end) for segment, end in pairs]
        (writer.root / MANIFEST_NAME).write_bytes(manifest.encode())

    def follow(**options: str) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        rows = spark.readStream.format("anabranch-segments").options(columns="partition, offset", **options)
        stream = rows.load(str(writer.root)).writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
        return sorted(tuple(row) for row in found)

    export()
    first = follow()
    assert first == sorted((p, offset) for p, one in writer.partitions.items() for offset in range(one.offset))
    before = writer.partitions[1].offset
    writer.partitions[1].roll()
    writer.partitions[1].append([(b"key", b"1\tnew"), (b"key", b"2\tnew")])
    export()
    assert follow() == [(1, before), (1, before + 1)]
    writer.partitions[1].roll()
    writer.partitions[1].append([(b"key", b"3\tnew")])
    export()
    writer.partitions[1].segments[-1].unlink()
    with pytest.raises(StreamingQueryException, match=r"is missing, the export wrote .*failOnDataLoss=false continues"):
        follow()
    assert follow(failOnDataLoss="false") == []


def test_run_audit_refuses_invalid_arguments_before_it_starts_spark(tmp_path: Path) -> None:
    with pytest.raises(ManifestError):
        run_audit(tmp_path)
    write_sample(tmp_path)
    with pytest.raises(OrderFieldError):
        run_audit(tmp_path, order_by="csv:1")
    with pytest.raises(FileNotFoundError):
        run_audit(tmp_path / "nowhere")


def test_run_audit_does_not_take_over_a_running_session(tmp_path: Path, spark) -> None:
    write_sample(tmp_path)
    with pytest.raises(RuntimeError, match="audit_with"):
        run_audit(tmp_path)


def fail_to_start() -> None:
    with run._captured_stderr():
        os.write(2, b"printed before")
        raise OSError("no java")


def test_a_failed_start_shows_the_output_of_the_jvm() -> None:
    with pytest.raises(RuntimeError, match="did not start: no java\nprinted before"):
        fail_to_start()


# ---------------------------------------------------------------- every violation, in files of the broker's log


def named(report: AuditReport) -> set[tuple[str, int, int | None, str | None, int | None]]:
    """Name each violation by its check, partition, offset, file and byte."""
    return {
        (check.name, found.partition, found.offset, found.segment and found.segment.split("/")[-1], found.position)
        for check in report.checks
        for found in check.violations
    }


def test_a_clean_history_of_many_resizes_and_a_million_records_gives_no_violation(tmp_path: Path, audit: Audit) -> None:
    """Every check has a result, except the checks of a consumer log and of the replicas of all partitions."""
    history = History(tmp_path, 4, segment_bytes=1 << 24)
    keys = [b"key-%d" % n for n in range(2_500)]
    for count in (4, 6, 9, 6, 4, 8, 5, 16, 4, 7):
        if count != history.count:
            history.resize(count)
        history.write_rounds(keys, 40)
    history.finish(copied=tuple(range(16)))
    report = audit(tmp_path)
    assert failed(report) == {}
    assert report.records == 1_000_000
    counted = {check.name: check.counted for check in report.checks if check.status is Status.PASSED}
    assert counted.pop("indexes") > 1_000
    assert counted.pop("replicas") == report.batches
    assert counted == {
        "segment files": 2 * report.segments, "log ends": 32, "crc": 2 * report.batches, "control batches": 0,
        "readable batches": 2 * report.batches, "contiguous offsets": 2 * report.batches,
        "leader epochs": 2 * report.batches, "producer sequences": report.batches, "duplicates": 1_000_000,
        "key order": 1_000_000, "placement": 1_000_000, "closed partitions": 1_000_000,
    }  # fmt: skip
    assert {(x.undeleted_partition_count, x.layout_version) for x in report.epochs} == {
        (count, version) for version, count in enumerate((4, 6, 9, 6, 4, 8, 5, 16, 4, 7))
    }


@pytest.fixture(scope="module")
def violating_topic(tmp_path_factory: pytest.TempPathFactory) -> ViolatingTopic:
    """Return an export that has every violation, and a consumer log beside it."""
    root = tmp_path_factory.mktemp("violating_topic") / "exported"
    violating_topic = ViolatingTopic(root)
    violating_topic.append_violations()
    violating_topic.append_bomb()
    violating_topic.history.finish(copied=(11, 12, 31))
    violating_topic.damage_files()
    violating_topic.write_consumer_log(root.with_name("consumers.jsonl"))
    return violating_topic


def audited_violations(audit: Audit, violating_topic: ViolatingTopic, *, is_merged: bool) -> tuple[AuditReport, int]:
    """Audit the export, with a row for each stretch of batches or each batch. Returns the number of rows, too."""
    rows: list[int] = []

    def frame(*args: Any, merged: Any = None, **options: Any) -> DataFrame:
        if merged is None:
            return segment_frame(*args, **options)
        found = segment_frame(*args, **options, merged=merged if is_merged else lambda *_: False)
        rows.append(found.where("batch_start").count())
        return found

    root = violating_topic.history.root
    options = {"consumer_log": root.with_name("consumers.jsonl"), "max_decompressed_bytes": MAX_DECOMPRESSED_BYTES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasource, "segment_frame", frame)
        report = audit(root, first=50, **options)
    (read,) = rows
    return report, read


@pytest.fixture(scope="module")
def of_stretches(audit: Audit, violating_topic: ViolatingTopic) -> tuple[AuditReport, int]:
    return audited_violations(audit, violating_topic, is_merged=True)


def test_every_violation_in_the_brokers_files_is_found_and_named_at_its_place(
    of_stretches: tuple[AuditReport, int], violating_topic: ViolatingTopic
) -> None:
    """Each violation has a partition of its own, and there are no other violations."""
    report, _ = of_stretches
    assert named(report) == violating_topic.expected
    assert {check.name for check in report.checks if check.status is not Status.VIOLATED} == set()


def test_stretches_of_batches_give_the_same_report_as_single_batches(
    of_stretches: tuple[AuditReport, int], audit: Audit, violating_topic: ViolatingTopic
) -> None:
    """Every count, violation and total is the same, although far fewer rows are read."""
    report, stretches = of_stretches
    of_batches, batches = audited_violations(audit, violating_topic, is_merged=False)
    assert report.to_json() == of_batches.to_json()
    assert 0 < stretches < batches


def test_a_batch_inside_a_stretch_is_compared_with_the_batches_of_the_stretch(tmp_path: Path, audit: Audit) -> None:
    """The batch at offsets 15 to 24 comes after offset 29 in the file, with the next sequence."""
    (tmp_path / "t-0").mkdir()
    log, places = tmp_path / "t-0" / "00000000000000000000.log", {}
    for offset, sequence in ((0, 0), (10, 10), (20, 20), (15, 30)):
        places[offset] = log.stat().st_size if log.exists() else 0
        records = [(b"key", b"%d" % (sequence + n), (), T0) for n in range(10)]
        batch = build_batch(
            records, base_offset=offset, leader_epoch=0, producer_id=7, producer_epoch=0, base_sequence=sequence
        )
        with log.open("ab") as file:
            file.write(batch)
    found = {check.name: {(x.offset, x.position) for x in check.violations} for check in audit(tmp_path).checks}
    assert found["contiguous offsets"] == {(15, places[15])}
    assert found["producer sequences"] == {(15, places[15]), (20, places[20])}


@pytest.fixture(scope="module")
def audited(spark, violating_topic: ViolatingTopic) -> Audited:
    return Audited(spark, violating_topic, violating_topic.history.root.with_name("consumers.jsonl"))


@pytest.mark.parametrize("off", RULES_OFF, ids=lambda off: off.rule)
@pytest.mark.mutation
def test_a_check_without_one_of_its_rules_misses_the_violations_of_that_rule(audited: Audited, off: RuleOff) -> None:
    with off.applied():
        found = audited.violations(off.check, off.of, read_again=off.reads)
    expected = {place for place in audited.expected if place[0] == off.check}
    assert {partition for _, partition, *_ in expected - found} == off.missed


def test_rules_of_every_check_are_switched_off_and_listed_in_the_docs(violating_topic: ViolatingTopic) -> None:
    assert {off.check for off in RULES_OFF} == {check for check, *_ in violating_topic.expected}
    assert all(off.missed for off in RULES_OFF)
    listed = (ROOT / "docs" / "development.md").read_text().split("\n## Rules of the audit")[1].split("\n## ")[0]
    rows = dict(line.strip("| ").split(" | ") for line in listed.splitlines() if line.startswith("| "))
    for check in {off.check for off in RULES_OFF}:
        assert [rule.strip() for rule in rows[check].split(";")] == [x.rule for x in RULES_OFF if x.check == check]


def test_gaps_of_a_compacted_topic_are_allowed_and_its_other_faults_are_found(audited: Audited) -> None:
    def partitions(found: DataFrame) -> set[int]:
        return {row["partition"] for row in found.collect()}

    assert partitions(checks.broken_offsets(audited.batches, True)) == {24}
    assert partitions(checks.broken_sequences(audited.batches, True)) == {3, 26, 33}


@pytest.mark.parametrize("split_bytes", [1 << 30, 700])
def test_an_untrue_index_entry_is_counted_once_however_a_segment_is_split(
    tmp_path: Path, spark, split_bytes: int
) -> None:
    """Each entry is two batches too low. Both the part before the entry and the entry's own part contradict it."""
    batches, entry = 40, struct.Struct(">qi")
    writer = TopicWriter(tmp_path, "events", 1)
    offsets = b""
    for offset in range(batches):
        path = writer.partitions[0].segment
        offsets += struct.pack(">ii", offset, path.stat().st_size if path else 0) if offset else b""
        writer.partitions[0].write(build_batch([(b"k", b"x" * 50, (), T0 + offset)], base_offset=offset), 1)
    writer.finish()
    log = writer.partitions[0].segments[0]
    log.with_suffix(".index").write_bytes(offsets)
    numbers = range(3, batches, 3)
    log.with_suffix(".timeindex").write_bytes(b"".join(entry.pack(T0 + number - 2, number) for number in numbers))
    topics = discover(tmp_path)
    assert (len(list(segment_parts(topics, split_bytes))) > 5) == (split_bytes == 700)
    found = checks.untrue_index_entries(segment_frame(spark, topics, "summary", split_bytes=split_bytes))
    assert sorted((row["position"], row["offset"]) for row in found.collect()) == [
        (entry.size * at, number) for at, number in enumerate(numbers)
    ]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_file_that_cannot_be_read_is_named_and_the_rest_is_checked(
    tmp_path: Path, audit: Audit, make: Callable[[Path], None]
) -> None:
    write_sample(tmp_path)
    whole = audit(tmp_path)
    log = next(path for path in sorted(tmp_path.rglob("*.log")))
    lost = len(list(iter_batches(log.read_bytes())))
    for path in (log, log.with_suffix(".index")):
        path.unlink(missing_ok=True)
        make(path)
    report = audit(tmp_path)
    name = f"{log.parent.name}/{log.name}"
    violations = {check.name: check.violations for check in report.checks}
    assert [(x.segment, x.message) for x in violations["readable batches"]] == [
        (name, "the file cannot be read: not a regular file")
    ]
    assert [x.message for x in violations["indexes"]] == ["the index cannot be read: not a regular file"]
    assert name in {x.segment for x in violations["segment files"]}
    assert report.batches == whole.batches - lost + 1
    unknown = {check.name: check.unknown for check in report.checks if check.status is Status.UNKNOWN}
    of_batches = ("crc", "contiguous offsets", "leader epochs", "producer sequences", "control batches")
    for name in (*of_batches, "duplicates", "key order", "placement", "closed partitions"):
        assert "1 batch cannot be read" in (unknown[name] or "")


def test_an_empty_topic_has_no_violation(tmp_path: Path, audit: Audit) -> None:
    TopicWriter(tmp_path, "events", 2).finish()
    report = audit(tmp_path)
    assert (failed(report), report.partitions, report.records, report.epochs) == ({}, 2, 0, [])


def test_the_programs_of_the_documentation_run(
    tmp_path: Path, spark, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The programs of audit.md and audit-planning.md run on a log with one record out of order."""
    writer = TopicWriter(tmp_path, "events", 1)
    writer.place(b"key-1").append([(b"key-1", b'{"sequence": %d}' % n) for n in (2, 1)])
    writer.finish()
    monkeypatch.setattr(run, "spark_session", lambda *_, **__: contextlib.nullcontext(spark))
    outputs = []
    for page in ("audit.md", "audit-planning.md"):
        for program in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL):
            exec(re.sub(r'"(/mnt/)?exported"', repr(str(tmp_path)), program), {"spark": spark})
            outputs.append(capfd.readouterr().out)
    by_hand, whole, submitted = outputs
    assert "order value 1 comes after 2" in by_hand and "KIP-253" in by_hand
    assert whole.strip() == "1 ['key order']"
    assert "order value 1 comes after 2" in submitted


def test_the_commands_of_the_pages_run(
    tmp_path: Path, spark, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The audit of an intact topic, as command-line.md and audit.md call it; the consumer log is that of audit.md."""
    writer = TopicWriter(tmp_path / "exported", "events", 4)
    for number in range(200):
        writer.place(b"key-%d" % number).append([(b"key-%d" % number, b'{"sequence": %d}' % number)])
    writer.finish()
    found = blocks()
    (delivered,) = [block for block in found if block.page == "docs/audit.md" and '"member"' in block.lines[0]]
    (tmp_path / "delivered.jsonl").write_text("\n".join(delivered.lines) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "spark_session", lambda *_, **__: contextlib.nullcontext(spark))
    lines = [line for block in found for line in block.lines if line.startswith("anabranch audit exported ")]
    assert len(lines) == 2
    for line in lines:
        # Spark was started in another directory.
        line = re.sub(r"(?<= )(?:exported|delivered\.jsonl)", lambda name: str(tmp_path / name[0]), line)
        with pytest.raises(SystemExit, match=r"^0$"):
            main(shlex.split(line)[1:])
        assert "PASS" in capsys.readouterr().out
        SCHEMA.validate(json.loads((tmp_path / "report.json").read_text()))
        (tmp_path / "report.json").unlink()
    assert "Every key is in order" in (tmp_path / "report.html").read_text()


def test_a_user_calls_a_check_on_dataframes_and_reads_its_guarantee(tmp_path: Path, spark) -> None:
    from anabranch.audit import checks, read_rows

    writer = write_sample(tmp_path, lambda writer: writer.place(b"key-1").append([(b"key-1", b"3\tlate")]))
    rows = read_rows(spark, str(tmp_path), order_by="tsv:0")
    (found,) = checks.broken_key_order(checks.records(rows)).collect()
    assert (found["offset"], found["segment"].split("/")[0]) == (
        writer.place(b"key-1").offset - 1, writer.place(b"key-1").path.name
    )  # fmt: skip
    assert checks.misplaced_records(checks.records(rows)).isEmpty()
    assert "KIP-253" in checks.promise_of(checks.broken_key_order)
