"""Checks that memory stays flat: the brokers' resident memory over a bounded run of producing and reading."""

from __future__ import annotations

from collections.abc import Callable

SLICES = 8
READ_SHARE = 0.9
"""The share of the written records that each reader waits for. A reader does not count the records before its clock
starts."""


def watch_memory(
    rss_bytes: Callable[[], int], run_client: Callable[[str, int], object], records: int
) -> dict[str, float]:
    """Write ``records`` in ``SLICES`` runs, and read all written records after each run. Returns the memory in MB.

    Memory is measured at the start, in the middle and at the end. The start is after the first slice: from then on
    caches are warm, and growth is a leak.
    """
    each = max(1, records // SLICES)
    seen_mb = []
    for number in range(SLICES):
        run_client("confluent-produce", each)
        run_client("confluent-fetch", int(each * (number + 1) * READ_SHARE))
        seen_mb.append(rss_bytes() / 1e6)
    return {"rss_start_mb": seen_mb[0], "rss_middle_mb": seen_mb[SLICES // 2], "rss_end_mb": seen_mb[-1]}
