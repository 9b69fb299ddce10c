"""Sizes and durations as text for people."""

from __future__ import annotations


def size(count: int | None) -> str:
    """A size in bytes, as text for people."""
    if count is None:
        return "-"
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount >= 1024:
            amount, unit = amount / 1024, larger
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """A duration, as text for people."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
