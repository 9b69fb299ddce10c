"""The earlier records that a reader must have processed before a batch may be delivered.

    satisfied(q, f)     = q's incarnation with epoch f was removed, or
                          the group has processed q up to the end of epoch f, and
                          satisfied(r, g) for every r: g of every entry of q with epoch <= f
    may_deliver(p, b)   = satisfied(q, f) for every q: f of every entry of p with epoch <= b

The entries are those of ``lineage``. The recursion is computed as a closure: for each partition only the highest
required epoch counts, because all lower epochs are satisfied with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.ordered_resize.facts import Facts, Lineage, is_fresh, is_over, is_passed, is_processed
from anabranch.zk_schemas.partition_state import LineageEntry


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
