"""Chooses the partition of a record. No IO.

Linear hashing places a key. Until the first resize it is ``murmur2(key) % n``, as in Kafka's Java client. Records
without a key go to one random partition until a batch is complete (KIP-480): full batches cost less than even
spreading.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache

from anabranch.client.arguments import partition, shown
from anabranch.client.cluster import TopicInfo
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.zk_schemas.config_def import ConfigError

Partitioner = Callable[[TopicInfo, bytes | None], int]
"""The choice of a partition by the metadata of the topic and the key of the record."""


def judged_partitioner(partitioner: Partitioner) -> Partitioner:
    """A user's partitioner, whose results are judged."""
    if not callable(partitioner):
        raise ConfigError("partitioner", f"{shown(partitioner)} is not callable")

    def place(topic: TopicInfo, key: bytes | None) -> int:
        chosen: int = partition("the partition that the partitioner chose,", partitioner(topic, key))
        return chosen

    return place


_CACHED_KEYS = 65_536

cached_hash = lru_cache(_CACHED_KEYS)(positive_hash)
"""Keys repeat, and hashing a key in Python takes longer than the rest of a send."""


@lru_cache(_CACHED_KEYS)
def cached_place(key: bytes, initial: int, undeleted: int) -> int:
    """The partition of a key, by ``place``."""
    return place(cached_hash(key), initial, undeleted)


class StickyPartitioner:
    """Places keys by linear hashing, and sticks to one partition per topic for records without a key."""

    __slots__ = ("_rng", "_sticky")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._sticky: dict[str, int] = {}

    def place(self, topic: TopicInfo, key: bytes | None) -> int:
        """The partition of a key under the topic's layout; without a key the partition stuck to at the moment."""
        if key is not None:
            initial, undeleted = topic.layout
            return cached_place(key, initial, undeleted)
        current = self._sticky.get(topic.name, -1)
        if current < 0 or current >= topic.layout[1]:
            return self.next_sticky(topic, -1)
        return current

    def next_sticky(self, topic: TopicInfo, previous: int) -> int:
        """Change the sticky partition, if it is still ``previous``, because a batch for ``previous`` is complete.

        Partitions with a leader are preferred: a batch for a partition without a leader waits.
        """
        current = self._sticky.get(topic.name, -1)
        if current >= 0 and current != previous and current < topic.layout[1]:
            return current
        count = topic.layout[1]
        partitions = topic.partitions
        available = [p for p in range(count) if p in partitions and partitions[p].leader >= 0] or list(range(count))
        choices = [p for p in available if p != previous] or available
        chosen = choices[self._rng.randrange(len(choices))]
        self._sticky[topic.name] = chosen
        return chosen
