"""How long keys wait when they move between partitions, as one consumer sees it: numbers, log lines. No IO, no clock.

A partition is **blocked** from the round in which the gate names it until nothing holds it back and the load callback
has returned: then it is **released**. A **hand-over** begins when the last partition that was waited for was processed,
that is, when its flush callback returned if this consumer reads it, and when the coordinator's answer arrived if
another member does; or when the partition was blocked, if that was later. It ends when the first record held back is
handed to the user. A partition in which nothing was held back when it was released makes none; where it had not been
fetched yet, the first record's timestamp says whether it was there.

Of a hand-over between two members each knows a half: the one that gives measures a **report**, from the flush
callback's return until the coordinator has the position, the commit included; the one that takes measures the hand-over
from the coordinator's answer on.

Times are seconds of one monotonic clock, ``released_ms`` is wall-clock time in milliseconds.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable
from typing import NamedTuple

from anabranch.client.client_metrics import Durations
from anabranch.client.ordered_delivery.explain import BlockedPartition
from anabranch.protocol.types import TopicPartition

_log = logging.getLogger(__name__)

_SAY_AFTER_S = 1.0
"""A partition blocked for so long is spoken of even if nobody knows yet whom it waits for."""
_SHOWN_WAITS = 5


class _Block:
    """A partition since the gate first named it."""

    __slots__ = ("last", "said", "since", "waited_for")

    def __init__(self, since: float) -> None:
        self.since = since
        self.last: BlockedPartition
        self.waited_for: dict[TopicPartition, None] = {}
        self.said = False


class Released(NamedTuple):
    """What must be known of a partition until its next record is delivered."""

    begun: float
    max_leader_epoch: int
    """What was delivered while it was blocked: only newer batches were held back."""
    released_ms: int


class HandOvers:
    """See the module."""

    def __init__(self) -> None:
        self._blocks: dict[TopicPartition, _Block] = {}
        self._processed: dict[TopicPartition, float] = {}
        self._unacknowledged: list[tuple[int, float]] = []
        """Number of a report, and when the flush callback before it returned; ascending."""
        self.passed: dict[TopicPartition, None] = {}
        """Blocked partitions that the gate names no more: released once the user was told."""
        self.undelivered: dict[TopicPartition, Released] = {}
        self._blocked_total = 0
        self._blocked = Durations()
        self._hand_overs = Durations()
        self._reports = Durations()
        self._flushes = Durations()
        self._loads = Durations()

    # ------------------------------------------------------------ the partitions that wait

    def evaluated(self, blocked: Iterable[BlockedPartition], held: Container[TopicPartition], now: float) -> None:
        """The gate decided: it holds back exactly ``blocked`` of the partitions ``held``."""
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
            if not block.said and (_is_known(one) or now - block.since >= _SAY_AFTER_S):
                self._say_blocked(block)
        for tp in [tp for tp in self._blocks if tp not in found]:
            if tp in held:
                self.passed[tp] = None
            else:
                self._forget(tp)
        for tp in [tp for tp in self.undelivered if tp not in held]:
            del self.undelivered[tp]

    def released(self, tp: TopicPartition, now: float, now_ms: int, *, is_read: bool) -> None:
        """One of ``passed`` may be delivered; ``is_read``: there is nothing in it to deliver."""
        block = self._blocks[tp]
        processed = [self._processed[on] for on in block.waited_for if on in self._processed]
        self._blocked.add(now - block.since)
        if not is_read:
            self.undelivered[tp] = Released(max([block.since, *processed]), block.last.max_leader_epoch, now_ms)
        waited_for = ",".join(f"{on.topic}-{on.partition}" for on in sorted(block.waited_for))
        _log.info("released: partition=%s-%d after_ms=%.1f waited_for=%s", *tp, (now - block.since) * 1000, waited_for)
        self._forget(tp)

    def delivered(self, tp: TopicPartition, leader_epoch: int, timestamp_ms: int, now: float) -> None:
        """The first records of one of ``undelivered``: written by that leader epoch, the first at that time.

        Records that were there for the taking before the release, or written after it, waited for nobody.
        """
        released = self.undelivered.pop(tp)
        if leader_epoch > released.max_leader_epoch and timestamp_ms <= released.released_ms:
            self._hand_overs.add(now - released.begun)

    def _forget(self, tp: TopicPartition) -> None:
        del self._blocks[tp]
        self.passed.pop(tp, None)
        if not self._blocks:
            self._processed.clear()

    def _say_blocked(self, block: _Block) -> None:
        block.said = True
        one = block.last
        waits = [wait.sentence(one.partition.partition) for wait in one.waits_for[:_SHOWN_WAITS]]
        if len(one.waits_for) > _SHOWN_WAITS:
            waits.append(f"{len(one.waits_for) - _SHOWN_WAITS} more")
        _log.info(
            'blocked: partition=%s-%d max_leader_epoch=%d waits_for="%s"',
            *(*one.partition, one.max_leader_epoch, "; ".join(waits)),
        )

    # ------------------------------------------------------------ the partitions waited for

    def processed(self, tp: TopicPartition, now: float) -> None:
        """The group's position in a partition became known, or moved."""
        if self._blocks:
            self._processed[tp] = now

    def flushed(self, began: float, now: float) -> None:
        """The user's ``on_partition_key_maybe_revoked`` returned."""
        self._flushes.add(now - began)

    def loaded(self, began: float, now: float) -> None:
        """The user's ``on_partition_key_assigned`` returned."""
        self._loads.add(now - began)

    def reported(self, number: int, flushed: float) -> None:
        """Positions up to report ``number`` are on their way; the flush callback had returned at ``flushed``."""
        self._unacknowledged.append((number, flushed))

    def acknowledged(self, number: int, now: float) -> None:
        """The coordinator has taken the reports up to ``number``."""
        while self._unacknowledged and self._unacknowledged[0][0] <= number:
            self._reports.add(now - self._unacknowledged.pop(0)[1])

    def new_generation(self) -> None:
        """Nobody answers reports of the one before."""
        self._unacknowledged.clear()

    # ------------------------------------------------------------ for people

    def values(self) -> dict[str, float]:
        """All numbers by name."""
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
    """Whether only other consumers are waited for: what was to be found out has been."""
    return all(wait.until >= 0 for wait in blocked.waits_for)
