"""A loaded partition of the offsets topic: carries out what decisions ask for, in the order they were made."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from broker.coordinator.membership import on_deadlines, release_groups
from broker.coordinator.offsets_log import OffsetsLog
from broker.coordinator.outcome import Now, Outcome, Write
from broker.coordinator.records import encode
from broker.coordinator.shard import Shard, Turn
from broker.coordinator.timer import DeadlineTimer
from broker.deferred import Deferred
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import EncodeError
from runtime.env import Clock


def read_clock(clock: Clock, not_before_ms: int = 0) -> Now:
    """The time of a decision; a timer that fired for a deadline is never before it."""
    return Now(clock.now_ms(), max(int(clock.monotonic() * 1000), not_before_ms))


@dataclass(slots=True, eq=False)
class _InFlight:
    """A write and, once it is known, its fate."""

    write: Write
    error: ErrorCode | None = None


class LoadedPartition:
    """Applies outcomes to one shard: append, then replay what was committed, then answer.

    Fates are taken in the order of the writes, so the state goes through the same steps as the log.
    """

    __slots__ = ("_clock", "_in_flight", "_log", "_settling", "_timer", "is_closed", "partition", "shard")

    def __init__(self, partition: int, shard: Shard, log: OffsetsLog, timer: DeadlineTimer, clock: Clock) -> None:
        self.partition = partition
        self.shard = shard
        self.is_closed = False
        self._log = log
        self._timer = timer
        self._clock = clock
        self._in_flight: deque[_InFlight] = deque()
        self._settling = False

    def turn(self) -> Turn:
        """The frame for a decision now."""
        return Turn(self.shard, read_clock(self._clock))

    def carry_out(self, turn: Turn, group_id: str) -> None:
        """Do what a decision about ``group_id`` asked for."""
        self._perform(turn.out)
        self.schedule(group_id)

    def on_due(self, group_id: str, deadline_ms: int) -> None:
        """The timer of a group fired."""
        group = self.shard.groups.get(group_id)
        if group is None or self.is_closed:
            return
        turn = Turn(self.shard, read_clock(self._clock, not_before_ms=deadline_ms))
        on_deadlines(turn, group)
        self.carry_out(turn, group_id)

    def close(self, error: ErrorCode) -> None:
        """Answer everything that waits with ``error``; fates that become known later change nothing.

        It asks nothing of the log, which may not be ours any more (KAFKA-20115).
        """
        self.is_closed = True
        turn = self.turn()
        release_groups(turn, error)
        for group_id in self.shard.groups:
            self._timer.cancel(self._timer_key(group_id))
        self._reply(turn.out)
        waiting, self._in_flight = self._in_flight, deque()
        for entry in waiting:
            if entry.write.then is not None:
                self._reply(entry.write.then.resolve(self.shard, error, turn.now))

    # ------------------------------------------------------------ writes

    def _perform(self, out: Outcome) -> None:
        # Answers wake connections whose next requests may be decided at once: their writes come after these.
        for write in out.writes:
            entry = _InFlight(write)
            self._in_flight.append(entry)
            if write.records:
                self._append(entry)
            else:
                entry.error = ErrorCode.NONE
        self._reply(out)
        self._settle()

    def _append(self, entry: _InFlight) -> None:
        try:
            records = [encode(record) for record in entry.write.records]
            fate = self._log.append(self.partition, records)
        except EncodeError:
            # Flexible requests may carry names longer than the record formats can hold.
            entry.error = ErrorCode.MESSAGE_TOO_LARGE
            return
        except KafkaError as error:
            entry.error = error.code
            return

        def on_fate(error: KafkaError | None) -> None:
            entry.error = ErrorCode.NONE if error is None else error.code
            self._settle()

        fate.then(on_fate)

    def _settle(self) -> None:
        """Take the fates that are known, oldest first, up to the first that is not."""
        if self._settling:
            return
        self._settling = True
        try:
            while self._in_flight and (error := self._in_flight[0].error) is not None:
                write = self._in_flight.popleft().write
                if error is ErrorCode.NONE:
                    for record in write.records:
                        self.shard.durable.replay(record)
                if write.then is not None:
                    self._perform(write.then.resolve(self.shard, error, read_clock(self._clock)))
                self.schedule(write.group_id)
        finally:
            self._settling = False

    @staticmethod
    def _reply(out: Outcome) -> None:
        for token, response in out.replies:
            assert isinstance(token, Deferred)
            token.fill(response)

    # ------------------------------------------------------------ time

    def _timer_key(self, group_id: str) -> Hashable:
        return self.partition, group_id

    def schedule(self, group_id: str) -> None:
        """Let the timer look at the group when it asks to be looked at."""
        group = self.shard.groups.get(group_id)
        if group is not None and group.wake_ms is not None:
            self._timer.set(self._timer_key(group_id), group.wake_ms)
