"""The sums of the summary rows: for each copy of a partition, leader epoch and index; and the most frequent keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TypeAlias

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from anabranch.audit.discovery import TopicFiles
from anabranch.audit.file_checks import PartitionSummary
from anabranch.audit.manifest import layouts_until
from anabranch.audit.report import Epoch, HotKey
from anabranch.audit.summary import HOT_KEYS

OF_LEADERS = -1
"""The replica number of rows that were exported from leaders, or read from a log directory."""
Summaries: TypeAlias = dict[tuple[str, int, int], PartitionSummary]
"""Summaries by topic, partition and replica."""
SUMMED = (
    "batches", "records", "bytes", "placed", "placeable", "closed", "by_clients", "ordered", "transactional",
    "control", "sequenced", "unsequenced",
)  # fmt: skip
"""The summed columns. ``transactional``, ``control`` and ``sequenced`` count batches. ``unsequenced`` counts clients'
records that have neither a sequence nor an order value."""


@dataclass(frozen=True)
class Totals:
    """The sums by partition, replica and leader epoch, in this order, and the sums of each partition's indexes.

    Batches that cannot be read have no leader epoch. In an index row ``batches`` counts files, ``present`` the existing
    ones, and ``records`` entries.
    """

    epochs: list[Row]
    indexes: list[Row]

    @cached_property
    def summaries(self) -> Summaries:
        """The sums of each copy of a partition."""
        return _summaries_of(self.epochs)

    @cached_property
    def every(self) -> PartitionSummary:
        """The sums of all copies."""
        return _total_of(self.summaries.values())

    @cached_property
    def of_leaders(self) -> PartitionSummary:
        """The sums of the leaders' copies of all partitions."""
        return _total_of(x for (_, _, replica), x in self.summaries.items() if replica == OF_LEADERS)

    @property
    def transactional(self) -> bool:
        """Whether the leaders have transactional batches or transaction markers."""
        return bool(self.of_leaders.transactional + self.of_leaders.control)


def totals(kept: DataFrame) -> Totals:
    """The sums of the rows of the view ``summary``, computed by one query."""
    sequenced = F.expr("producer_id >= 0 and base_sequence >= 0 and not is_control")
    plain = F.expr("not is_control and (producer_id < 0 or base_sequence < 0)")
    per_row = [
        F.coalesce("batches", F.lit(1)).alias("counted"),
        F.expr("int(is_transactional and not is_control) * batches").alias("transactional"),
        F.expr("int(is_control) * batches").alias("control"),
        (sequenced.cast("int") * F.col("batches")).alias("sequenced"),
        F.when(plain, F.expr("by_clients - ordered")).otherwise(0).alias("unsequenced"),
    ]
    rows = kept.where("batch_start or kind = 'index'").select("*", *per_row)
    grouped = rows.groupBy("kind", "topic", "partition", "replica", "leader_epoch", "layout_version").agg(
        F.min("base_offset").alias("first_offset"),
        F.max("last_offset").alias("last_offset"),
        F.min("base_timestamp").alias("first_timestamp"),
        F.max("max_timestamp").alias("last_timestamp"),
        F.count("records").alias("present"),
        *(F.coalesce(F.sum("counted" if name == "batches" else name), F.lit(0)).alias(name) for name in SUMMED),
    )
    found = sorted(grouped.collect(), key=lambda x: (x["topic"], x["partition"], x["replica"], x["leader_epoch"] or 0))
    return Totals([row for row in found if row["kind"] == "row"], [row for row in found if row["kind"] == "index"])


def _summaries_of(epochs: Iterable[Row]) -> Summaries:
    found: dict[tuple[str, int, int], list[Row]] = {}
    for row in epochs:
        found.setdefault((row["topic"], row["partition"], row["replica"]), []).append(row)
    return {
        key: PartitionSummary(
            first_offset=min((x["first_offset"] for x in rows if x["first_offset"] is not None), default=None),
            last_offset=max((x["last_offset"] for x in rows if x["last_offset"] is not None), default=None),
            **{name: sum(row[name] for row in rows) for name in SUMMED},
        )
        for key, rows in found.items()
    }


def _total_of(summaries: Iterable[PartitionSummary]) -> PartitionSummary:
    summaries = list(summaries)
    return PartitionSummary(**{name: sum(getattr(x, name) for x in summaries) for name in SUMMED})


def epochs_of(rows: Iterable[Row], topics: Sequence[TopicFiles]) -> list[Epoch]:
    """An ``Epoch``, with its layout, for each partition and leader epoch in ``rows``; only leaders' copies count."""
    entries = {
        (topic.manifest.topic, partition.partition): (topic.manifest, partition)
        for topic in topics
        for partition in topic.manifest.partitions
    }
    epochs = []
    for row in rows:
        if row["first_offset"] is None or row["replica"] != OF_LEADERS:
            continue
        manifest, partition = entries[row["topic"], row["partition"]]
        layouts = layouts_until(manifest, partition, row["leader_epoch"])
        layout = layouts[-1] if layouts else None
        epochs.append(
            Epoch(
                initial_partition_count=layout.initial_partition_count if layout else None,
                undeleted_partition_count=layout.undeleted_partition_count if layout else None,
                **{field.name: row[field.name] for field in fields(Epoch) if field.name in row},
            )
        )
    return epochs


def hot_keys(kept: DataFrame) -> list[HotKey]:
    """The most frequent keys of each topic."""
    counted = kept.where(f"kind = 'hot' and replica = {OF_LEADERS}").groupBy("topic", "key")
    most = Window.partitionBy("topic").orderBy(F.desc("records"), "key")
    rows = counted.agg(F.sum("records").alias("records")).withColumn("rank", F.row_number().over(most))
    kept_rows = rows.where(F.col("rank") <= HOT_KEYS).orderBy("topic", "rank").collect()
    return [HotKey(row["topic"], bytes(row["key"]), row["records"]) for row in kept_rows]
