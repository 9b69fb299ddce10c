"""Limits on replication traffic, so that moving replicas leaves room for clients (KIP-73).

``leader.replication.throttled.rate`` and ``follower.replication.throttled.rate`` are in bytes per second, for the whole
broker; the topic keys ``leader.replication.throttled.replicas`` and ``follower.replication.throttled.replicas`` name
the replicas. A replica that is in sync is never throttled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock

UNLIMITED = 2**63 - 1
MAX_PAUSE_S = 1.0
"""A throttled partition is tried again after this time at the latest, because the rate may have been raised."""
ALL_REPLICAS = "*"


class ReplicationQuota:
    """The quota of one direction. ``rate`` and ``replicas`` look up the present configuration."""

    def __init__(
        self,
        local_id: int,
        clock: Clock,
        rate: Callable[[], int],
        replicas: Callable[[str], Sequence[str]],
    ) -> None:
        self._local_id = local_id
        self._clock = clock
        self._rate = rate
        self._replicas = replicas
        self._overdrawn = 0.0
        """The number of bytes beyond the rate at time ``_at``; it decreases with time."""
        self._at = clock.monotonic()
        self.on_used: Callable[[TopicPartition, int], None] = lambda _key, _size_bytes: None
        """Called with the number of all bytes, including bytes that the quota does not limit."""

    def used(self, key: TopicPartition, size_bytes: int) -> None:
        """Count bytes of a partition, if the quota applies to it."""
        self.on_used(key, size_bytes)
        if self._rate() < UNLIMITED and self._is_listed(key):
            self._settle()
            self._overdrawn += size_bytes

    def is_throttled(self, key: TopicPartition) -> bool:
        """Whether the partition must wait, because more was sent than the rate allows."""
        if self._rate() == UNLIMITED or not self._is_listed(key):
            return False
        self._settle()
        return self._overdrawn > 0

    def retry_at(self) -> float:
        """The time of the next try, by ``env.clock.monotonic()``. At most ``MAX_PAUSE_S`` away: the rate may change."""
        self._settle()
        return self._at + min(self._overdrawn / self._rate(), MAX_PAUSE_S)

    def _settle(self) -> None:
        now = self._clock.monotonic()
        self._overdrawn = max(0.0, self._overdrawn - (now - self._at) * self._rate())
        self._at = now

    def _is_listed(self, key: TopicPartition) -> bool:
        listed = self._replicas(key.topic)
        return bool(listed) and (ALL_REPLICAS in listed or f"{key.partition}:{self._local_id}" in listed)
