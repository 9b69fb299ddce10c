"""Decides how many records cross to the reader's thread at once. No IO, no clock."""

TARGET_S = 0.05
"""The time for which the records of one crossing should keep the reader busy."""
_GROWTH = 8


def next_size(size: int, elapsed_s: float, most: int) -> int:
    """The number of records of the next crossing, 1 to ``most``.

    The reader has read the ``size`` records of the last crossing in ``elapsed_s``. A slow reader gets few records at
    once, so it reacts to rebalances between them.
    """
    grown = min(most, size * _GROWTH)
    return grown if elapsed_s <= 0 else max(1, min(grown, int(size * TARGET_S / elapsed_s)))
