"""The groups that a marked partition waits for, before its records are deleted and before it is removed.

``marked`` has the configuration that decides whether records are deleted before they expire. ``next_step`` removes the
partitions that wait for nothing, the highest number first.
"""

from __future__ import annotations

from anabranch.ordered_resize.explain import SOME_READER, Wait
from anabranch.ordered_resize.progress import Pair, ReadProgress


def drain_wait(progress: ReadProgress, pair: Pair) -> Wait | None:
    """The wait before all records of a marked partition may be deleted; None if every group is done with them.

    A commit may run ahead of the flush callback, so the owner's report has to reach the end too. At least one group
    must read the topic. While it is not known whether a group reads the topic, nothing is deleted. A group that
    certainly reads the topic is named before a group that may read it.
    """
    if not progress.readers:
        return Wait(on=pair.partition, epoch=pair.epoch, why=SOME_READER)
    by_group = {wait.group: wait for wait in (*progress.waits(pair), *progress.commit_waits(pair))}
    named = sorted(progress.readers, key=lambda reader: not reader.is_reading)
    return next((by_group[reader.group] for reader in named if reader.group in by_group), None)


def removal_wait(progress: ReadProgress, pair: Pair) -> Wait | None:
    """The wait before a marked partition without records may be removed; None if no group is waited for.

    Retention may remove records that a member has received but not flushed. If a live member can report its position,
    an empty log is not enough. If no member can, the log start counts, and the commits do not matter.
    """
    return next(iter(progress.waits(pair)), None)
