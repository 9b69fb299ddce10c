"""Checks the deliveries in a consumer log against the promise of docs/ordered-resize.md.

A consumer log is JSON lines, in the order of a member's actions:

    {"group": "g", "member": "m1", "topic": "events", "partition": 3, "offset": 17, "time": 1700000000000.5}
    {"group": "g", "member": "m1", "topic": "events", "partition": 3, "offset": 17, "time": ..., "event": "assigned"}

The first line is a delivered record, returned by ``getmany`` or passed to a callback. The second line is a position
that the member got by a rebalance or a seek. ``topic`` may be left out when the files hold one topic. ``time`` is in
milliseconds since 1970, and the members' clocks must agree. The lines of a member are in one file; ``path`` may be a
file or a directory of files.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

LINE = (
    "group string, member string, topic string, partition int, offset bigint, time double, event string, wrong string"
)
DELIVERED, ASSIGNED = "delivered", "assigned"
_PARTITION = ("group", "topic", "partition")
_NEVER = float("inf")


def read_deliveries(spark: SparkSession, path: str, topic: str | None) -> DataFrame:
    """The lines of a consumer log with their number, ``line``. ``wrong`` is the text of an invalid line.

    ``topic`` is the topic of lines that do not name one.
    """
    text = spark.read.text(path).withColumn("line", F.monotonically_increasing_id())
    parsed = F.from_json("value", LINE, {"columnNameOfCorruptRecord": "wrong", "mode": "PERMISSIVE"})
    lines = text.where("trim(value) != ''").select("line", F.col("value"), parsed.alias("read"))
    found = lines.select("line", "value", "read.*")
    found = found.withColumn("event", F.coalesce("event", F.lit(DELIVERED)))
    found = found.withColumn("topic", F.coalesce("topic", F.lit(topic)))
    complete = F.lit(True)
    for name in ("group", "member", "topic", "partition", "offset", "time"):
        complete = complete & F.col(name).isNotNull()
    good = F.col("wrong").isNull() & complete & F.col("event").isin(DELIVERED, ASSIGNED)
    return found.withColumn("wrong", F.when(~F.coalesce(good, F.lit(False)), F.col("value"))).drop("value")


def lines_that_are_none(deliveries: DataFrame) -> DataFrame:
    """Invalid lines of a consumer log.

    Promise: every line of the consumer log has a form that docs/audit.md describes.
    """
    message = F.concat(F.lit("not a line of a consumer log: "), F.substring("wrong", 1, 120))
    wrong = deliveries.where("wrong is not null").withColumn("topic", F.coalesce("topic", F.lit("")))
    return _offences(wrong.withColumn("partition", F.coalesce("partition", F.lit(-1))), message)


def deliveries_that_go_back(deliveries: DataFrame) -> DataFrame:
    """Deliveries at or below the member's last delivery in the partition, without a new owner or position in between.

    Promise: a member delivers no record of a partition twice, and none below its position. A rebalance or a seek may
    give it another position. Kafka, "Consumer Position"; docs/ordered-resize.md, "What is promised".
    """
    before = Window.partitionBy(*_PARTITION).orderBy("time", "line")
    lines = deliveries.where("wrong is null")
    for name in ("member", "offset", "event"):
        lines = lines.withColumn(f"{name}_before", F.lag(name).over(before))
    back = lines.where(
        f"event = '{DELIVERED}' and event_before = '{DELIVERED}' and member = member_before and offset <= offset_before"
    )
    message = F.concat(
        *_words("group '", "group", "': member '", "member", "' delivered offset ", "offset", " after "),
        F.col("offset_before").cast("string"),
    )
    return _offences(back, message)


def early_deliveries(deliveries: DataFrame, records: DataFrame) -> DataFrame:
    """Records that a group delivered before an older record of the same key, in the same partition or another.

    A record that the group never delivered counts as delivered last, except below the group's first offset in the
    record's partition. Partitions are left out if the log has no line of the group for them. Only the first delivery of
    a record counts. ``records`` are the committed records, with topic, partition, offset, key, layout_version, moved,
    segment and position.

    Promise: within a group a key's records are delivered in order, across every split and merge: a record is delivered
    after all older records of its key, in all partitions. docs/ordered-resize.md, "What is promised" and "The rule"
    (``may_deliver``); docs/model, ``Promise``.
    """
    good = deliveries.where("wrong is null")
    begins = good.groupBy(*_PARTITION).agg(F.min("offset").alias("begin"))
    first = F.min(F.struct("time", "line", "member")).alias("at")
    delivered = good.where(f"event = '{DELIVERED}'").groupBy(*_PARTITION, "offset").agg(first)
    # A tombstone of a moved key is not delivered. A record with an unknown layout has no place in its key's order.
    keyed = records.where("offset is not null and key is not null and layout_version is not null and moved is null")
    expected = keyed.join(F.broadcast(begins), ["topic", "partition"]).where("offset >= begin")
    seen = expected.join(delivered, [*_PARTITION, "offset"], "left")
    never = F.struct(F.lit(_NEVER).alias("time"), F.lit(0).cast("bigint").alias("line"), F.lit("").alias("member"))
    place = F.struct(F.coalesce("at", never).alias("at"), "partition", "offset")
    older = (
        Window.partitionBy("group", "topic", "key")
        .orderBy("layout_version", "partition", "offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    ordered = seen.withColumn("latest", F.max(place).over(older)).where("at is not null and latest is not null")
    in_one_call = "latest.at.time = at.time and latest.at.member = at.member and latest.at.line > at.line"
    early = ordered.where(f"latest.at.time > at.time or ({in_one_call})")
    key = F.substring(F.decode("key", "UTF-8"), 1, 80)
    when = F.when(F.col("latest.at.time") == _NEVER, F.lit(", which was never delivered")).otherwise(
        F.concat(F.lit(", which was delivered later"))
    )
    message = F.concat(
        *_words("group '", "group", "': member '"), F.col("at.member"), F.lit("' delivered key '"), key,
        F.lit("' before its older record in partition "), F.col("latest.partition").cast("string"),
        F.lit(" at offset "), F.col("latest.offset").cast("string"), when,
    )  # fmt: skip
    return _offences(early, message)


def undecided_deliveries(deliveries: DataFrame, records: DataFrame) -> DataFrame:
    """Deliveries without a known place in the order of their key: the files lack the record or its layout."""
    good = deliveries.where(f"wrong is null and event = '{DELIVERED}'")
    known = records.where("offset is not null and (key is null or layout_version is not null)")
    return good.join(known.select("topic", "partition", "offset"), ["topic", "partition", "offset"], "left_anti")


def _words(*parts: str) -> list[Column]:
    """Columns of literal texts and of named columns in turn."""
    return [F.col(part).cast("string") if number % 2 else F.lit(part) for number, part in enumerate(parts)]


def _offences(rows: DataFrame, message: Column) -> DataFrame:
    columns = rows.columns
    segment = F.col("segment") if "segment" in columns else F.lit(None).cast("string").alias("segment")
    position = F.col("position") if "position" in columns else F.lit(None).cast("bigint").alias("position")
    return rows.select("topic", "partition", "offset", segment, position, message.alias("message"))
