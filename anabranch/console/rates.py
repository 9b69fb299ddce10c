"""Rates and lags in seconds from samples of offsets, and hot keys from samples of records. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from anabranch.view.amounts import duration

WINDOW_S = 10.0
"""The default window of rates: rates are computed from the samples of the last ``WINDOW_S``."""
READ_WINDOW_S = 30.0
"""The window of reading rates. Groups commit every few seconds: in a shorter window, they seem to stand still."""
READ_LEAST_S = 10.0
"""Reading rates are measured for at least this time."""
KEPT_S = 60.0
"""How long samples are kept."""
EVERY_S = 1.0
"""The least time between kept samples: a new sample within this time replaces the last one."""


class RateSample(NamedTuple):
    at_s: float
    """The time of a monotonic clock."""
    offset: int


class Samples:
    """Samples over time of an offset that goes up."""

    def __init__(self, window_s: float = WINDOW_S, least_s: float = 0.0) -> None:
        """``least_s``: samples over less time give no rate."""
        self._window_s, self._least_s = window_s, least_s
        self._kept: deque[RateSample] = deque()

    def add(self, at_s: float, offset: int) -> None:
        kept = self._kept
        if kept and offset < kept[-1].offset:
            kept.clear()  # the topic was created again, or the log was truncated
        if len(kept) > 1 and at_s - kept[-2].at_s < EVERY_S:
            kept.pop()
        kept.append(RateSample(at_s, offset))
        while kept[0].at_s < at_s - KEPT_S:
            kept.popleft()

    @property
    def last(self) -> int:
        """The last offset, 0 without samples."""
        return self._kept[-1].offset if self._kept else 0

    @property
    def rate(self) -> float | None:
        """Offsets a second over the window; None before there are two samples over at least ``least_s``."""
        if len(self._kept) < 2 or self._kept[-1].at_s - self._kept[0].at_s < self._least_s:
            return None
        last = self._kept[-1]
        first = next(sample for sample in self._kept if sample.at_s >= last.at_s - self._window_s)
        if first is last:
            first = self._kept[-2]
        return (last.offset - first.offset) / (last.at_s - first.at_s)


class Hottest(NamedTuple):
    """The most frequent key of a sample, and its share of the records."""

    key: bytes
    share: float

    @property
    def name(self) -> str | None:
        """The key as text for a link; None for a key that is empty or not UTF-8."""
        try:
            return self.key.decode() or None
        except UnicodeDecodeError:
            return None


def hottest(keys: Iterable[bytes | None]) -> Hottest | None:
    """The most frequent key in a sample of records; None when no record has a key."""
    counts = Counter(keys)
    records = counts.total()
    del counts[None]
    if not counts:
        return None
    key, count = max(counts.items(), key=lambda item: (item[1], item[0] or b""))
    return Hottest(key or b"", count / records)


def outlook(lag: int, written: float | None, read: float | None) -> str:
    """A forecast of a lag at these rates, in words."""
    if lag == 0:
        return "is at the end"
    if written is None or read is None:
        return "is being measured"
    if read <= 0:
        return "makes no progress" if written <= 0 else f"makes no progress while {written:,.0f} records/s are written"
    if round(read) == round(written):
        return f"stays behind: {written:,.0f} records/s are read and as many are written"
    if read < written:
        return f"falls behind: reads {read:,.0f} records/s, {written:,.0f} are written"
    return f"catches up in {duration(lag / (read - written))}: reads {read:,.0f} records/s, {written:,.0f} are written"
