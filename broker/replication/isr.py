"""A leader's facts about its followers, and which followers are in sync. Pure (KIP-497)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from anabranch.protocol.sentinels import NO_EPOCH, NO_OFFSET

REFUSED_REPLICA_WAITS_S = 1.0
"""If the controller refused a replica for the ISR, the replica is proposed again after this time."""


class PendingIsr(NamedTuple):
    """An ISR that the controller was asked for and has not confirmed, with the epochs of the request."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    """The broker epoch of each member at its last fetch; -1 if it is not known (KIP-903)."""
    leader_epoch: int
    partition_epoch: int


class ReplicaProgress:
    """A follower's progress, as far as its fetches show. Times are of ``env.clock.monotonic()``."""

    __slots__ = (
        "broker_epoch",
        "caught_up_at",
        "fetched_at",
        "has_no_room",
        "leader_end_at_fetch",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, caught_up_at: float = -math.inf) -> None:
        self.broker_epoch = NO_EPOCH
        """The epoch of the registration under which the follower fetched last."""
        self.log_end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.caught_up_at = caught_up_at
        """The last time at which the follower had all records of the leader."""
        self.fetched_at = -math.inf
        self.leader_end_at_fetch = NO_OFFSET
        self.has_no_room = False
        """Whether the follower's log dir is full, so that it does not fetch."""

    @property
    def has_followed(self) -> bool:
        """Whether the follower has fetched from this leader. If so, it has truncated records that only it had."""
        return self.log_end_offset != NO_OFFSET

    def fetched(self, offset: int, log_start_offset: int, leader_end_offset: int, now: float) -> None:
        """Note a fetch from ``offset`` on: the follower has all records below ``offset``.

        Compare this offset with the leader's log end at the follower's previous fetch. If the offset is not lower, the
        follower counts as caught up at the time of that previous fetch. So under steady load a follower is in sync,
        although it is always a little behind.
        """
        if offset >= leader_end_offset:
            self.caught_up_at = now
        elif offset >= self.leader_end_at_fetch >= 0:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.leader_end_at_fetch = leader_end_offset
        self.fetched_at = now
        self.has_no_room = False

    def leader_appends(self, leader_end_offset: int, now: float) -> None:
        """Note that the leader appends at ``leader_end_offset``. A follower at this offset was caught up until now."""
        if self.log_end_offset >= leader_end_offset:
            self.caught_up_at = now

    def is_lagging(self, leader_end_offset: int, now: float, max_lag_s: float) -> bool:
        """Whether the follower lacks records, and has lacked some for too long or has no room for them."""
        is_behind = self.log_end_offset < leader_end_offset
        return is_behind and (self.has_no_room or not self.was_caught_up(now, max_lag_s))

    def may_join(self, high_watermark: int, epoch_start_offset: int) -> bool:
        """Whether a follower outside the ISR may join: it has the committed records and all from before this epoch."""
        return not self.has_no_room and self.log_end_offset >= max(high_watermark, epoch_start_offset)

    def was_caught_up(self, now: float, max_lag_s: float) -> bool:
        return now - self.caught_up_at <= max_lag_s


def high_watermark(local_end_offset: int, waited_for: Iterable[int], progress: Mapping[int, ReplicaProgress]) -> int:
    """The offset below which this replica and all ``waited_for`` have every record; -1 if one has not fetched yet."""
    target = local_end_offset
    for replica in waited_for:
        known = progress.get(replica)
        target = min(target, NO_OFFSET if known is None else known.log_end_offset)
    return target


def lagging_replicas(
    isr: Iterable[int],
    local_id: int,
    progress: Mapping[int, ReplicaProgress],
    leader_end_offset: int,
    now: float,
    max_lag_s: float,
) -> list[int]:
    """The members of the ISR that have not caught up for ``max_lag_s``, or that lack records and have no room."""
    lagging = []
    for replica in isr:
        known = progress.get(replica)
        if replica != local_id and (known is None or known.is_lagging(leader_end_offset, now, max_lag_s)):
            lagging.append(replica)
    return lagging
