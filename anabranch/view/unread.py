"""The records of a partition that a group has yet to read. Pure.

A lag counts records that can still be read. Records that were removed before the group had committed them are expired
unread: they stand beside the lag. A partition without a commit has no lag: where a consumer begins there depends on its
``auto.offset.reset``, which the cluster does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from anabranch import TopicPartition
from anabranch.protocol.plurals import counted


class Unread(NamedTuple):
    """The records that a group has yet to read; None where the number is not known."""

    lag: int | None
    """The readable records after the commit; None without a commit."""
    expired: int | None
    """The records after the commit that were removed."""
    uncommitted: int | None
    """The readable records of a partition without a commit."""


NOT_KNOWN = Unread(None, None, None)


def unread(committed: int | None, start: int | None, end: int | None) -> Unread:
    """``start`` and ``end``: the log start offset and the high watermark, if they are known."""
    if start is None or end is None:
        return NOT_KNOWN
    if committed is None:
        return Unread(None, None, max(0, end - start))
    return Unread(lag_of(committed, start, end), max(0, min(start, end) - committed), None)


def lag_of(committed: int, start: int, end: int) -> int:
    """The readable records after a commit."""
    return max(0, end - max(committed, start))


def total_lag(
    committed: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> int:
    """The readable records after the commits of one group, in the partitions with a known end."""
    return sum(lag_of(offset, starts.get(tp, 0), ends[tp]) for tp, offset in committed.items() if tp in ends)


def uncommitted_text(uncommitted: Iterable[int | None], lag: str) -> str | None:
    """Sentences about the partitions without a commit; None if all have one.

    ``uncommitted``: the records of each such partition. ``lag``: the name of the number that does not count them.
    """
    every = list(uncommitted)
    if not every:
        return None
    known = [records for records in every if records is not None]
    unknown = len(every) - len(known)
    has, it, hold, its = ("has", "It", "holds", "its") if len(every) == 1 else ("have", "They", "hold", "their")
    text = f"{counted(len(every), 'partition', form=',')} of its topics {has} no commit. "
    if not known:
        return text + f"The number of {its} records is not known."
    records = counted(sum(known), "record", form=",") if sum(known) else "no records"
    text += f"{it} {hold} {records}" + (f", without those of {unknown} that did not answer." if unknown else ".")
    if not sum(known):
        return text
    them = "it" if sum(known) == 1 else "them"
    return (
        f"{text} {lag} does not count {them}: where a consumer begins there depends on its auto.offset.reset, which"
        " the cluster does not know."
    )
