"""What a leader knows of its followers, and who of them is in sync. Pure bookkeeping (KIP-497)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1


class PendingIsr(NamedTuple):
    """An ISR the controller was asked for and has not confirmed, and the epochs the question was asked in."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    """Of each member, as it last fetched; -1 where that is not known (KIP-903)."""
    leader_epoch: int
    partition_epoch: int


class ReplicaProgress:
    """How far a follower is, by its fetches. Times are of ``env.clock.monotonic()``."""

    __slots__ = (
        "broker_epoch",
        "caught_up_at",
        "fetched_at",
        "leader_end_at_fetch",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, caught_up_at: float = -math.inf) -> None:
        self.broker_epoch = UNKNOWN_EPOCH
        """Of the registration under which it fetched last."""
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.caught_up_at = caught_up_at
        """The last moment at which the follower had everything the leader had."""
        self.fetched_at = -math.inf
        self.leader_end_at_fetch = UNKNOWN_OFFSET

    @property
    def has_followed(self) -> bool:
        """Whether it has fetched from this leader, which is after it truncated what only itself had."""
        return self.log_end_offset != UNKNOWN_OFFSET

    def fetched(self, offset: int, log_start_offset: int, leader_end_offset: int, now: float) -> None:
        """The follower asks from ``offset`` on: it has everything below.

        One that asks for what was the leader's end at its last fetch had caught up then: a follower under steady load
        is always a little behind, and in sync nevertheless.
        """
        if offset >= leader_end_offset:
            self.caught_up_at = now
        elif offset >= self.leader_end_at_fetch >= 0:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.leader_end_at_fetch = leader_end_offset
        self.fetched_at = now

    def leader_appends(self, leader_end_offset: int, now: float) -> None:
        """The leader goes beyond ``leader_end_offset``; a follower that was there was in sync until now."""
        if self.log_end_offset >= leader_end_offset:
            self.caught_up_at = now

    def is_lagging(self, leader_end_offset: int, now: float, max_lag_s: float) -> bool:
        return self.log_end_offset < leader_end_offset and not self.was_caught_up(now, max_lag_s)

    def was_caught_up(self, now: float, max_lag_s: float) -> bool:
        return now - self.caught_up_at <= max_lag_s


def high_watermark(local_end_offset: int, waited_for: Iterable[int], progress: Mapping[int, ReplicaProgress]) -> int:
    """The offset below which every replica in ``waited_for`` has everything; -1 while one of them never fetched."""
    target = local_end_offset
    for replica in waited_for:
        known = progress.get(replica)
        target = min(target, UNKNOWN_OFFSET if known is None else known.log_end_offset)
    return target


def lagging_replicas(
    isr: Iterable[int],
    local_id: int,
    progress: Mapping[int, ReplicaProgress],
    leader_end_offset: int,
    now: float,
    max_lag_s: float,
) -> list[int]:
    """The members of the ISR that have not caught up for ``max_lag_s``."""
    lagging = []
    for replica in isr:
        known = progress.get(replica)
        if replica != local_id and (known is None or known.is_lagging(leader_end_offset, now, max_lag_s)):
            lagging.append(replica)
    return lagging
