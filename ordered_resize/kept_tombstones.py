"""The rule for the tombstones that stay in a compacted topic; docs/model/Tombstones.tla checks it.

A key that moves leaves older values in its old partition, and no newer record in that partition removes these values.
If a tombstone is removed too early, a new reader takes one of these values for the key's value. So a partition keeps
its tombstones of leader epoch b as long as an entry up to b names a partition that is not removed. The rule needs no
recursion: if a partition names a removed partition, it also names the partitions that the removed partition named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.protocol.sentinels import NO_EPOCH
from anabranch.zk_schemas.partition_state import LineageEntry


def first_kept_epoch(entries: Iterable[LineageEntry], as_of: int, last_leader_epochs: Mapping[int, int]) -> int:
    """Returns the lowest leader epoch whose tombstones stay. Tombstones of lower epochs may be removed.

    ``as_of``: the leader epoch at which the partition's ``entries`` (ascending) were read; a later epoch may have more.
    ``last_leader_epochs``: the last leader epochs of removed partitions, by number. The entries and the last epochs may
    be outdated, because no entry up to ``as_of`` is added later, and a removed incarnation stays removed.
    """
    for entry in entries:
        if any(last_leader_epochs.get(q, NO_EPOCH) < f for q, f in entry.losers.items()):
            return entry.epoch
    return as_of + 1
