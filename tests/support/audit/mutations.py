"""Mutations of the audit's checks: each mutation switches one rule off and audits the files of ``violating_topic``.

A mutation replaces text in the source of the rule's function. The audit must then miss the rule's violations.
"""

from __future__ import annotations
import __future__

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.audit import deliveries, file_checks, index_checks, key_order, row_checks, rules, totals
from anabranch.audit.columns import arrow_schema
from anabranch.audit.discovery import discover, replica_files
from anabranch.audit.order_field import OrderField
from anabranch.audit.parts import SegmentPart, read_part, segment_parts
from anabranch.audit.summary import SUMMARY_SCHEMA, summaries
from tests.support.audit.violating_topic import MAX_DECOMPRESSED_BYTES, Place, ViolatingTopic

ORDER_BY = "tsv:0"
Rules = Callable[[rules.FoundRows], Iterator[rules.AuditRule]]
_FILES, _BATCHES, _RECORDS, _CONSUMERS = (
    rules.file_rules, rules.batch_rules, rules.record_rules, rules.consumer_rules
)  # fmt: skip


@dataclass(frozen=True)
class RuleOff:
    """A mutation: ``old`` in the source of ``function`` becomes ``new``.

    ``check`` must then miss the violations in the partitions ``missed``. ``reads`` marks a rule of the segment reader.
    """

    rule: str
    check: str
    of: Rules
    function: Callable[..., Any]
    old: str
    new: str
    missed: frozenset[int]
    reads: bool = False

    @contextmanager
    def applied(self) -> Iterator[None]:
        source = inspect.getsource(self.function)
        assert source.count(self.old) == 1, f"{self.function.__qualname__} has no rule {self.old!r}"
        module = sys.modules[self.function.__module__]
        scope = dict(vars(module))
        flags = __future__.annotations.compiler_flag
        exec(compile(source.replace(self.old, self.new), f"<{self.rule}>", "exec", flags), scope)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, self.function.__name__, scope[self.function.__name__])
            yield


def _off(
    rule: str,
    check: str,
    of: Rules,
    function: Callable[..., Any],
    old: str,
    new: str,
    *missed: int,
    reads: bool = False,
) -> RuleOff:
    return RuleOff(rule, check, of, function, old, new, frozenset(missed), reads)


RULES_OFF = [
    # ------------------------------------------------------------ files
    _off("a file is missing", "segment files", _FILES, file_checks.wrong_files,
         'yield _of_file(topic, partition, segment.base_offset, name, "the file is missing")', "pass", 10),
    _off("a file has another size", "segment files", _FILES, file_checks.wrong_files,
         "if found != size", "if False", 7, 12, 19, 20, 31),
    _off("a file does not belong to a log", "segment files", _FILES, file_checks.wrong_files,
         "if not _OF_A_LOG", "if False and _OF_A_LOG", 10),
    _off("a segment is not in the manifest", "segment files", _FILES, file_checks.wrong_files,
         "elif extra.endswith", "elif False and extra.endswith", 34),
    _off("a file has another CRC32C", "segment files", _FILES, file_checks.changed_files,
         "found[1] != crc", "False", 6, 8, 9, 11, 13, 16, 21, 24),
    _off("a log begins above its log start offset", "log ends", _FILES, file_checks.end_faults,
         "first > start and", "False and", 10),
    _off("a log ends before its high watermark", "log ends", _FILES, file_checks.end_faults,
         "last + 1 < end", "False", 7, 12, 16, 24, 31),
    _off("a log ends beyond its high watermark", "log ends", _FILES, file_checks.end_faults,
         "last + 1 > end", "False", 19),
    _off("no batch can be read", "log ends", _FILES, file_checks.end_faults,
         "if 0 <= start < end", "if False", 20),
    _off("an epoch ends where the next begins", "leader epochs", _BATCHES, file_checks.wrong_leader_epochs,
         "elif later and last >= later[0]", "elif False", 4),
    # ------------------------------------------------------------ batches
    _off("a CRC matches the bytes", "crc", _BATCHES, row_checks.wrong_crcs,
         '~F.col("batch_crc_ok")', 'F.lit(False)', 6),
    _off("a batch can be read", "readable batches", _BATCHES, row_checks.unreadable_batches,
         ' | F.col("batch_crc_ok")', "", 13, 17, 21),
    _off("a batch begins where one is expected", "readable batches", _BATCHES, row_checks.unreadable_batches,
         'F.col("base_offset").isNull() | ', "", 7, 16),
    _off("offsets have no gap", "contiguous offsets", _BATCHES, row_checks.broken_offsets,
         'F.col("base_offset") != F.col("previous") + 1', "F.lit(False)", 22, 24),
    _off("a batch has all its records", "contiguous offsets", _BATCHES, row_checks.broken_offsets,
         'record_count != last_offset - base_offset + 1', "false", 23),
    _off("an index entry points to a batch", "indexes", _BATCHES, index_checks.offset_faults,
         "np.flatnonzero(~hit &", "np.flatnonzero(False & ~hit &", 8, 20, 12, 31, reads=True),
    _off("a time index entry is not older than a record", "indexes", _BATCHES, index_checks.time_faults,
         "np.flatnonzero(late)", "np.flatnonzero(late & False)", 9, reads=True),
    _off("the record of a time index entry exists", "indexes", _BATCHES, index_checks.time_faults,
         "beyond & batches.is_last", "beyond & False", 12, 24, 31, reads=True),
    _off("leader epochs ascend", "leader epochs", _BATCHES, row_checks.leader_epochs_that_go_back,
         '"leader_epoch < previous"', '"false"', 4),
    _off("sequences follow each other", "producer sequences", _BATCHES, row_checks.broken_sequences,
         "(same & wrong)", "F.lit(False)", 3, 18, 22, 33),
    _off("an epoch begins within the earlier records", "producer sequences", _BATCHES, row_checks.broken_sequences,
         "| late |", "|", 25),
    _off("an old epoch of a producer writes no more", "producer sequences", _BATCHES, row_checks.broken_sequences,
         'F.expr("producer_epoch < epoch_before")', "F.lit(False)", 26),
    _off("control and transactional batches have a producer", "control batches", _BATCHES,
         row_checks.wrong_control_batches, "error is null", "error is null and producer_id >= 0", 5, 27),
    _off("a control batch is transactional", "control batches", _BATCHES, row_checks.wrong_control_batches,
         '"is_control and not is_transactional"', '"false"', 28),
    _off("a control batch has one record", "control batches", _BATCHES, row_checks.wrong_control_batches,
         '"is_control and record_count != 1"', '"false"', 29),
    _off("a marker is COMMIT or ABORT", "control batches", _BATCHES, row_checks.wrong_control_batches,
         '"is_control and marker is null"', '"false"', 30),
    _off("a replica has its leader's bytes", "replicas", _BATCHES, row_checks.diverging_replicas,
         " or expected.content != found.content", "", 11),
    _off("a replica has its leader's batches", "replicas", _BATCHES, row_checks.diverging_replicas,
         "found is null or", "", 12),
    _off("a leader has its replica's batches", "replicas", _BATCHES, row_checks.diverging_replicas,
         "expected is null or", "", 31),
    # ------------------------------------------------------------ records
    _off("a producer's batch is stored once", "duplicates", _RECORDS, row_checks.repeated_batches,
         '"base_offset > first"', '"false"', 33),
    _off("a record of a key is stored once", "duplicates", _RECORDS, key_order.repeated_records,
         '"number > 1"', '"false"', 32, 42),
    _off("a key's records ascend", "key order", _RECORDS, key_order.broken_key_order,
         '"order_value < previous"', '"false"', 0, 2, 42),
    _off("layouts order the records of a key", "key order", _RECORDS, key_order.broken_key_order,
         '"layout_version", "partition", "offset"', '"partition", "offset"', 42),
    _off("a value has a place in its key's order", "key order", _RECORDS, key_order.broken_key_order,
         '"order_error is not null"', '"false"', 35),
    _off("a record lies where its key is placed", "placement", _RECORDS, row_checks.misplaced_records,
         '"expected_partition != partition"', '"false"', 1),
    _off("a closed partition takes no record", "closed partitions", _RECORDS, row_checks.records_while_closed,
         '"while_closed"', '"false"', 43),
    # ------------------------------------------------------------ consumers
    _off("a line names a delivery", "consumer log", _CONSUMERS, deliveries.lines_that_are_none,
         '"wrong is not null"', '"false"', -1, 37, 38),
    _off("a member does not go back", "consumer positions", _CONSUMERS, deliveries.deliveries_that_go_back,
         "offset <= offset_before", "false", 14, 36),
    _off("an older record of a key is delivered before", "consumer key order", _CONSUMERS, deliveries.early_deliveries,
         "latest.at.time > at.time or", "", 15, 41),
    _off("records of one call are in order", "consumer key order", _CONSUMERS, deliveries.early_deliveries,
         " or ({in_one_call})", "", 36),
]  # fmt: skip


class Audited:
    """Reads the files of ``violating_topic`` in this process, so that a test can apply a single check."""

    def __init__(self, spark: SparkSession, violating_topic: ViolatingTopic, consumer_log: Path) -> None:
        self._spark = spark
        self.expected = violating_topic.expected
        topics = discover(violating_topic.history.root)
        copies = [*topics, *(copy for topic in topics for copy in replica_files(topic))]
        self._parts, self._of_leaders = list(segment_parts(copies)), list(segment_parts(topics))
        kept = self._kept()
        self._totals = totals.totals(kept)
        log = deliveries.read_deliveries(spark, str(consumer_log), topics[0].manifest.topic).persist()
        self._found = rules.FoundRows(
            spark, kept, self._read, topics, copies, ORDER_BY, log, transactional=self._totals.transactional
        )

    def _rows(self, parts: Iterable[SegmentPart]) -> Iterator[tuple[SegmentPart, Iterator[Any]]]:
        for part in parts:
            yield part, read_part(part, OrderField(ORDER_BY), MAX_DECOMPRESSED_BYTES, report_unreadable=True)

    def _kept(self) -> DataFrame:
        batches = [batch for part, rows in self._rows(self._parts) for batch in summaries(rows, part)]
        return self._frame(pa.Table.from_batches(batches), SUMMARY_SCHEMA)

    def _read(self, columns: Any) -> DataFrame:
        batches = [row.arrow(list(columns)) for _, rows in self._rows(self._of_leaders) for row in rows]
        return self._frame(pa.Table.from_batches(batches, arrow_schema(list(columns))))

    def _frame(self, table: pa.Table, schema: str | None = None) -> DataFrame:
        return self._spark.createDataFrame(table, schema).persist()

    @property
    def batches(self) -> DataFrame:
        """The leaders' batches."""
        return self._found.kept.where(f"kind = 'row' and batch_start and replica = {totals.OF_LEADERS}")

    def violations(self, check: str, of: Rules, *, read_again: bool = False) -> set[Place]:
        found = self._found
        if read_again:
            found = replace(found, kept=self._kept())
        rule = next(rule for rule in of(found) if rule.name == check)
        places = {(x.partition, x.offset, x.segment, x.position) for x in rule.decide(self._totals).violations}
        for frame in rule.offences:
            places |= {tuple(row) for row in frame.select("partition", "offset", "segment", "position").collect()}
        return {(check, p, offset, file and file.split("/")[-1], at) for p, offset, file, at in places}
