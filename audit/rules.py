"""Applies the rules to the rows. Finds each rule's offences, and the numbers of checked and of undecided things."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from anabranch.audit import deliveries, file_checks, key_order
from anabranch.audit import row_checks as checks
from anabranch.audit.discovery import TopicFiles
from anabranch.audit.manifest import PartitionEntry
from anabranch.audit.report import Check, Violation
from anabranch.audit.totals import OF_LEADERS, Summaries, Totals
from anabranch.protocol.plurals import counted, one_or_many

_ABOUT_BATCHES = frozenset({"crc", "contiguous offsets", "leader epochs", "producer sequences", "control batches"})
_ABOUT_RECORDS = frozenset({"duplicates", "key order", "placement", "closed partitions", "consumer key order"})
_OF_RECORDS = [
    "topic", "partition", "segment", "position", "offset", "key", "layout_version", "order_value", "order_error"
]  # fmt: skip
"""The columns for the checks of the order of records."""
_OVERLAPS, _DESCENDING = "overlapping stretches", "keys that do not ascend"
_OF_TRANSACTIONS = ["batch_start", "base_offset", "producer_id", "is_transactional", "is_control", "marker"]
"""The further columns that are needed to leave out aborted records."""
_COLUMNS = ("topic", "partition", "offset", "segment", "position")
_PLACE = ("topic", "partition", "segment", "position", "offset")


@dataclass(frozen=True, slots=True)
class Decided:
    """The number of things checked, and the violations that are in no DataFrame.

    ``unknown`` and ``undecided`` are as in ``Check``.
    """

    counted: int
    unknown: str | None = None
    undecided: int = 0
    violations: list[Violation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AuditRule:
    """A check: the DataFrames of its offences, and a function that computes its ``Decided`` from the totals."""

    name: str
    promise: str
    decide: Callable[[Totals], Decided]
    offences: list[DataFrame] = field(default_factory=list)


@dataclass
class FoundRows:
    """The rows of a directory, and functions to read more.

    ``kept`` has the rows of the view ``summary``. ``read`` returns columns of the view ``checks``. ``copies`` is
    ``topics``, as the leaders have them, followed by the replicas. ``deliveries`` is the consumer log, if any.
    ``batches_of`` reads partitions of topics with a row for each batch; it is None when ``kept`` has these rows
    already. ``keys_ascend`` is True while the rules assume that each key's summaries are in order; else None.
    ``transactional`` is True when there are transactions. ``tasks`` limits the tasks of a query over all rules.
    """

    spark: SparkSession
    kept: DataFrame
    read: Callable[[Sequence[str]], DataFrame]
    topics: list[TopicFiles]
    copies: list[TopicFiles]
    order_by: str | None
    deliveries: DataFrame | None
    batches_of: Callable[[dict[str, list[int]]], DataFrame] | None = None
    keys_ascend: bool | None = None
    transactional: bool = False
    tasks: int | None = None
    _again: DataFrame | None = None

    @cached_property
    def committed(self) -> DataFrame:
        """The committed records and the transaction markers, with the columns for the order of keys.

        Several rules use these records, so Spark keeps them, on disk if memory is not sufficient.
        """
        rows = checks.without_aborted(self.read([*_OF_RECORDS, "moved", *_OF_TRANSACTIONS]))
        return rows.where("offset is not null").select(*_OF_RECORDS, "moved").persist()

    @property
    def stretches(self) -> DataFrame:
        """The leaders' batches and stretches of batches."""
        return self.kept.where(f"kind = 'row' and batch_start and replica = {OF_LEADERS}")

    def read_batches(self) -> None:
        """Replace the stretches in ``kept`` by a row for each batch, in all partitions with overlapping stretches."""
        assert self.batches_of is not None
        partitions: dict[str, list[int]] = {}
        for topic, partition in checks.overlapping_stretches(self.stretches).distinct().collect():
            partitions.setdefault(topic, []).append(partition)
        named = [(F.col("topic") == topic) & F.col("partition").isin(found) for topic, found in partitions.items()]
        old = F.expr(f"kind = 'row' and replica = {OF_LEADERS}") & reduce(lambda one, other: one | other, named)
        self._again = self.batches_of(partitions).where("kind = 'row'").persist()
        self.kept, self.batches_of = self.kept.where(~old).unionByName(self._again), None

    def release(self) -> None:
        """Release the rows that Spark keeps."""
        if self._again is not None:
            self._again.unpersist()
        if "committed" in vars(self):
            self.committed.unpersist()


def apply_rules(found: FoundRows, first: int, totals: Callable[[], Totals]) -> list[Check]:
    """Apply all rules. Each check keeps its ``first`` violations. ``totals`` waits for sums that are not ready yet."""
    rules, counts, summed = _applied(found, totals)
    named = _first([rule for rule in rules if rule.name in counts], first, found.tasks)
    unread = counts.get("readable batches", 0)
    return [_check(rule, rule.decide(summed), counts, named, unread, first) for rule in rules]


def _check(
    rule: AuditRule,
    decided: Decided,
    counts: Mapping[str, int],
    named: Mapping[str, list[Violation]],
    unread: int,
    first: int,
) -> Check:
    return Check(
        rule.name,
        decided.counted,
        counts.get(rule.name, 0) + len(decided.violations),
        [*decided.violations, *named.get(rule.name, [])][:first],
        _unknown(rule.name, decided.unknown, unread),
        decided.undecided,
        rule.promise,
    )


def _applied(found: FoundRows, totals: Callable[[], Totals]) -> tuple[list[AuditRule], dict[str, int], Totals]:
    """The rules, the number of offences against each, and the totals.

    Most directories have no overlapping stretches, no keys out of order, and no transactions. The queries are planned
    for this case while the totals are computed. The same query checks this assumption. If it is wrong, more rows are
    read, and the rules are applied again.
    """
    assumed = []
    if found.batches_of is not None:
        assumed.append(_assumption(_OVERLAPS, checks.overlapping_stretches(found.stretches)))
    if found.order_by is not None:
        found.keys_ascend = True
        assumed.append(_assumption(_DESCENDING, _descending_keys(found)))
    rules = _rules(found)
    count = _counted([*rules, *assumed], found.tasks)
    summed = totals()
    if summed.transactional and found.order_by is not None:
        found.transactional = True
        rules = _rules(found)
        count = _counted([*rules, *assumed], found.tasks)
    counts = _counts(count)
    overlap, descend = (counts.pop(name, 0) > 0 for name in (_OVERLAPS, _DESCENDING))
    if overlap:
        found.read_batches()
    if descend:
        found.keys_ascend = None
    if overlap or descend:
        rules = _rules(found)
        counts = _counts(_counted(rules, found.tasks))
    return rules, counts, summed


def _rules(found: FoundRows) -> list[AuditRule]:
    return [*file_rules(found), *batch_rules(found), *record_rules(found), *consumer_rules(found)]


def _assumption(name: str, against: DataFrame) -> AuditRule:
    return AuditRule(name, "", lambda _: Decided(0), [against])


def _unknown(name: str, unknown: str | None, unread: int) -> str | None:
    """The reason why some things were not checked: the header and records of an unreadable batch are not known."""
    if not unread or name not in _ABOUT_BATCHES | _ABOUT_RECORDS:
        return unknown
    why = f"{counted(unread, 'batch', 'batches', form=',')} cannot be read"
    return f"{unknown}; {why}" if unknown else why


def _counted(rules: Iterable[AuditRule], tasks: int | None) -> DataFrame:
    """The number of offences against each rule, for rules with offences."""
    frames = [frame.select(F.lit(rule.name).alias("rule")) for rule in rules for frame in rule.offences]
    return _union(frames, tasks).groupBy("rule").count()


def _counts(counted: DataFrame) -> dict[str, int]:
    return {row["rule"]: row["count"] for row in counted.collect()}


def _first(rules: Iterable[AuditRule], first: int, tasks: int | None) -> dict[str, list[Violation]]:
    """Find the first offences against each rule in one query. Within each frame of a rule, they are in log order."""
    frames = [
        frame.select(F.lit(rule.name).alias("rule"), F.lit(number).alias("frame"), "*")
        for rule in rules
        for number, frame in enumerate(rule.offences)
    ]
    found: dict[str, list[Violation]] = {}
    if not frames:
        return found
    in_order = Window.partitionBy("rule").orderBy("frame", *_PLACE)
    rows = _union(frames, tasks).withColumn("number", F.row_number().over(in_order))
    for row in rows.where(F.col("number") <= first).orderBy("rule", "number").collect():
        violation = Violation(*(row[name] for name in (*_COLUMNS, "message")))
        found.setdefault(row["rule"], []).append(violation)
    return found


def _union(frames: Iterable[DataFrame], tasks: int | None) -> DataFrame:
    """The rows of all frames, in at most ``tasks`` tasks."""
    rows = reduce(lambda one, other: one.union(other), frames)
    return rows if tasks is None else rows.coalesce(tasks)


# ---------------------------------------------------------------- files


def file_rules(found: FoundRows) -> Iterator[AuditRule]:
    yield AuditRule("segment files", checks.promise_of(file_checks.wrong_files), partial(_decide_files, found))
    yield AuditRule("log ends", checks.promise_of(file_checks.wrong_log_ends), partial(_decide_log_ends, found))


def _decide_files(found: FoundRows, totals: Totals) -> Decided:
    declared = [copy for copy in found.copies if not copy.inferred]
    entries = [entry for copy in declared for entry in copy.manifest.partitions]
    violations = [x for copy in found.copies for x in file_checks.wrong_files(copy)]
    if any(copy.manifest.generation > 0 for copy in declared):
        read = {
            row["segment"]: (row["bytes"], row["file_crc"])
            for row in found.kept.where("kind = 'file'").select("segment", "bytes", "file_crc").collect()
        }
        violations += [x for copy in declared for x in file_checks.changed_files(copy, read)]
    unknown = None if declared else "without a manifest it is not known which files must be there"
    return Decided(sum(len(entry.segments) for entry in entries), unknown, violations=violations)


def _decide_log_ends(found: FoundRows, totals: Totals) -> Decided:
    ends, open_ended = [], 0
    for copy in found.copies:
        replica = OF_LEADERS if copy.broker is None else copy.broker
        of_topic = {
            partition: summary
            for (name, partition, of), summary in totals.summaries.items()
            if (name, of) == (copy.manifest.topic, replica)
        }
        ends += list(file_checks.wrong_log_ends(copy, of_topic))
        open_ended += sum(entry.high_watermark < 0 for entry in copy.manifest.partitions)
    return Decided(
        sum(len(copy.manifest.partitions) for copy in found.copies) - open_ended,
        f"the expected end of {counted(open_ended, 'log', form=',')} is not known" if open_ended else None,
        open_ended,
        ends,
    )


# ---------------------------------------------------------------- batches


def batch_rules(found: FoundRows) -> Iterator[AuditRule]:
    batches = found.kept.where("kind = 'row' and batch_start")
    leaders = batches.where(f"replica = {OF_LEADERS}")
    yield _rule("crc", checks.wrong_crcs, _all_batches, [checks.wrong_crcs(batches)])
    yield _rule("readable batches", checks.unreadable_batches, _all_batches, [checks.unreadable_batches(batches)])
    missing = [
        checks.Missing(copy.manifest.topic, entry.partition, gap.first_offset, gap.end_offset)
        for copy in found.copies
        for entry in copy.manifest.partitions
        for gap in entry.missing
    ]
    lost = sum(gap.end - gap.first for gap in missing)
    were, their = one_or_many(lost, "was", "were"), one_or_many(lost, "its", "their")
    removed = f"{counted(lost, 'offset', form=',')} {were} removed by {their} broker between two exports"
    yield _rule(
        "contiguous offsets",
        checks.broken_offsets,
        lambda totals: Decided(totals.every.batches, removed if lost else None, lost),
        _by_policy(lambda rows, compacted: checks.broken_offsets(rows, compacted, missing), batches, found.topics),
    )
    yield _indexes(found)
    yield _rule(
        "leader epochs",
        checks.leader_epochs_that_go_back,
        partial(_decide_leader_epochs, found),
        [checks.leader_epochs_that_go_back(batches)],
    )
    yield _rule(
        "producer sequences",
        checks.broken_sequences,
        lambda totals: _decide_sequences(totals, removed if lost else None),
        _by_policy(lambda rows, compacted: checks.broken_sequences(rows, compacted, missing), leaders, found.topics),
    )
    yield _rule(
        "control batches",
        checks.wrong_control_batches,
        lambda totals: Decided(totals.every.control + totals.every.transactional),
        [checks.wrong_control_batches(batches)],
    )
    yield _replicas(found, batches)


def _all_batches(totals: Totals) -> Decided:
    return Decided(totals.every.batches)


def _decide_leader_epochs(found: FoundRows, totals: Totals) -> Decided:
    wrong = [x for copy in found.copies for x in file_checks.wrong_leader_epochs(copy, _epochs_of(totals, copy))]
    return Decided(totals.every.batches, violations=wrong)


def _decide_sequences(totals: Totals, removed: str | None) -> Decided:
    plain = totals.of_leaders.batches - totals.of_leaders.sequenced - totals.of_leaders.control
    have = one_or_many(plain, "has", "have")
    without = f"{counted(plain, 'batch', 'batches', form=',')} {have} no sequence" if plain else None
    return Decided(totals.of_leaders.sequenced, "; ".join(filter(None, (without, removed))) or None, plain)


def _indexes(found: FoundRows) -> AuditRule:
    def decide(totals: Totals) -> Decided:
        files, present, entries = (
            sum(row[name] for row in totals.indexes) for name in ("batches", "present", "records")
        )
        absent = files - present
        missing = f"{counted(absent, 'index file', form=',')} {one_or_many(absent, 'is', 'are')} missing"
        return Decided(entries, missing if absent else None, absent)

    return _rule("indexes", checks.untrue_index_entries, decide, [checks.untrue_index_entries(found.kept)])


def _replicas(found: FoundRows, batches: DataFrame) -> AuditRule:
    topics = [topic for topic in found.topics if not topic.manifest.is_compacted]
    names = {topic.manifest.topic for topic in topics}
    alone = sum(len(topic.manifest.partitions) for topic in found.topics)
    ranges = []
    for copy in found.copies:
        for entry in copy.manifest.partitions if copy.manifest.topic in names else []:
            replica = OF_LEADERS if copy.broker is None else copy.broker
            ranges.append((copy.manifest.topic, entry.partition, replica, entry.log_start_offset, entry.high_watermark))
    compared = {(topic, partition) for topic, partition, replica, _, _ in ranges if replica != OF_LEADERS}
    alone -= len(compared)
    offences = []
    if compared:
        schema = "topic string, partition int, replica int, log_start_offset bigint, high_watermark bigint"
        offences = [checks.diverging_replicas(batches, found.spark.createDataFrame(ranges, schema))]
    have = one_or_many(alone, "has", "have")
    why = f"{counted(alone, 'partition', form=',')} {have} only one copy, or copies that were compacted separately"

    def decide(totals: Totals) -> Decided:
        of_replicas = (x for (topic, _, of), x in totals.summaries.items() if of != OF_LEADERS and topic in names)
        return Decided(sum(x.batches for x in of_replicas), why if alone else None, alone)

    return _rule("replicas", checks.diverging_replicas, decide, offences)


# ---------------------------------------------------------------- records


def record_rules(found: FoundRows) -> Iterator[AuditRule]:
    rows = found.kept.where(f"kind = 'row' and replica = {OF_LEADERS}")
    records = rows.where("offset is not null")
    # Without overlapping stretches no batch is repeated.
    repeated = [checks.repeated_batches(rows.where("batch_start"))] if found.batches_of is None else []
    suspects = [] if found.order_by is None else [_suspects(found, records)]
    repeated += [key_order.repeated_records(some) for some in suspects]
    yield _rule("duplicates", key_order.repeated_records, _decide_duplicates, repeated)
    decide = _no_key_order if found.order_by is None else _decide_key_order
    yield _rule(
        "key order", key_order.broken_key_order, decide, [key_order.broken_key_order(some) for some in suspects]
    )
    yield _rule("placement", checks.misplaced_records, _decide_placement, [checks.misplaced_records(records)])
    yield _rule(
        "closed partitions", checks.records_while_closed, _decide_closed, [checks.records_while_closed(records)]
    )


def _decide_duplicates(totals: Totals) -> Decided:
    unsequenced = totals.of_leaders.unsequenced
    have = one_or_many(unsequenced, "has", "have")
    plain = f"{counted(unsequenced, 'record', form=',')} {have} neither a sequence nor an order value"
    return Decided(totals.of_leaders.records, plain if unsequenced else None, unsequenced)


def _no_key_order(totals: Totals) -> Decided:
    unknown = "no order-by was given, so only the producer sequences were checked"
    return Decided(0, unknown, totals.of_leaders.placeable)


def _decide_key_order(totals: Totals) -> Decided:
    unsealed = _unsealed(totals)
    across = f"across partitions: {_without_layout(unsealed)}" if unsealed else None
    return Decided(totals.of_leaders.ordered, across, unsealed)


def _decide_placement(totals: Totals) -> Decided:
    unplaced = totals.of_leaders.placeable - totals.of_leaders.placed
    return Decided(totals.of_leaders.placed, _without_layout(unplaced) if unplaced else None, unplaced)


def _decide_closed(totals: Totals) -> Decided:
    unsealed = _unsealed(totals)
    return Decided(totals.of_leaders.closed, _without_layout(unsealed) if unsealed else None, unsealed)


def _unsealed(totals: Totals) -> int:
    return totals.of_leaders.by_clients - totals.of_leaders.closed


def _without_layout(records: int) -> str:
    written = f"{counted(records, 'record', form=',')} {one_or_many(records, 'was', 'were')} written"
    return f"it is not known how many partitions the topic had when {written}"


def _suspects(found: FoundRows, records: DataFrame) -> DataFrame:
    """The records of keys whose summaries do not ascend, read again, and the records without an order value.

    Summaries include aborted records, so with transactions all records are read again.
    """
    if found.transactional:
        return found.committed
    unreadable = records.where("order_error is not null").select(_OF_RECORDS)
    if found.keys_ascend:
        return unreadable
    keys = _descending_keys(found).persist()
    if keys.isEmpty():
        return unreadable
    readable = found.read(_OF_RECORDS).where("offset is not null and order_error is null")
    return readable.join(keys, ["topic", "key"], "left_semi").select(_OF_RECORDS).unionByName(unreadable)


def _descending_keys(found: FoundRows) -> DataFrame:
    return key_order.keys_that_do_not_ascend(found.kept.where(f"kind = 'key' and replica = {OF_LEADERS}"))


# ---------------------------------------------------------------- consumers


def consumer_rules(found: FoundRows) -> Iterator[AuditRule]:
    going_back, early = deliveries.deliveries_that_go_back, deliveries.early_deliveries
    log = found.deliveries
    if log is None:
        for name, rule in (("consumer positions", going_back), ("consumer key order", early)):
            yield _rule(name, rule, lambda _: Decided(0, "no consumer log was given"), [])
        return
    records = found.committed

    @cache
    def delivered() -> int:
        return int(log.where(f"wrong is null and event = '{deliveries.DELIVERED}'").count())

    def decide_order(totals: Totals) -> Decided:
        unplaced = deliveries.undecided_deliveries(log, records).count()
        unread = _unread_partitions(log, totals.summaries)
        are, their = one_or_many(unplaced, "is", "are"), one_or_many(unplaced, "its", "their")
        missing = f"{counted(unplaced, 'delivered record', form=',')} {are} not in the files"
        why = [f"{missing}, or {their} layout is not known"] if unplaced else []
        why += [f"the consumer log has no line of {_first_five(unread)}"] if unread else []
        return Decided(delivered() - unplaced, "; ".join(why) or None, unplaced)

    yield _rule(
        "consumer log",
        deliveries.lines_that_are_none,
        lambda _: Decided(delivered()),
        [deliveries.lines_that_are_none(log)],
    )
    yield _rule("consumer positions", going_back, lambda _: Decided(delivered()), [going_back(log)])
    yield _rule("consumer key order", early, decide_order, [early(log, records)])


def _unread_partitions(log: DataFrame, summaries: Summaries) -> list[str]:
    """The groups and partitions with records, but without a line in the consumer log."""
    read = {(row["group"], row["topic"], row["partition"]) for row in
            log.where("wrong is null").select("group", "topic", "partition").distinct().collect()}  # fmt: skip
    held = [(topic, number) for (topic, number, of), x in summaries.items() if of == OF_LEADERS and x.by_clients]
    groups = sorted({(group, topic) for group, topic, _ in read})
    return [
        f"group {group} in {topic}-{number}"
        for group, topic in groups
        for name, number in sorted(held)
        if name == topic and (group, topic, number) not in read
    ]


# ---------------------------------------------------------------- helpers


def _first_five(names: list[str]) -> str:
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{more}"


def _rule(
    name: str, rule: Callable[..., Any], decide: Callable[[Totals], Decided], offences: list[DataFrame]
) -> AuditRule:
    return AuditRule(name, checks.promise_of(rule), decide, offences)


def _by_policy(
    rule: Callable[[DataFrame, bool], DataFrame], batches: DataFrame, topics: list[TopicFiles]
) -> list[DataFrame]:
    """``rule`` applied to the compacted topics and to the other topics."""
    found = []
    for compacted in (False, True):
        names = [topic.manifest.topic for topic in topics if topic.manifest.is_compacted is compacted]
        if names:
            found.append(rule(batches.where(batches["topic"].isin(names)), compacted))
    return found


def _epochs_of(totals: Totals, copy: TopicFiles) -> Iterator[tuple[PartitionEntry, Mapping[int, tuple[int, int]]]]:
    """For each partition of a copy, the first and last offset of the batches of each leader epoch."""
    replica = OF_LEADERS if copy.broker is None else copy.broker
    for entry in copy.manifest.partitions:
        yield (
            entry,
            {
                row["leader_epoch"]: (row["first_offset"], row["last_offset"])
                for row in totals.epochs
                if (row["topic"], row["partition"], row["replica"]) == (copy.manifest.topic, entry.partition, replica)
                and row["first_offset"] is not None
            },
        )
