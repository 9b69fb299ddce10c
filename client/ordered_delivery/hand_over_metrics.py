"""Measures how long moving keys wait in one consumer, for metrics and log lines. No IO, no clock.

A partition is **blocked** from the round in which the gate blocks it. A partition is **released** once nothing
blocks it and the load callback has returned. A **hand-over** begins when the last awaited partition is processed.
For a partition that this consumer reads, this is the return of its flush callback. For any other partition, this is the
arrival of the coordinator's response. If the waiting partition is blocked later, the hand-over begins then. A hand-over
ends when the user gets the first record that was blocked. If nothing was blocked in a partition, its release is no
hand-over. If the partition was not fetched before its release, the first record's timestamp shows whether the record
already existed at the release.

In a hand-over between two members, each member knows one half. The member that gives the keys measures a **report**:
from the flush callback's return, through the commit, until the coordinator has the position. The member that gets the
keys measures the hand-over from the coordinator's response on.

Times are seconds of one monotonic clock, ``released_ms`` is wall-clock time in milliseconds.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable
from typing import NamedTuple

from anabranch.client.client_metrics import Durations
from anabranch.client.ordered_delivery.blocked_partition import BlockedPartition
from anabranch.protocol.types import TopicPartition

_log = logging.getLogger(__name__)

_LOG_AFTER_S = 1.0
"""A partition blocked for this many seconds is logged even if the awaited ends are not known yet."""
_SHOWN_WAITS = 5


class _Block:
    """A blocked partition, with the time when the gate first blocked it."""

    __slots__ = ("is_logged", "last", "since", "waited_for")

    def __init__(self, since: float) -> None:
        self.since = since
        self.last: BlockedPartition
        self.waited_for: dict[TopicPartition, None] = {}
        self.is_logged = False


class Released(NamedTuple):
    """The facts about a released partition until its next record is delivered."""

    begun: float
    max_leader_epoch: int
    """The limit of delivery during the block: only batches of newer leader epochs were blocked."""
    released_ms: int


class HandOvers:
    """The measurements of one consumer; see the module."""

    def __init__(self) -> None:
        self._blocks: dict[TopicPartition, _Block] = {}
        self._processed: dict[TopicPartition, float] = {}
        self._unacknowledged: list[tuple[int, float]] = []
        """The number of each report, and the time when the flush callback before it returned; ascending."""
        self.passed: dict[TopicPartition, None] = {}
        """Blocked partitions that the gate does not block any more. They are released after the load callback."""
        self.undelivered: dict[TopicPartition, Released] = {}
        self._blocked_total = 0
        self._blocked = Durations()
        self._hand_overs = Durations()
        self._reports = Durations()
        self._flushes = Durations()
        self._loads = Durations()

    # ------------------------------------------------------------ the partitions that wait

    def evaluated(self, blocked: Iterable[BlockedPartition], owned: Container[TopicPartition], now: float) -> None:
        """Note the gate's decision: of the partitions ``owned``, the gate blocks exactly ``blocked``."""
        found = {one.partition: one for one in blocked}
        for tp, one in found.items():
            self.passed.pop(tp, None)
            self.undelivered.pop(tp, None)
            block = self._blocks.get(tp)
            if block is None:
                block = self._blocks[tp] = _Block(now)
                self._blocked_total += 1
            block.last = one
            block.waited_for.update((wait.on, None) for wait in one.waits_for)
            if not block.is_logged and (_is_known(one) or now - block.since >= _LOG_AFTER_S):
                self._log_blocked(block)
        for tp in [tp for tp in self._blocks if tp not in found]:
            if tp in owned:
                self.passed[tp] = None
            else:
                self._forget(tp)
        for tp in [tp for tp in self.undelivered if tp not in owned]:
            del self.undelivered[tp]

    def released(self, tp: TopicPartition, now: float, now_ms: int, *, is_read: bool) -> None:
        """Release a partition of ``passed``. ``is_read`` means that the partition has nothing to deliver."""
        block = self._blocks[tp]
        processed = [self._processed[on] for on in block.waited_for if on in self._processed]
        self._blocked.add(now - block.since)
        if not is_read:
            self.undelivered[tp] = Released(max([block.since, *processed]), block.last.max_leader_epoch, now_ms)
        waited_for = ",".join(f"{on.topic}-{on.partition}" for on in sorted(block.waited_for))
        _log.info("released: partition=%s-%d after_ms=%.1f waited_for=%s", *tp, (now - block.since) * 1000, waited_for)
        self._forget(tp)

    def delivered(self, tp: TopicPartition, leader_epoch: int, timestamp_ms: int, now: float) -> None:
        """Note the leader epoch and first timestamp of the first delivered batch of a partition in ``undelivered``.

        Records that could be delivered before the release, or were written after the release, were not blocked.
        """
        released = self.undelivered.pop(tp)
        if leader_epoch > released.max_leader_epoch and timestamp_ms <= released.released_ms:
            self._hand_overs.add(now - released.begun)

    def _forget(self, tp: TopicPartition) -> None:
        del self._blocks[tp]
        self.passed.pop(tp, None)
        if not self._blocks:
            self._processed.clear()

    def _log_blocked(self, block: _Block) -> None:
        block.is_logged = True
        one = block.last
        waits = [wait.sentence(one.partition.partition) for wait in one.waits_for[:_SHOWN_WAITS]]
        if len(one.waits_for) > _SHOWN_WAITS:
            waits.append(f"{len(one.waits_for) - _SHOWN_WAITS} more")
        _log.info(
            'blocked: partition=%s-%d max_leader_epoch=%d waits_for="%s"',
            *(*one.partition, one.max_leader_epoch, "; ".join(waits)),
        )

    # ------------------------------------------------------------ the awaited partitions

    def processed(self, tp: TopicPartition, now: float) -> None:
        """Note that the group's position in a partition became known, or moved."""
        if self._blocks:
            self._processed[tp] = now

    def flushed(self, began: float, now: float) -> None:
        """Note that the user's ``on_partition_key_maybe_revoked`` returned."""
        self._flushes.add(now - began)

    def loaded(self, began: float, now: float) -> None:
        """Note that the user's ``on_partition_key_assigned`` returned."""
        self._loads.add(now - began)

    def reported(self, number: int, flushed: float) -> None:
        """Note that reports up to ``number`` were sent. Their flush callback returned at ``flushed``."""
        self._unacknowledged.append((number, flushed))

    def acknowledged(self, number: int, now: float) -> None:
        """Note that the coordinator has stored the reports up to ``number``."""
        while self._unacknowledged and self._unacknowledged[0][0] <= number:
            self._reports.add(now - self._unacknowledged.pop(0)[1])

    def new_generation(self) -> None:
        """Forget the reports of the previous generation, because no response to them will arrive."""
        self._unacknowledged.clear()

    # ------------------------------------------------------------ for people

    def values(self) -> dict[str, float]:
        """All metrics by name."""
        blocked = self._blocked.named("blocked")
        return {
            "blocked-partitions": len(self._blocks),
            **(blocked | {"blocked-total": self._blocked_total}),
            **self._hand_overs.named("hand-over"),
            **self._reports.named("position-report"),
            **self._flushes.named("partition-key-maybe-revoked"),
            **self._loads.named("partition-key-assigned"),
        }


def _is_known(blocked: BlockedPartition) -> bool:
    """Whether all awaited ends are known. Then the partition waits only for other consumers."""
    return all(wait.until >= 0 for wait in blocked.waits_for)
