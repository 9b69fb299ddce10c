"""The lineage of a partition: the partitions that had its keys before, each with its last leader epoch.

Entries are written in the bump that makes them true, so a lineage read at leader epoch ``as_of`` has every entry up to
``as_of``. ``earlier_records`` has the rule of order that follows from the entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from anabranch.ordered_resize.facts import Lineage
from anabranch.protocol.sentinels import NO_EPOCH, NO_TIMESTAMP
from anabranch.zk_schemas.partition_state import LineageEntry

EVERY_EPOCH: Final = 2**31
"""Above every leader epoch."""
BELOW_EVERY_EPOCH: Final = -2
"""Below every leader epoch, including the -1 of batches without a leader epoch."""


def pruned(
    entries: Iterable[LineageEntry], floor: int, last_leader_epochs: Mapping[int, int]
) -> tuple[tuple[LineageEntry, ...], int]:
    """The entries without removed losers, and the floor (rule 8).

    The floor is the newest epoch of an entry from which losers were dropped.
    """
    kept = []
    for entry in entries:
        left = {q: f for q, f in entry.losers.items() if last_leader_epochs.get(q, NO_EPOCH) < f}
        if len(left) < len(entry.losers):
            floor = raised_floor(floor, entry.epoch)
        if left:
            kept.append(LineageEntry(entry.epoch, left))
    return tuple(kept), floor


def timed(entries: Iterable[LineageEntry], times_ms: Mapping[int, int]) -> dict[int, int]:
    """The known times of these entries, by leader epoch. No rule of order reads them."""
    return {entry.epoch: at for entry in entries if (at := times_ms.get(entry.epoch, NO_TIMESTAMP)) >= 0}


def raised_floor(floor: int, epoch: int) -> int:
    """The floor after losers of the entry at ``epoch`` were dropped. A load may be due for these losers' records."""
    return max(floor, epoch)


def leader_epochs_after_creation(partition: int, entries: Iterable[LineageEntry]) -> dict[int, int]:
    """KIP-253's ``leaderEpochAfterCreation``: the losers of the newest entry that a grow made."""
    newest: Mapping[int, int] = {}
    for entry in entries:
        if all(loser < partition for loser in entry.losers):  # a grow: its losers are ancestors of the gainer
            newest = entry.losers
    return dict(newest)


def split_epoch(partition: int, entries: Iterable[LineageEntry]) -> int:
    """The leader epoch of the newest entry that a grow made; -1 if there is none."""
    grown = (entry.epoch for entry in entries if all(loser < partition for loser in entry.losers))
    return max(grown, default=NO_EPOCH)


class Merge(NamedTuple):
    """The last shrink that took the keys of a partition."""

    up_to: int
    """The last leader epoch in which the partition had the keys."""
    into: int
    """The partition that took the keys. A later grow may have moved them to another partition."""
    epoch: int
    """The first leader epoch of ``into`` with the keys: one above KIP-253's ``leaderEpochBeforeDeletion``."""


def last_merges(known: Mapping[int, Lineage]) -> dict[int, Merge]:
    """The last merge of each partition that lost its keys in a shrink, from the lineages of existing partitions."""
    found: dict[int, Merge] = {}
    for p, one in known.items():
        for entry in one.entries:
            for q, up_to in entry.losers.items():
                if p < q:  # p is an ancestor: a shrink. In a grow a descendant takes keys
                    found[q] = max(found.get(q, Merge(-1, -1, -1)), Merge(up_to, p, entry.epoch))
    return found


def has_keys(own: Lineage, merge: Merge | None) -> bool:
    """Whether a partition has keys: no shrink took them, or a grow gave it keys after the last such shrink."""
    newest = max((entry.epoch for entry in own.entries), default=own.floor)
    return merge is None or newest > merge.up_to
