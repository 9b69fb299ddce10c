"""The output of ``anabranch topics describe``: partitions, offsets, configs, and the layout of a resized topic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from anabranch.cli.autoscale import autoscale_lines
from anabranch.cli.output import TOTAL, print_table
from anabranch.protocol.plurals import counted, named
from anabranch.view.moves import split_tree
from anabranch.view.topics import IN_USE, MARKED, DescribedPartition, DescribedTopic

SUMMED_UP_FROM = 200
"""A topic with this many partitions is shown as sums, unless every partition is requested."""
_NAMED = 20
FIELDS = ("partition", "leader", "leader_epoch", "replicas", "isr", "log_start_offset", "high_watermark")


def print_topic(topic: DescribedTopic, *, every_partition: bool = True) -> None:
    configs = ",".join(f"{key}={value}" for key, value in topic.configs.items()) or "none"
    rows = topic.partitions
    print(f"{topic.name}  id {topic.topic_id}  {counted(len(rows), 'partition')}  configs: {configs}")
    summed_up = not every_partition and len(rows) >= SUMMED_UP_FROM
    if summed_up:
        _print_sums(rows)
    else:
        print_table(FIELDS, [_cells(row) for row in rows])
    if topic.layout_version > 0:
        for line in layout_lines(topic)[: 1 if summed_up else None]:
            print(line)
    for records in topic.retained:
        print(records.sentence)
    for withheld in topic.withheld:
        print(withheld.sentence)
    if topic.resize is not None:
        print(f"resize: {topic.resize}")
    if topic.autoscale is not None:
        for line in autoscale_lines(topic.autoscale):
            print(line)


def _cells(row: DescribedPartition) -> list[Any]:
    return [getattr(row, column) for column in FIELDS]


def _print_sums(rows: Sequence[DescribedPartition]) -> None:
    """Print a line for each leader, and the first partitions that have no leader or replicas out of sync."""
    by_leader: dict[int | None, list[DescribedPartition]] = {}
    for row in rows:
        by_leader.setdefault(row.leader, []).append(row)
    columns = ["leader", "partitions", "in_sync", "marked", "offsets"]
    lines = [
        [
            leader,
            len(led),
            sum(len(row.isr) == len(row.replicas) for row in led),
            sum(row.state == MARKED for row in led),
            sum((row.high_watermark or 0) - (row.log_start_offset or 0) for row in led),
        ]
        for leader, led in sorted(by_leader.items(), key=lambda pair: (pair[0] is None, pair[0] or 0))
    ]
    totals = [TOTAL, *(sum(line[index] or 0 for line in lines) for index in range(1, len(columns)))]
    print_table(columns, [*lines, totals])
    bad = [row for row in rows if row.leader is None or len(row.isr) < len(row.replicas)]
    if bad:
        first = f"; the first {_NAMED}:" if len(bad) > _NAMED else ":"
        have = "has" if len(bad) == 1 else "have"
        print(f"{counted(len(bad), 'partition')} {have} replicas out of sync or no leader{first}")
        print_table(FIELDS, [_cells(row) for row in bad[:_NAMED]])
    print("--every-partition shows a line for each partition")


def layout_lines(topic: DescribedTopic) -> list[str]:
    """The counts, and the tree of splits with a few words on each partition."""
    rows = {row.partition: row for row in topic.partitions}
    initial, undeleted = topic.initial_partition_count, topic.undeleted_partition_count
    marked = len(rows) - undeleted
    head = f"layout {topic.layout_version}: created with {counted(initial, 'partition')}, {undeleted} in use"
    lines = [head + (f", {marked} marked for deletion" if marked > 0 else "")]
    lines += split_tree(initial, rows, lambda partition: f"{partition}{_story(rows[partition])}")
    return lines


def _story(row: DescribedPartition) -> str:
    """The split, the merge and the unread records of one partition, in a few words."""
    parts = [] if row.state == IN_USE else [row.state]
    if row.created_from is not None:
        split = _epoch(row.created_from, row.leader_epoch_after_creation)
        parts.append(f"split from {split} {_time(row.split_ms)}")
    if row.merged_into is not None:
        merged = _epoch(row.merged_into, row.leader_epoch_before_deletion)
        parts.append(f"merged into {merged} {_time(row.merged_ms)}")
    if row.state == MARKED:
        if row.records_left is not None:
            parts.append(f"{counted(row.records_left, 'record')} left")
        parts += [f"group {group} has {'?' if left is None else left} to read" for group, left in row.to_drain.items()]
        if behind := [broker for broker in row.replicas if broker not in row.isr]:
            parts.append(f"not in sync: {named('broker', behind)}")
    return "  " + ", ".join(parts) if parts else ""


def _time(ms: int | None) -> str:
    """The time of a step by the controller's clock; releases that did not store it leave it unknown."""
    return "(time unknown)" if ms is None else f"({datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ})"


def _epoch(partition: int, epoch: int | None) -> str:
    return f"{partition} after epoch {'?' if epoch is None else epoch}"
