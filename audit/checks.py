"""The rules, as Spark queries over the rows of ``anabranch-segments`` with the columns for checks.

Each function takes the rows it needs and returns the offending ones with a ``message`` column. "Batches" are the rows
with ``batch_start``, "records" the rows with ``offset``. A compacted topic may have gaps in offsets and sequences.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from protocol.batch_layout import CONTROL_ABORT
from protocol.key_placement import MOVED_HEADER

_SEQUENCES = 1 << 31


def wrong_crcs(batches: DataFrame) -> DataFrame:
    """Batches whose bytes are not the ones their CRC32C was computed over."""
    return _offences(
        batches.where(~F.col("batch_crc_ok") & F.col("base_offset").isNotNull()),
        F.col("error"),
        F.coalesce("suspect_offset", "base_offset"),
    )


def unreadable_batches(batches: DataFrame) -> DataFrame:
    """Batches with a good CRC that are malformed, and places where no batch can be found at all."""
    malformed = F.col("error").isNotNull() & (F.col("base_offset").isNull() | F.col("batch_crc_ok"))
    return _offences(batches.where(malformed), F.col("error"), F.col("base_offset"))


def broken_offsets(batches: DataFrame, compacted: bool) -> DataFrame:
    """Batches that do not begin where the one before them in their partition ended, and holes within a batch."""
    in_file_order = Window.partitionBy("topic", "partition").orderBy("segment", "position")
    previous = F.lag("last_offset").over(in_file_order)
    ordered = batches.where("base_offset is not null").withColumn("previous", previous)
    if compacted:
        return _offences(
            ordered.where("base_offset <= previous"),
            _sentence("batch begins at offset ", "base_offset", ", the one before ended at ", "previous"),
            F.col("base_offset"),
        )
    holes = "record_count != last_offset - base_offset + 1"
    return _offences(
        ordered.where(f"base_offset != previous + 1 or {holes}"),
        F.when(
            F.expr(holes),
            _sentence("batch with offsets ", "base_offset", "-", "last_offset", " claims ", "record_count", " records"),
        ).otherwise(_sentence("batch begins at offset ", "base_offset", ", the one before ended at ", "previous")),
        F.col("base_offset"),
    )


def broken_sequences(batches: DataFrame, compacted: bool) -> DataFrame:
    """Batches that do not follow the one before of the same producer id and epoch in their partition."""
    of_producer = Window.partitionBy("topic", "partition", "producer_id", "producer_epoch").orderBy("base_offset")
    ordered = _sequenced(batches).withColumn("previous", F.lag("last_sequence").over(of_producer))
    ahead = F.expr(f"pmod(base_sequence - previous, {_SEQUENCES})")
    # Sequences wrap: more than half the circle ahead is behind.
    wrong = ((ahead == 0) | (ahead > _SEQUENCES // 2)) if compacted else ahead != 1
    return _offences(
        ordered.where(F.col("previous").isNotNull() & wrong),
        _sentence(
            "producer ",
            "producer_id",
            " epoch ",
            "producer_epoch",
            ": sequence ",
            "base_sequence",
            " follows ",
            "previous",
        ),
        F.col("base_offset"),
    )


def repeated_batches(batches: DataFrame) -> DataFrame:
    """Batches with the producer id, epoch and first sequence of an earlier one in their partition."""
    same = Window.partitionBy("topic", "partition", "producer_id", "producer_epoch", "base_sequence")
    copies = _sequenced(batches).withColumn("first", F.min("base_offset").over(same))
    return _offences(
        copies.where("base_offset > first"),
        _sentence(
            "producer ", "producer_id", " epoch ", "producer_epoch", ": sequence ", "base_sequence",
            " is already at offset ", "first",
        ),
        F.col("base_offset"),
    )  # fmt: skip


def repeated_records(records: DataFrame) -> DataFrame:
    """Records with the key and order value of an earlier one, anywhere in their topic."""
    same = Window.partitionBy("topic", "key", "order_value").orderBy("layout_version", "partition", "offset")
    copies = _ordered_by_value(records).withColumn("number", F.row_number().over(same))
    copies = copies.withColumn("first_partition", F.first("partition").over(same))
    copies = copies.withColumn("first_offset", F.first("offset").over(same))
    return _offences(
        copies.where("number > 1"),
        _sentence(
            "key ", _shown_key(), " has order value ", "order_value", " already in partition ", "first_partition",
            " at offset ", "first_offset",
        ),
        F.col("offset"),
    )  # fmt: skip


def broken_key_order(records: DataFrame) -> DataFrame:
    """Records whose order value is below that of the record before of the same key, and values without one.

    Under one layout a key has one partition, so a key's records are in order by layout version, then offset.
    """
    of_key = Window.partitionBy("topic", "key").orderBy("layout_version", "partition", "offset")
    ordered = _ordered_by_value(records).withColumn("previous", F.lag("order_value").over(of_key))
    backwards = _offences(
        ordered.where("order_value < previous"),
        _sentence("key ", _shown_key(), ": order value ", "order_value", " comes after ", "previous"),
        F.col("offset"),
    )
    unreadable = _offences(records.where("order_error is not null"), F.col("order_error"), F.col("offset"))
    return backwards.unionByName(unreadable)


def keys_that_do_not_ascend(keys: DataFrame) -> DataFrame:
    """The topics and keys whose summaries do not ascend, within one or from one to the next."""
    of_key = Window.partitionBy("topic", "key").orderBy("layout_version", "partition", "offset")
    ordered = keys.withColumn("previous", F.lag("last_value").over(of_key))
    return ordered.where("not ascends or order_value <= previous").select("topic", "key").distinct()


def misplaced_records(records: DataFrame) -> DataFrame:
    """Records in another partition than linear hashing gives their key under the layout of their leader epoch.

    A tombstone with the header MOVED_HEADER may also lie where the key lived under an earlier layout.
    """
    note = (
        F.when(F.col("moved"), f"; its tombstone with the header {MOVED_HEADER} lies where the key never lived")
        .when(~F.col("moved"), f"; the header {MOVED_HEADER} is for tombstones, this record has a value")
        .otherwise("")
    )
    return _offences(
        records.where("expected_partition != partition"),
        F.concat(_sentence("key ", _shown_key(), " belongs in partition ", "expected_partition"), note),
        F.col("offset"),
    )


def records_while_closed(records: DataFrame) -> DataFrame:
    """Records of a leader epoch whose layout does not count their partition: it takes none of clients (KIP-253).

    A later epoch may count it again. Transaction markers are no records of clients; a closed partition takes them.
    """
    return _offences(
        records.where("while_closed"),
        _sentence("record of leader epoch ", "leader_epoch", ", in which the partition was closed"),
        F.col("offset"),
    )


def without_aborted(rows: DataFrame) -> DataFrame:
    """``rows`` less those of transactions that ended in an abort marker: no committed reader ever sees them."""
    batches = rows.where("batch_start and is_transactional")
    later = (
        Window.partitionBy("topic", "partition", "producer_id")
        .orderBy("base_offset")
        .rowsBetween(1, Window.unboundedFollowing)
    )
    ended = batches.withColumn("outcome", F.first("marker", ignorenulls=True).over(later))
    aborted = ended.where(f"not is_control and outcome = {CONTROL_ABORT}").select("segment", "position")
    return rows.join(F.broadcast(aborted), ["segment", "position"], "left_anti")


def _sequenced(batches: DataFrame) -> DataFrame:
    return batches.where("producer_id >= 0 and base_sequence >= 0 and not is_control")


def _ordered_by_value(records: DataFrame) -> DataFrame:
    return records.where("key is not null and order_value is not null")


def _shown_key() -> Column:
    return F.concat(F.lit("'"), F.substring(F.decode("key", "UTF-8"), 1, 80), F.lit("'"))


def _sentence(*parts: str | Column) -> Column:
    """Literal texts and column names in turn, beginning with a text."""
    columns = []
    for number, part in enumerate(parts):
        if isinstance(part, Column):
            columns.append(part)
        else:
            columns.append(F.col(part).cast("string") if number % 2 else F.lit(part))
    return F.concat(*columns)


def _offences(rows: DataFrame, message: Column, offset: Column) -> DataFrame:
    return rows.select("topic", "partition", offset.alias("offset"), "segment", "position", message.alias("message"))
