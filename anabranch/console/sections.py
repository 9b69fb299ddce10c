"""The section in a topic that the messages page shows, and the way from there to older and newer records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Literal, NamedTuple

from anabranch import Admin, TopicPartition
from anabranch.console.records import SEARCH_RECORDS, SEARCH_S, FoundRecords, Ranges, is_number
from anabranch.view.times import milliseconds

MOST_LINKED = 500
"""The largest number of partitions in a link to older or newer records: a link has an offset for each."""


class Section(NamedTuple):
    """The ranges that are read, and the log start offsets by partition.

    ``newest``: the newest records of the ranges are shown, else the oldest. ``is_last``: the ranges end with the logs.
    """

    ranges: Ranges
    log_starts: Mapping[int, int]
    newest: bool
    is_last: bool


async def section_of(
    admin: Admin, topic: str, partitions: Sequence[int], where: str, before: str, count: int
) -> Section:
    """The section that a query names.

    ``where``: ``beginning``, ``end`` (the newest ``count`` records), an offset, a time in ISO 8601, or an offset by
    partition. ``before``: offsets by partition, for the newest ``count`` records before these. Raises ``ValueError``.
    """
    by_partition = parse_offsets(before or where) if before or is_offsets(where) else None
    if by_partition is not None:
        partitions = [p for p in partitions if p in by_partition]
    tps = [TopicPartition(topic, p) for p in partitions]
    first, last = await _offsets(admin, tps, "earliest"), await _offsets(admin, tps, "latest")
    starts, ends, newest = first, last, before != "" or where == "end"
    if before and by_partition is not None:
        ends = {p: min(by_partition[p], last[p]) for p in partitions}
    if newest:
        starts = {p: max(first[p], ends[p] - count) for p in partitions}
    elif by_partition is not None:
        starts = {p: max(first[p], by_partition[p]) for p in partitions}
    elif is_number(where):
        starts = {p: max(first[p], int(where)) for p in partitions}
    elif where != "beginning":
        found = await _offsets(admin, tps, milliseconds("from", where, UTC))
        starts = {p: found[p] if found[p] >= 0 else last[p] for p in partitions}
    return Section({p: (starts[p], ends[p]) for p in partitions}, first, newest, ends == last)


async def _offsets(
    admin: Admin, tps: Sequence[TopicPartition], spec: Literal["earliest", "latest"] | int
) -> dict[int, int]:
    found = await admin.list_offsets(dict.fromkeys(tps, spec))
    return {tp.partition: found[tp].offset for tp in tps}


class WaysOn(NamedTuple):
    """The values of ``before`` in the link to older records and of ``from`` in the link to newer ones; may be empty."""

    older: str
    newer: str


def ways_on(section: Section, found: FoundRecords) -> WaysOn:
    """The offsets for the links to older and newer records."""
    starts = {p: start for p, (start, _) in section.ranges.items()}
    ends = {p: end for p, (_, end) in section.ranges.items()}
    older = found.next_offsets if section.newest else starts
    newer = ends if section.newest else found.next_offsets
    has_older = any(offset > section.log_starts[p] for p, offset in older.items())
    has_newer = not section.is_last if section.newest else not found.is_complete
    return WaysOn(offsets_text(older) if has_older else "", offsets_text(newer) if has_newer else "")


def pinned(section: Section) -> dict[str, str]:
    """The part of a query that finds this section again, also when newer records have been written."""
    if section.newest:
        return {"before": offsets_text({p: end for p, (_, end) in section.ranges.items()})}
    return {"from": offsets_text({p: start for p, (start, _) in section.ranges.items()})}


def outcome_of(section: Section, found: FoundRecords) -> str:
    """A sentence on records that are not shown; empty when the links to older and newer records are enough."""
    if found.is_cut:
        is_linked = not section.newest and len(section.ranges) <= MOST_LINKED
        more = "The link to newer records continues it." if is_linked else "Newer records may be missing."
        return f"The search ended at its limit, {SEARCH_S:g} seconds or {SEARCH_RECORDS:,} records. {more}"
    return "There are no more." if found.is_complete and not any(ways_on(section, found)) else ""


def is_offsets(text: str) -> bool:
    """Whether the text has offsets by partition. Before the first colon they have a number, but a time has a date."""
    partition, colon, _ = text.partition(":")
    return bool(colon) and is_number(partition)


def parse_offsets(text: str) -> dict[int, int]:
    """The offsets by partition in a text such as ``0:120,3:95``. Raises ``ValueError``."""
    found = {}
    for part in text.split(","):
        partition, _, offset = part.partition(":")
        if not is_number(partition) or not is_number(offset):
            raise ValueError(f"{part!r} is no offset of a partition, such as 3:95")
        found[int(partition)] = int(offset)
    return found


def offsets_text(offsets: Mapping[int, int]) -> str:
    """The text that ``parse_offsets`` reads."""
    return ",".join(f"{partition}:{offset}" for partition, offset in offsets.items())
