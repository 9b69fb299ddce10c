"""The lineage of a partition: the partitions that had its keys before, each with its last leader epoch.

    satisfied(q, f)     = q's incarnation with epoch f was removed, or
                          the group has processed q up to the end of epoch f, and
                          satisfied(r, g) for every r: g of every entry of q with epoch <= f
    may_deliver(p, b)   = satisfied(q, f) for every q: f of every entry of p with epoch <= b

Entries are written in the bump that makes them true, so a lineage read at leader epoch ``as_of`` has every entry up to
``as_of``. The recursion is computed as a closure: for each partition only the highest required epoch counts, because
all lower epochs are satisfied with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from anabranch.ordered_resize.facts import Facts, Lineage, is_fresh, is_over, is_passed, is_processed
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


def required(facts: Facts, losers: Mapping[int, int], *, passed_too: bool = False) -> dict[int, int]:
    """The partitions to process before batches that wait for ``losers``, each with its highest leader epoch.

    Epochs that are over or were passed need nothing more. Requirements that follow from an unknown or too old lineage
    are not included. With ``passed_too``, passed epochs are included: they would be required again if their position
    were lowered.
    """
    needed: dict[int, int] = {}
    todo = list(losers.items())
    while todo:
        q, f = todo.pop()
        done = needed.get(q, -1)
        if f <= done or is_over(facts, q, f) or (is_passed(facts, q, f) and not passed_too):
            continue
        needed[q] = f
        known = facts.lineages.get(q)
        if known is not None and is_fresh(known, f):
            todo.extend(pair for entry in behind(known, done, f) for pair in entry.losers.items())
    return needed


def behind(known: Lineage, above: int, up_to: int) -> list[LineageEntry]:
    """The entries of a required partition from ``above`` (exclusive) to ``up_to``. These are required too."""
    return [entry for entry in known.entries if above < entry.epoch <= up_to]


def is_satisfied(facts: Facts, q: int, f: int) -> bool:
    """Whether a partition in ``required`` has a new enough lineage and is processed up to the end of epoch ``f``."""
    known = facts.lineages.get(q)
    return known is not None and is_fresh(known, f) and is_processed(facts, q, f)


def cap(facts: Facts, partition: int) -> int:
    """The highest leader epoch whose batches may be delivered; -1: none."""
    known = facts.lineages.get(partition)
    if known is None:
        return -1
    return next((entry.epoch - 1 for entry in known.entries if not _may_pass(facts, entry)), known.as_of)


def pass_satisfied(facts: Facts, partition: int) -> None:
    """Note the epochs that are satisfied for the partition. They stay passed when the positions are forgotten."""
    known = facts.lineages.get(partition)
    for entry in known.entries if known is not None else ():
        if not _may_pass(facts, entry):
            return
        facts.pass_all(required(facts, entry.losers))


def _may_pass(facts: Facts, entry: LineageEntry) -> bool:
    return all(is_satisfied(facts, q, f) for q, f in required(facts, entry.losers).items())


def may_deliver(facts: Facts, partition: int, epoch: int) -> bool:
    """Whether the order allows delivering a batch of this leader epoch. A load may still have to come first."""
    return epoch <= cap(facts, partition)


class Loaded(NamedTuple):
    """Cap and floor at the call of a partition's last load. After an assignment nothing was loaded."""

    cap: int = -1
    floor: int = -1


def loaded_up_to(known: Lineage, loaded: Loaded) -> int:
    """The highest leader epoch whose batches need no load first; ``EVERY_EPOCH``: all, ``BELOW_EVERY_EPOCH``: none.

    This is rule 13. If the floor is above both values of ``loaded``, entries were dropped that no load covered, and a
    load is due before any batch. The cap alone does not show this, because an entry that waits below the floor keeps
    the cap below the floor.
    """
    if known.floor > max(loaded.cap, loaded.floor):
        return BELOW_EVERY_EPOCH
    return next((entry.epoch - 1 for entry in known.entries if entry.epoch > loaded.cap), EVERY_EPOCH)


def is_load_due(known: Lineage, loaded: Loaded, epoch: int) -> bool:
    """Whether the user has to load before a batch of this leader epoch, which is not above the cap."""
    return epoch > loaded_up_to(known, loaded)


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
