"""The partition of a key, and the keys that a resize moves: linear hashing on top of ``protocol.key_placement``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from anabranch.protocol.key_placement import ancestor_below, place
from anabranch.zk_schemas.partition_state import PartitionLayout as StoredLayout
from anabranch.zk_schemas.topic import TopicZnode


class Layout(NamedTuple):
    """Count, version and initial count of a topic: together they place every key.

    The version increases with each resize, because counts repeat (4 -> 6 -> 4) and versions do not.
    """

    undeleted_partition_count: int
    layout_version: int
    initial_partition_count: int

    @classmethod
    def goal(cls, topic: TopicZnode) -> Layout:
        """From the topic's znode: the layout that every counted partition has to get."""
        return cls(topic.undeleted_partition_count, topic.layout_version, topic.initial_partition_count)

    @property
    def stored(self) -> StoredLayout:
        """The count and the version, which a partition's znode holds as its layout."""
        return StoredLayout(self.undeleted_partition_count, self.layout_version)

    def owner(self, key_hash: int) -> int:
        """The partition of a key with this ``positive_hash``."""
        return place(key_hash, self.initial_partition_count, self.undeleted_partition_count)

    def counts(self, partition: int) -> bool:
        """Whether the partition accepts records under this layout. If not, it is closed: marked for deletion."""
        return partition < self.undeleted_partition_count

    def closes(self, partition: int) -> bool:
        """Whether the partition is marked for deletion. An unknown layout, with counts of -1, closes nothing."""
        return 0 <= self.undeleted_partition_count <= partition

    def takes(self, partition: int, named: StoredLayout) -> bool:
        """Whether a partition of this layout accepts a batch that was placed by the layout ``named`` (rule 10)."""
        return self.stored == named and self.counts(partition)


class Moves(NamedTuple):
    """The losers and gainers of a resize. A partition is a loser, a gainer or neither, and never both."""

    losers_of: Mapping[int, tuple[int, ...]]
    """The losers of each gainer, ascending."""
    losers: frozenset[int]


@lru_cache(maxsize=256)
def moves(initial: int, before: int, after: int) -> Moves:
    """Losers and gainers of a resize between two counts, neither below ``initial``.

    A grow moves keys to each new partition from its nearest ancestor below the old count. A shrink moves keys from each
    partition that is no longer counted to its nearest ancestor below the new count.
    """
    found: dict[int, list[int]] = {}
    for partition in range(before, after):
        found[partition] = [ancestor_below(partition, initial, before)]
    for partition in range(after, before):
        found.setdefault(ancestor_below(partition, initial, after), []).append(partition)
    losers_of = {gainer: tuple(losers) for gainer, losers in sorted(found.items())}
    return Moves(MappingProxyType(losers_of), frozenset(q for losers in losers_of.values() for q in losers))
