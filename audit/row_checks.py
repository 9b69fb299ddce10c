"""The rules, as Spark queries over the rows of ``anabranch-segments``, view ``checks`` or ``summary``.

Each function takes rows and returns the offending ones: topic, partition, offset, segment, position and ``message``.
"Batches" are the rows with ``batch_start``. "Records" are the rows with ``offset``. A compacted topic may have gaps in
offsets and sequences. ``audit.deliveries`` has the rules for deliveries to consumers. The docstring of a rule has a
paragraph with the promise and its source, which ``promise_of`` takes into the report.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from anabranch.audit.offences import offences, sentence, shown_key
from anabranch.protocol.batch_layout import CONTROL_ABORT
from anabranch.protocol.key_placement import MOVED_HEADER

_SEQUENCES = 1 << 31
_COPY = ("topic", "partition", "replica")
_EXPORTED_OF_LEADERS = -1


def promise_of(rule: Callable[..., Any]) -> str:
    """The paragraph of a rule's docstring that begins with "Promise:"."""
    paragraphs = (inspect.getdoc(rule) or "").split("\n\n")
    (found,) = [paragraph for paragraph in paragraphs if paragraph.startswith("Promise: ")]
    return " ".join(found.removeprefix("Promise: ").split())


def wrong_crcs(batches: DataFrame) -> DataFrame:
    """Batches whose CRC32C does not match their bytes.

    Promise: a batch is stored as the producer sent it. Kafka, "Message Format", RecordBatch: crc covers all bytes from
    the attributes on.
    """
    return offences(
        batches.where(~F.col("batch_crc_ok") & F.col("base_offset").isNotNull()),
        F.col("error"),
        F.coalesce("suspect_offset", "base_offset"),
    )


def unreadable_batches(batches: DataFrame) -> DataFrame:
    """Batches with a good CRC that are malformed, and places where no batch can be found at all.

    Promise: a segment file is a sequence of whole batches of magic 2. Kafka, "Message Format", RecordBatch and Record.
    """
    malformed = F.col("error").isNotNull() & (F.col("base_offset").isNull() | F.col("batch_crc_ok"))
    return offences(batches.where(malformed), F.col("error"), F.col("base_offset"))


class Missing(NamedTuple):
    """Offsets [first, end) of a partition that, by the manifest, no export has."""

    topic: str
    partition: int
    first: int
    end: int


def _of(missing: Missing) -> Column:
    return (F.col("topic") == missing.topic) & (F.col("partition") == missing.partition)


def broken_offsets(batches: DataFrame, compacted: bool, missing: Sequence[Missing] = ()) -> DataFrame:
    """Batches that do not begin where the previous batch of their partition ended, and batches with holes.

    ``missing`` offsets are no gap. Transaction markers and records of aborted transactions have offsets like others.

    Promise: offsets of a partition ascend by one; compaction removes records and never renumbers. Kafka, "Log" and "Log
    Compaction".
    """
    in_file_order = Window.partitionBy(*_COPY).orderBy("segment", "position")
    previous = F.lag("last_offset").over(in_file_order)
    ordered = batches.where("base_offset is not null").withColumn("previous", previous)
    if compacted:
        return offences(
            ordered.where("base_offset <= previous"),
            sentence("batch begins at offset ", "base_offset", ", the one before ended at ", "previous"),
            F.col("base_offset"),
        )
    holes = "record_count != last_offset - base_offset + 1"
    gap = F.col("base_offset") != F.col("previous") + 1
    for found in missing:
        gap = gap & ~(_of(found) & (F.col("base_offset") == found.end) & (F.col("previous") == found.first - 1))
    return offences(
        ordered.where(gap | F.expr(holes)),
        F.when(
            F.expr(holes),
            sentence("batch with offsets ", "base_offset", "-", "last_offset", " has record count ", "record_count"),
        ).otherwise(sentence("batch begins at offset ", "base_offset", ", the one before ended at ", "previous")),
        F.col("base_offset"),
    )


def untrue_index_entries(entries: DataFrame) -> DataFrame:
    """Entries of offset and time indexes that contradict the batches: the rows of kind "entry" of the view ``summary``.

    ``position`` is the entry's first byte in the index file. ``audit.index_checks`` has the rules. An entry that
    contradicts two parts of a large segment is one offence.

    Promise: a look-up by offset or time that begins where an index entry points misses no record. Kafka,
    ``OffsetIndex`` and ``TimeIndex``.
    """
    index = ("topic", "partition", "replica", "segment", "position")
    untrue = (
        entries.where("kind = 'entry'")
        .groupBy(*index)
        .agg(F.min("error").alias("error"), F.min("offset").alias("offset"))
    )
    return offences(untrue, F.col("error"), F.col("offset"))


def leader_epochs_that_go_back(batches: DataFrame) -> DataFrame:
    """Batches with a lower leader epoch than the previous batch.

    Promise: leader epochs never decrease along a partition's log. KIP-101, "Proposed Changes".
    """
    in_file_order = Window.partitionBy(*_COPY).orderBy("segment", "position")
    highest = F.max("leader_epoch").over(in_file_order.rowsBetween(Window.unboundedPreceding, -1))
    ordered = batches.where("base_offset is not null").withColumn("previous", highest)
    return offences(
        ordered.where("leader_epoch < previous"),
        sentence("leader epoch ", "leader_epoch", " comes after ", "previous"),
        F.col("base_offset"),
    )


def broken_sequences(batches: DataFrame, compacted: bool, missing: Sequence[Missing] = ()) -> DataFrame:
    """Batches whose sequence does not follow the previous batch of the same producer id in their partition.

    Two batches with ``missing`` offsets between them are not compared.

    A producer may count batches that are stored already from 0 again in a higher epoch; the broker recognises them and
    does not store them again. So the first sequence that is stored in an epoch may be up to the number of the
    producer's records before.

    Promise: an idempotent producer's batches are stored in its order and without a gap, and an old epoch writes no
    more. KIP-98, "Idempotent Producer Guarantees"; KIP-360.
    """
    of_producer = Window.partitionBy("topic", "partition", "producer_id").orderBy("base_offset")
    ordered = _sequenced(batches).withColumn("previous", F.lag("last_sequence").over(of_producer))
    ordered = ordered.withColumn("epoch_before", F.lag("producer_epoch").over(of_producer))
    ordered = ordered.withColumn("ended", F.lag("last_offset").over(of_producer))
    written = F.sum("record_count").over(of_producer.rowsBetween(Window.unboundedPreceding, -1))
    ordered = ordered.withColumn("written", written)
    for found in missing:
        ordered = ordered.where(~(_of(found) & (F.col("ended") < found.end) & (F.col("base_offset") >= found.end)))
    ahead = F.expr(f"pmod(base_sequence - previous, {_SEQUENCES})")
    # Sequences wrap, so a distance of more than half the range means that the batch goes back.
    wrong = ((ahead == 0) | (ahead > _SEQUENCES // 2)) if compacted else ahead != 1
    same, newer = F.expr("producer_epoch = epoch_before"), F.expr("producer_epoch > epoch_before")
    late = F.lit(False) if compacted else newer & F.expr("base_sequence > written")
    batch = ("producer ", "producer_id", " epoch ", "producer_epoch", ": sequence ", "base_sequence")
    return offences(
        ordered.where(
            F.col("previous").isNotNull() & ((same & wrong) | late | F.expr("producer_epoch < epoch_before"))
        ),
        F.when(same, sentence(*batch, " follows sequence ", "previous"))
        .when(newer, sentence(*batch, " begins the epoch; the number of its records before is ", "written"))
        .otherwise(sentence(*batch, " comes after a batch of epoch ", "epoch_before")),
        F.col("base_offset"),
    )


def repeated_batches(batches: DataFrame) -> DataFrame:
    """Batches with the producer id, epoch and first sequence of an earlier one in their partition.

    Promise: a batch that an idempotent producer repeats is stored once. KIP-98, "Idempotent Producer Guarantees".
    """
    same = Window.partitionBy("topic", "partition", "producer_id", "producer_epoch", "base_sequence")
    copies = _sequenced(batches).withColumn("first", F.min("base_offset").over(same))
    return offences(
        copies.where("base_offset > first"),
        sentence(
            "producer ", "producer_id", " epoch ", "producer_epoch", ": sequence ", "base_sequence",
            " is already at offset ", "first",
        ),
        F.col("base_offset"),
    )  # fmt: skip


def overlapping_stretches(rows: DataFrame) -> DataFrame:
    """Stretches of batches (``audit.summary``) that overlap: in their offsets in a file, or in a producer's sequences.

    Without overlaps, the rules over batches find the same offences in stretches as in batches. The stretches of a
    partition, and of a producer in it, then follow each other as their batches do. The batches of one stretch break no
    rule among themselves.
    """
    in_file_order = Window.partitionBy(*_COPY).orderBy("segment", "position")
    ended = F.max(F.greatest("base_offset", "last_offset")).over(
        in_file_order.rowsBetween(Window.unboundedPreceding, -1)
    )
    there = rows.where("base_offset is not null")
    back = there.withColumn("ended", ended).where("base_offset <= ended")
    of_producer = Window.partitionBy("topic", "partition", "producer_id", "producer_epoch").orderBy("base_sequence")
    taken = F.max(F.greatest("base_sequence", "last_sequence")).over(
        of_producer.rowsBetween(Window.unboundedPreceding, -1)
    )
    again = _sequenced(there).withColumn("taken", taken).where("base_sequence <= taken")
    return back.select("topic", "partition").unionByName(again.select("topic", "partition"))


def misplaced_records(records: DataFrame) -> DataFrame:
    """Records in another partition than linear hashing gives for their key and the layout of their leader epoch.

    A tombstone with the header MOVED_HEADER may also be in the key's partition under an earlier layout.

    Promise: a record lies where linear hashing puts its key under the layout of its leader epoch. KIP-253, "Proposed
    Changes"; docs/ordered-resize.md, "Where a key is".
    """
    note = (
        F.when(F.col("moved"), f"; the key was never in the partition of this tombstone with the header {MOVED_HEADER}")
        .when(~F.col("moved"), f"; the header {MOVED_HEADER} is only for tombstones, and this record has a value")
        .otherwise("")
    )
    return offences(
        records.where("expected_partition != partition"),
        F.concat(sentence("key ", shown_key(), " belongs in partition ", "expected_partition"), note),
        F.col("offset"),
    )


def records_while_closed(records: DataFrame) -> DataFrame:
    """Records of a leader epoch whose layout does not count their partition.

    A later epoch may count it again. A closed partition takes transaction markers, which are not clients' records.

    Promise: a partition that is marked for deletion takes no records of clients while it is closed. KIP-253,
    "Proposed Changes"; docs/ordered-resize.md, "The steps".
    """
    return offences(
        records.where("while_closed"),
        sentence("record of leader epoch ", "leader_epoch", ", in which the partition was closed"),
        F.col("offset"),
    )


def wrong_control_batches(batches: DataFrame) -> DataFrame:
    """Control batches that are not a producer's transaction marker, and transactional batches without a producer.

    Promise: a control batch is one marker, COMMIT or ABORT, of a producer's transaction. KIP-98, "Control Messages";
    Kafka, "Message Format", Control Batches.
    """
    fault = (
        F.when(F.expr("producer_id < 0 and is_control"), "control batch without a producer")
        .when(F.expr("producer_id < 0"), "transactional batch without a producer")
        .when(F.expr("is_control and not is_transactional"), "control batch that is not transactional")
        .when(F.expr("is_control and record_count != 1"), sentence("control batch with ", "record_count", " records"))
        .when(F.expr("is_control and marker is null"), "control batch whose record is neither COMMIT nor ABORT")
    )
    readable = batches.where("(is_control or is_transactional) and error is null and topic != '__cluster_metadata'")
    return offences(readable.withColumn("fault", fault).where("fault is not null"), F.col("fault"), _BASE_OFFSET)


def diverging_replicas(batches: DataFrame, copies: DataFrame) -> DataFrame:
    """Batches that are missing or different in another copy of the partition.

    ``copies`` has topic, partition, replica, log_start_offset and high_watermark of every copy; replica -1 is the
    leader's copy. Only offsets that both copies must have are compared. Replicas of compacted topics may differ,
    because each is compacted by itself.

    Promise: below the high watermark all replicas in sync have the same batches. KIP-101; Kafka, "Replication".
    """
    key = ["topic", "partition"]
    start, end = "greatest(log_start_offset, leader_start)", "least(high_watermark, leader_end)"
    leaders = copies.where(f"replica = {_EXPORTED_OF_LEADERS}").select(
        *key, F.col("log_start_offset").alias("leader_start"), F.col("high_watermark").alias("leader_end")
    )
    others = copies.where(f"replica != {_EXPORTED_OF_LEADERS}").join(leaders, key)
    ranges = others.select(*key, "replica", F.expr(start).alias("start"), F.expr(end).alias("end"))
    content = F.struct("crc", "leader_epoch", "last_offset")
    readable = batches.where("base_offset is not null").select(
        *key, "replica", "base_offset", "last_offset", "segment", "position", content.alias("content")
    )
    in_range = "base_offset >= start and last_offset < end"
    expected = readable.where(f"replica = {_EXPORTED_OF_LEADERS}").drop("replica")
    expected = expected.join(F.broadcast(ranges), key).where(in_range)
    found = readable.join(F.broadcast(ranges), [*key, "replica"]).where(in_range)
    same = [*key, "replica", "base_offset"]
    both = expected.select(*same, _place("expected")).join(found.select(*same, _place("found")), same, "full_outer")
    wrong = both.where("expected is null or found is null or expected.content != found.content")
    message = (
        F.when(F.col("found").isNull(), sentence("replica ", "replica", " lacks the batch at offset ", "base_offset"))
        .when(
            F.col("expected").isNull(),
            sentence("replica ", "replica", " has a batch at offset ", "base_offset", " that its leader lacks"),
        )
        .otherwise(sentence("replica ", "replica", " has another batch at offset ", "base_offset", " than its leader"))
    )
    at = F.coalesce("found", "expected")
    placed = wrong.select("*", at["segment"].alias("segment"), at["position"].alias("position"))
    return offences(placed, message, _BASE_OFFSET)


def without_aborted(rows: DataFrame) -> DataFrame:
    """``rows`` without the records of aborted transactions, which no ``read_committed`` consumer gets."""
    batches = rows.where("batch_start and is_transactional")
    later = (
        Window.partitionBy("topic", "partition", "producer_id")
        .orderBy("base_offset")
        .rowsBetween(1, Window.unboundedFollowing)
    )
    ended = batches.withColumn("outcome", F.first("marker", ignorenulls=True).over(later))
    aborted = ended.where(f"not is_control and outcome = {CONTROL_ABORT}").select("segment", "position")
    return rows.join(F.broadcast(aborted), ["segment", "position"], "left_anti")


_BASE_OFFSET = "base_offset"


def _place(name: str) -> Column:
    return F.struct("segment", "position", "content").alias(name)


def _sequenced(batches: DataFrame) -> DataFrame:
    return batches.where("producer_id >= 0 and base_sequence >= 0 and not is_control")
