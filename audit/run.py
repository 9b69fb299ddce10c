"""Run the audit: start Spark quietly, read the directory once, apply every check, stop Spark."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from audit.discovery import TopicFiles, discover
from audit.file_checks import PartitionSummary, missing_or_resized_files, wrong_log_ends
from audit.manifest import layouts_until
from audit.order_field import OrderField
from audit.report import AuditReport, Check, Epoch, HotKey, Violation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

Summaries: TypeAlias = dict[tuple[str, int], PartitionSummary]

# Most rows stay in Python, and a run lasts seconds: the JVM's optimising compiler and Spark's generated code cost more
# than they save. They are left alone where there is more to do.
_SHORT_RUN_SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}
SHORT_RUN_BYTES = 4 * 1024**3

FIRST_VIOLATIONS = 10
_OF_RECORDS = [
    "topic", "partition", "segment", "position", "offset", "key", "layout_version", "order_value", "order_error"
]  # fmt: skip
"""What the checks of the order of records need."""
_SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}
_LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def run_audit(
    directory: str | Path,
    *,
    order_by: str | None = None,
    master: str | None = "local[2]",
    first: int = FIRST_VIOLATIONS,
) -> AuditReport:
    """Check an exported directory, or a log directory. Each check keeps its ``first`` violations.

    ``order_by`` (``json:FIELD`` or ``tsv:N``) names the integer in the values that must not decrease within a key.
    ``master`` None leaves the master to ``spark-submit`` and to Spark's own configuration.
    Raises ManifestError for a directory that is none, OrderFieldError for an ``order_by`` that is none, and
    ModuleNotFoundError without pyspark.
    """
    topics = discover(directory)
    if order_by is not None:
        OrderField(order_by)
    with spark_session(master, short=_size(topics) < SHORT_RUN_BYTES) as spark, _explained():
        return audit_with(spark, str(directory), topics, order_by, first)


@contextlib.contextmanager
def spark_session(master: str | None, *, short: bool = False) -> Iterator[SparkSession]:
    """A quiet session of its own, stopped at the end.

    Local workers run this interpreter and find these packages. On a cluster the interpreter is ``PYSPARK_PYTHON`` where
    that is set, and else the one at this one's path. ``short``: it is to start quickly and has little to do.
    """
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        raise RuntimeError("a Spark session is active in this process; pass it to audit_with instead")
    is_local = master is not None and master.startswith("local")
    with tempfile.TemporaryDirectory(prefix="anabranch-") as directory, _environment(is_local, Path(directory)):
        builder = SparkSession.builder.appName("anabranch audit")
        if master is not None:
            builder = builder.master(master)
        chosen = _SETTINGS | (_LOCAL_SETTINGS if is_local else {}) | (_SHORT_RUN_SETTINGS if short else {})
        for name, value in chosen.items():
            builder = builder.config(name, value)
        with _captured_stderr():
            spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()


@contextlib.contextmanager
def _environment(is_local: bool, directory: Path) -> Iterator[None]:
    """What Spark's processes find in their environment. Those of a cluster have only what names the interpreter."""
    root = str(Path(__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    path = root if not inherited else f"{root}{os.pathsep}{inherited}"
    changed = {"PYTHONPATH": path}
    if is_local:
        changed["PYSPARK_PYTHON"] = _interpreter(directory, path)
        changed |= {"PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    else:
        changed["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name in changed:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _interpreter(directory: Path, path: str) -> str:
    """A program that runs this interpreter with the installed PySpark.

    Spark puts an archive of PySpark before it in the path. It has no byte code: each worker would compile it anew, for
    seconds. Another Spark (``SPARK_HOME``) needs its own PySpark, and Windows has no such program.
    """
    if "SPARK_HOME" in os.environ or os.name != "posix":
        return sys.executable
    program = directory / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(path)} exec {shlex.quote(sys.executable)} "$@"\n')
    program.chmod(0o700)
    return str(program) if os.access(program, os.X_OK) else sys.executable  # a file system may run no programs


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Name what a worker lacks, instead of Spark's account of a failed stage."""
    try:
        yield
    except Exception as error:
        if (module := re.search(r"ModuleNotFoundError: No module named '([^']+)'", str(error))) is not None:
            raise RuntimeError(
                f"a Spark worker has no Python module {module[1]!r}: pip install 'anabranch[audit]' on every worker, "
                f"for the interpreter that PYSPARK_PYTHON names there"
            ) from error
        if (file := re.search(r"MissingSegmentError: (.+)", str(error))) is not None:
            raise RuntimeError(file[1]) from error
        raise


@contextlib.contextmanager
def _captured_stderr() -> Iterator[None]:
    """Keep the JVM's greetings off the terminal; they are printed only when it fails to start.

    The JVM inherits file descriptor 2 and writes to it before any log setting is read.
    """
    saved = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        try:
            os.dup2(captured.fileno(), 2)
            yield
        except Exception as error:
            captured.seek(0)
            said = captured.read().decode(errors="replace").strip()
            raise RuntimeError(f"Spark did not start: {error}\n{said}".rstrip()) from error
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _size(topics: Iterable[TopicFiles]) -> int:
    """The bytes of all segment files."""
    partitions = (partition for topic in topics for partition in topic.manifest.partitions)
    return sum(segment.size_bytes for partition in partitions for segment in partition.segments)


def audit_with(
    spark: SparkSession, directory: str, topics: list[TopicFiles], order_by: str | None, first: int
) -> AuditReport:
    """``run_audit`` on a session of the caller's."""
    from audit.datasource import segment_frame

    def read(view: str) -> DataFrame:
        return segment_frame(spark, topics, view, order_by)

    kept = read("summary").persist()
    try:
        rows = _summarise(kept)
        summaries = _per_partition(rows)
        found = [
            *_file_checks(topics, summaries, first),
            *_row_checks(kept, read, topics, summaries, order_by, first),
        ]
        hot_keys = _hot_keys(kept)
    finally:
        kept.unpersist()
    return AuditReport(
        directory=directory,
        topics=[topic.manifest.topic for topic in topics],
        partitions=sum(len(topic.manifest.partitions) for topic in topics),
        segments=sum(len(partition.segments) for topic in topics for partition in topic.manifest.partitions),
        batches=sum(summary.batches for summary in summaries.values()),
        records=sum(summary.records for summary in summaries.values()),
        checks=found,
        bytes=sum(summary.bytes for summary in summaries.values()),
        epochs=_epochs(rows, topics),
        hot_keys=hot_keys,
    )


_SUMMED = ("batches", "records", "bytes", "placed", "placeable", "closed", "by_clients", "ordered", "transactional")


def _summarise(kept: DataFrame) -> list[Row]:
    """What there is of each partition and leader epoch, in this order. Batches that cannot be read are in none."""
    from pyspark.sql import functions as F

    per_batch = [F.lit(1).alias("batches"), F.col("is_transactional").cast("int").alias("transactional")]
    batches = kept.where("batch_start").select("*", *per_batch)
    grouped = batches.groupBy("topic", "partition", "leader_epoch", "layout_version").agg(
        F.min("base_offset").alias("first_offset"),
        F.max("last_offset").alias("last_offset"),
        F.min("base_timestamp").alias("first_timestamp"),
        F.max("max_timestamp").alias("last_timestamp"),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _SUMMED),
    )
    return sorted(grouped.collect(), key=lambda x: (x["topic"], x["partition"], x["leader_epoch"] or 0))


def _per_partition(found: Iterable[Row]) -> Summaries:
    summaries: dict[tuple[str, int], list[Row]] = {}
    for row in found:
        summaries.setdefault((row["topic"], row["partition"]), []).append(row)
    return {
        key: PartitionSummary(
            first_offset=min((x["first_offset"] for x in rows if x["first_offset"] is not None), default=None),
            last_offset=max((x["last_offset"] for x in rows if x["last_offset"] is not None), default=None),
            **{name: sum(row[name] for row in rows) for name in _SUMMED},
        )
        for key, rows in summaries.items()
    }


def _epochs(found: Iterable[Row], topics: Iterable[TopicFiles]) -> list[Epoch]:
    entries = {
        (topic.manifest.topic, partition.partition): (topic.manifest, partition)
        for topic in topics
        for partition in topic.manifest.partitions
    }
    epochs = []
    for row in found:
        if row["first_offset"] is None:
            continue
        layouts = layouts_until(*entries[row["topic"], row["partition"]], row["leader_epoch"])
        layout = layouts[-1] if layouts else None
        epochs.append(
            Epoch(
                initial_partition_count=layout.initial_partition_count if layout else None,
                undeleted_partition_count=layout.undeleted_partition_count if layout else None,
                **{field.name: row[field.name] for field in fields(Epoch) if field.name in row},
            )
        )
    return epochs


def _hot_keys(kept: DataFrame) -> list[HotKey]:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from audit.summary import HOT_KEYS

    counted = kept.where("kind = 'hot'").groupBy("topic", "key").agg(F.sum("records").alias("records"))
    most = Window.partitionBy("topic").orderBy(F.desc("records"), "key")
    rows = counted.withColumn("rank", F.row_number().over(most)).where(F.col("rank") <= HOT_KEYS)
    return [HotKey(row["topic"], bytes(row["key"]), row["records"]) for row in rows.orderBy("topic", "rank").collect()]


def _file_checks(topics: list[TopicFiles], summaries: Summaries, first: int) -> Iterator[Check]:
    declared = [topic for topic in topics if not topic.inferred]
    segments = sum(len(partition.segments) for topic in declared for partition in topic.manifest.partitions)
    files = [violation for topic in declared for violation in missing_or_resized_files(topic)]
    unknown = None if declared else "no manifest says which files there should be"
    yield Check("segment files", segments, len(files), files[:first], unknown)
    ends: list[Violation] = []
    for topic in topics:
        of_topic = {p: summary for (name, p), summary in summaries.items() if name == topic.manifest.topic}
        ends += wrong_log_ends(topic, of_topic)
    yield Check("log ends", sum(len(topic.manifest.partitions) for topic in topics), len(ends), ends[:first])


@dataclass(frozen=True, slots=True)
class _Rule:
    """A check over rows: how many things it looks at, and the frames of what breaks it."""

    name: str
    counted: int
    offences: list[DataFrame] = field(default_factory=list)
    unknown: str | None = None
    undecided: int = 0


def _row_checks(
    kept: DataFrame,
    read: Callable[[str], DataFrame],
    topics: list[TopicFiles],
    summaries: Summaries,
    order_by: str | None,
    first: int,
) -> Iterator[Check]:
    rules = list(_rules(kept, read, topics, _total(summaries), order_by))
    counts = _count(rules)
    for rule in rules:
        count = counts.get(rule.name, 0)
        yield Check(
            rule.name, rule.counted, count, _first(rule.offences, first) if count else [], rule.unknown, rule.undecided
        )


def _rules(
    kept: DataFrame,
    read: Callable[[str], DataFrame],
    topics: list[TopicFiles],
    total: PartitionSummary,
    order_by: str | None,
) -> Iterator[_Rule]:
    from audit import checks

    rows = kept.where("kind = 'row'")
    batches, records = rows.where("batch_start"), rows.where("offset is not null")
    yield _Rule("crc", total.batches, [checks.wrong_crcs(batches)])
    yield _Rule("readable batches", total.batches, [checks.unreadable_batches(batches)])
    yield _Rule("contiguous offsets", total.batches, _by_policy(checks.broken_offsets, batches, topics))
    yield _Rule("producer sequences", total.batches, _by_policy(checks.broken_sequences, batches, topics))
    repeated = [checks.repeated_batches(batches)]
    if order_by is None:
        yield _Rule("duplicates", total.records, repeated)
        yield _Rule("key order", 0, unknown="no order-by; of the order only the producer sequences were checked")
    else:
        suspects = _suspects(kept, records, read, bool(total.transactional))
        yield _Rule("duplicates", total.records, [*repeated, checks.repeated_records(suspects)])
        yield _Rule("key order", total.ordered, [checks.broken_key_order(suspects)])
    unplaced, unsealed = total.placeable - total.placed, total.by_clients - total.closed
    placed = [checks.misplaced_records(records)] if total.placed else []
    yield _Rule("placement", total.placed, placed, _without_layout(unplaced), unplaced)
    closed = [checks.records_while_closed(records)] if total.closed else []
    yield _Rule("closed partitions", total.closed, closed, _without_layout(unsealed), unsealed)


def _without_layout(records: int) -> str | None:
    return f"nothing says how many partitions the topic had when {records:,} records were written" if records else None


def _count(rules: Iterable[_Rule]) -> dict[str, int]:
    """How many offences there are against each rule that has some, in one query."""
    from pyspark.sql import functions as F

    frames = [frame.select(F.lit(rule.name).alias("rule")) for rule in rules for frame in rule.offences]
    return {
        row["rule"]: row["count"]
        for row in reduce(lambda one, other: one.union(other), frames).groupBy("rule").count().collect()
    }


def _first(offences: Iterable[DataFrame], first: int) -> list[Violation]:
    """The first offences, in log order within each frame."""
    order = ("topic", "partition", "segment", "position", "offset")
    found = [row for frame in offences for row in frame.orderBy(*order).limit(first).collect()]
    return [Violation(**row.asDict()) for row in found[:first]]


def _suspects(kept: DataFrame, records: DataFrame, read: Callable[[str], DataFrame], transactional: bool) -> DataFrame:
    """The records of keys whose summaries do not ascend, read once more, and those without an order value.

    Summaries count aborted records too, so all records are read once more where there are transactions.
    """
    from audit import checks

    if transactional:
        return checks.without_aborted(read("checks")).where("offset is not null")
    unreadable = records.where("order_error is not null").select(_OF_RECORDS)
    keys = checks.keys_that_do_not_ascend(kept.where("kind = 'key'")).persist()
    if keys.isEmpty():
        return unreadable
    readable = read("checks").where("offset is not null and order_error is null")
    return readable.join(keys, ["topic", "key"], "left_semi").select(_OF_RECORDS).unionByName(unreadable)


def _total(summaries: Summaries) -> PartitionSummary:
    return PartitionSummary(**{name: sum(getattr(x, name) for x in summaries.values()) for name in _SUMMED})


def _by_policy(
    rule: Callable[[DataFrame, bool], DataFrame], batches: DataFrame, topics: list[TopicFiles]
) -> list[DataFrame]:
    """``rule`` over the topics that are compacted and over those that are not."""
    found = []
    for compacted in (False, True):
        names = [topic.manifest.topic for topic in topics if topic.manifest.is_compacted is compacted]
        if names:
            found.append(rule(batches.where(batches["topic"].isin(names)), compacted))
    return found
