"""The output of ``anabranch groups describe`` for a group, in 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from anabranch.cli.output import RED, TOTAL, YELLOW, coloured, print_table
from anabranch.protocol.plurals import counted
from anabranch.view.amounts import duration
from anabranch.view.groups import DescribedGroup, GroupPartition
from anabranch.view.unread import uncommitted_text

COLUMNS = ("partition", "committed", "end", "lag", "behind", "member")
WITH_EXPIRED = ("partition", "committed", "end", "lag", "expired unread", "behind", "member")
FIELDS = (
    "topic",
    "partition",
    "committed_offset",
    "high_watermark",
    "lag",
    "lag_seconds",
    "member",
    "client_id",
    "host",
    "log_start_offset",
    "expired",
    "uncommitted",
)
"""The fields of a row, as in JSON and in tab-separated lines."""


def print_group(group: DescribedGroup) -> None:
    """Print the group, a table with totals for each topic, and the members with the numbers that the tables use."""
    members = {row.member: row for row in group.partitions if row.member is not None}
    numbers = {member: number for number, member in enumerate(sorted(members), 1)}
    state = group.state
    print(
        f"{group.group}  {coloured(state, '' if state in ('Stable', 'Empty') else RED)}  "
        f"assignor {group.assignor or '-'}  coordinator {group.coordinator}  "
        f"{counted(group.members, 'member')}"
    )
    for topic, found in groupby(group.partitions, key=lambda row: row.topic):
        rows = list(found)
        print(topic)
        lines = [*(_line(row, numbers) for row in rows), _total(rows)]
        columns: Sequence[str] = WITH_EXPIRED
        if not any(row.expired for row in rows):
            columns, lines = COLUMNS, [[*line[:4], *line[5:]] for line in lines]
        print_table(columns, lines, colour=lambda line: YELLOW if line[3] else "")
        text = uncommitted_text((row.uncommitted for row in rows if row.committed_offset is None), "The lag")
        if text is not None:
            print(text)
    for member, number in numbers.items():
        row = members[member]
        print(f"member {number}: {row.client_id} at {(row.host or '').lstrip('/')}")
    for awaited in group.awaited_members:
        print(
            f"waits for {awaited.client_id or awaited.member} at {awaited.host.lstrip('/')} to join again: "
            f"for {_seconds(awaited.awaited_ms)} now, at most {_seconds(awaited.wait_left_ms)} more"
        )


def _line(row: GroupPartition, numbers: Mapping[str, int]) -> list[Any]:
    return [
        row.partition,
        row.committed_offset,
        row.high_watermark,
        row.lag,
        row.expired,
        duration(row.lag_seconds),
        numbers.get(row.member or ""),
    ]


def _seconds(ms: int | None) -> str:
    return duration(None if ms is None else ms / 1000)


def _total(rows: Sequence[GroupPartition]) -> list[Any]:
    """The sums of the known lags and of the expired records, and the longest known time."""
    lags = [row.lag for row in rows if row.lag is not None]
    times = [row.lag_seconds for row in rows if row.lag_seconds is not None]
    expired = sum(row.expired or 0 for row in rows)
    return [TOTAL, None, None, sum(lags) if lags else None, expired, duration(max(times, default=None)), None]
