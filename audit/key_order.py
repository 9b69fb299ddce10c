"""The order of a key's records, within a partition and across partitions: Spark queries as in ``row_checks``.

Under one layout a key has one partition, so a key's records are in order by layout version, then offset.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from anabranch.audit.offences import offences, sentence, shown_key


def broken_key_order(records: DataFrame) -> DataFrame:
    """Records whose order value is below the previous one of the same key, and records without an order value.

    Promise: a key's records are stored in the order in which they were sent, within a partition and across every split
    and merge. KIP-253, "Proposed Changes"; docs/ordered-resize.md, "What is promised".
    """
    of_key = Window.partitionBy("topic", "key", _known_order()).orderBy("layout_version", "partition", "offset")
    ordered = _ordered_by_value(records).withColumn("previous", F.lag("order_value").over(of_key))
    backwards = offences(
        ordered.where("order_value < previous"),
        sentence("key ", shown_key(), ": order value ", "order_value", " comes after ", "previous"),
        F.col("offset"),
    )
    unreadable = offences(records.where("order_error is not null"), F.col("order_error"), F.col("offset"))
    return backwards.unionByName(unreadable)


def repeated_records(records: DataFrame) -> DataFrame:
    """Records with the key and order value of an earlier record of their topic.

    Promise: a record is stored once, also across resizes. docs/ordered-resize.md, "What is promised".
    """
    same = Window.partitionBy("topic", "key", "order_value", _known_order()).orderBy(
        "layout_version", "partition", "offset"
    )
    copies = _ordered_by_value(records).withColumn("number", F.row_number().over(same))
    copies = copies.withColumn("first_partition", F.first("partition").over(same))
    copies = copies.withColumn("first_offset", F.first("offset").over(same))
    return offences(
        copies.where("number > 1"),
        sentence(
            "key ", shown_key(), " has order value ", "order_value", " already in partition ", "first_partition",
            " at offset ", "first_offset",
        ),
        F.col("offset"),
    )  # fmt: skip


def keys_that_do_not_ascend(keys: DataFrame) -> DataFrame:
    """The topics and keys whose order values do not ascend, within a summary or from one summary to the next."""
    of_key = Window.partitionBy("topic", "key", _known_order()).orderBy("layout_version", "partition", "offset")
    ordered = keys.withColumn("previous", F.lag("last_value").over(of_key))
    return ordered.where("not ascends or order_value <= previous").select("topic", "key").distinct()


def _known_order() -> Column:
    """A window key that separates partitions with unknown layouts, because nothing orders their records."""
    return F.expr("if(layout_version is null, partition, -1)")


def _ordered_by_value(records: DataFrame) -> DataFrame:
    return records.where("key is not null and order_value is not null")
