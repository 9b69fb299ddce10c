"""Runs the audit: start Spark quietly, read the directory once, apply every check, stop Spark."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import anabranch
from anabranch.audit.bounds import WantedPartitions
from anabranch.audit.class_archive import NO_ARCHIVE, ClassArchive
from anabranch.audit.discovery import TopicFiles, discover, replica_files
from anabranch.audit.order_field import OrderField
from anabranch.audit.progress import AuditProgress, Nobody, watched
from anabranch.audit.report import AuditReport, Check, HotKey
from anabranch.audit.segment_reader import MAX_DECOMPRESSED_BYTES
from anabranch.protocol.plurals import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from anabranch.audit import totals
    from anabranch.audit.rules import FoundRows

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Most rows stay in Python. In a run of seconds, the JVM's optimising compiler and Spark's generated code take more time
# than they save; in longer runs both stay on.
_SHORT_RUN_SETTINGS = {
    _JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}
SHORT_RUN_BYTES = 4 * 1024**3

FIRST_VIOLATIONS = 10
BYTES_PER_TASK = 1024**3
"""The checks have a task for this many bytes, but at least one task per core: a part of a segment has few rows."""
FEW_TASKS_BYTES = 64 * 1024**2
"""Smaller data is checked by few tasks, because each task spends more time on the plan than on the rows."""
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
    consumer_log: str | Path | None = None,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    progress: AuditProgress | None = None,
    classes: ClassArchive = NO_ARCHIVE,
) -> AuditReport:
    """Check an exported directory, or a log directory. Each check keeps its ``first`` violations.

    ``order_by`` (``json:FIELD`` or ``tsv:N``) names the integer in the values that must not decrease within a key.
    ``consumer_log`` has the deliveries of consumers (``audit.deliveries``). ``progress`` is called for each part.
    A batch that decompresses to more than ``max_decompressed_bytes`` counts as unreadable.
    ``master`` None leaves the master to ``spark-submit`` and to Spark's own configuration. ``classes`` lets a local
    JVM start sooner (``audit.class_archive``).
    Raises ManifestError for an invalid directory, OrderFieldError for an invalid ``order_by``, and ModuleNotFoundError
    without pyspark.
    """
    reporter = progress or Nobody()
    reporter.begin("looking for segment files")
    topics = discover(directory)
    if order_by is not None:
        OrderField(order_by)
    reporter.begin("starting Spark")
    short = _size(topics) < SHORT_RUN_BYTES
    with spark_session(master, short=short, classes=classes) as spark, _explained(), watched(spark, progress):
        return audit_with(
            spark,
            str(directory),
            topics,
            order_by,
            first,
            consumer_log=consumer_log,
            max_decompressed_bytes=max_decompressed_bytes,
            progress=reporter,
        )


@contextlib.contextmanager
def spark_session(
    master: str | None, *, short: bool = False, classes: ClassArchive = NO_ARCHIVE
) -> Iterator[SparkSession]:
    """A new, quiet Spark session, stopped at the end.

    Local workers run this interpreter and find these packages. On a cluster the interpreter is ``PYSPARK_PYTHON``; by
    default the interpreter at the same path as here. ``short`` tunes the session for a short run.
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
        spark = _started(builder, chosen, classes if short and is_local else NO_ARCHIVE)
        try:
            yield spark
        finally:
            _stop(spark)


def _stop(spark: SparkSession) -> None:
    """Stop a session without waiting up to a second for the end of its accumulator server."""
    from pyspark.accumulators import AccumulatorTCPServer

    context = spark.sparkContext
    server = context._accumulatorServer
    if not isinstance(server, AccumulatorTCPServer):  # another kind of server leaves a file
        spark.stop()
        return
    context._accumulatorServer = None
    try:
        spark.stop()
    finally:
        Thread(target=server.shutdown, daemon=True).start()


def _started(builder: SparkSession.Builder, settings: dict[str, str], classes: ClassArchive) -> SparkSession:
    """A session whose JVM uses or writes ``classes``. An archive with which the JVM does not start is removed."""
    options = classes.options()
    if options:
        builder = builder.config(_JAVA_OPTIONS, f"{settings[_JAVA_OPTIONS]} {options}")
    try:
        with _captured_stderr():
            spark = builder.getOrCreate()
    except RuntimeError:
        if not classes.remove():
            raise
        return _started(builder.config(_JAVA_OPTIONS, settings[_JAVA_OPTIONS]), settings, NO_ARCHIVE)
    gateway = spark.sparkContext._gateway
    if gateway is not None:
        classes.keep_at_exit(gateway.proc)
    return spark


@contextlib.contextmanager
def _environment(is_local: bool, directory: Path) -> Iterator[None]:
    """Set the environment of Spark's processes. A cluster's processes only need the interpreter and the path."""
    root = str(Path(anabranch.__file__).resolve().parents[1])
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

    Spark puts an archive of PySpark in front of the installed one in the path. The archive has no byte code, so each
    worker would compile it again, for seconds. Another Spark (``SPARK_HOME``) needs its own PySpark, and Windows cannot
    run such a program.
    """
    if "SPARK_HOME" in os.environ or os.name != "posix":
        return sys.executable
    program = directory / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(path)} exec {shlex.quote(sys.executable)} "$@"\n')
    program.chmod(0o700)
    return str(program) if os.access(program, os.X_OK) else sys.executable  # the file system may be mounted noexec


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Replace Spark's error of a failed stage by an error that names the module or file that a worker lacks."""
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
    """Keep the JVM's start messages off the terminal; they are in the error when the JVM fails to start.

    The JVM inherits file descriptor 2 and writes to it before any log setting is read.
    """
    saved = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        try:
            os.dup2(captured.fileno(), 2)
            yield
        except Exception as error:
            captured.seek(0)
            output = captured.read().decode(errors="replace").strip()
            raise RuntimeError(f"Spark did not start: {error}\n{output}".rstrip()) from error
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _size(topics: Iterable[TopicFiles]) -> int:
    """The size of all segment files."""
    partitions = (partition for topic in topics for partition in topic.manifest.partitions)
    return sum(segment.size_bytes for partition in partitions for segment in partition.segments)


def audit_with(
    spark: SparkSession,
    directory: str,
    topics: list[TopicFiles],
    order_by: str | None,
    first: int,
    *,
    consumer_log: str | Path | None = None,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    progress: AuditProgress | None = None,
) -> AuditReport:
    """``run_audit`` on the caller's session. ``progress`` is called for parts, not for tasks."""
    from anabranch.audit.datasource import segment_frame
    from anabranch.audit.deliveries import read_deliveries
    from anabranch.audit.rules import FoundRows
    from anabranch.audit.totals import epochs_of

    reporter = progress or Nobody()
    copies = [*topics, *(copy for topic in topics for copy in replica_files(topic))]

    def read(columns: Sequence[str]) -> DataFrame:
        return segment_frame(
            spark,
            topics,
            "checks",
            order_by,
            wanted_columns=columns,
            max_decompressed_bytes=max_decompressed_bytes,
        )

    summary = partial(
        segment_frame, spark, view="summary", order_by=order_by, max_decompressed_bytes=max_decompressed_bytes
    )
    # Replicas and their leaders are compared batch by batch, so their batches are not merged.
    compared = {(x.manifest.topic, p.partition) for x in copies if x.broker is not None for p in x.manifest.partitions}

    def batches_of(partitions: dict[str, list[int]]) -> DataFrame:
        return summary(topics=topics, selected=WantedPartitions(partitions))

    kept = summary(topics=copies, merged=lambda *partition: partition not in compared).persist()
    found = None
    log = None
    if consumer_log is not None:
        only = topics[0].manifest.topic if len(topics) == 1 else None
        log = read_deliveries(spark, str(consumer_log), only).persist()
    try:
        segments = sum(len(x.segments) for copy in copies for x in copy.manifest.partitions)
        reporter.begin(f"reading {counted(segments, 'segment file', form=',')}")
        rows = kept.coalesce(max(spark.sparkContext.defaultParallelism, _size(copies) // BYTES_PER_TASK))
        found = FoundRows(spark, rows, read, topics, copies, order_by, log, batches_of)
        if _size(copies) < FEW_TASKS_BYTES:
            found.tasks = 2 * spark.sparkContext.defaultParallelism
        checks, sums, hot_keys = _judged(found, kept, first, reporter)
    finally:
        kept.unpersist()
        if found is not None:
            found.release()
        if log is not None:
            log.unpersist()
    return AuditReport(
        directory=directory,
        topics=[topic.manifest.topic for topic in topics],
        partitions=sum(len(topic.manifest.partitions) for topic in topics),
        segments=sum(len(partition.segments) for topic in topics for partition in topic.manifest.partitions),
        batches=sums.of_leaders.batches,
        records=sums.of_leaders.records,
        checks=checks,
        bytes=sums.of_leaders.bytes,
        epochs=epochs_of(sums.epochs, topics),
        hot_keys=hot_keys,
    )


def _judged(
    found: FoundRows, unread: DataFrame, first: int, reporter: AuditProgress
) -> tuple[list[Check], totals.Totals, list[HotKey]]:
    """The checks of ``found``, the sums of its rows, and the hot keys.

    Spark plans a query on one core. So the rules' queries are planned while another query reads the files into the
    cache of ``unread``. ``found`` has the same rows.
    """
    from anabranch.audit import totals
    from anabranch.audit.rules import apply_rules

    rows = found.kept
    with ThreadPoolExecutor(2) as beside:
        summing = beside.submit(totals.totals, unread)

        def summed() -> totals.Totals:
            sums = summing.result()
            reporter.begin("applying the checks")
            return sums

        def count_keys() -> list[HotKey]:
            summing.result()  # the query that reads the files
            return totals.hot_keys(rows)

        counting = beside.submit(count_keys)
        checks = apply_rules(found, first, summed)
        return checks, summing.result(), counting.result()
