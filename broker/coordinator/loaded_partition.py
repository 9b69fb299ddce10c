"""A loaded partition of the offsets topic carries out the effects of decisions, in the order of the decisions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from anabranch.broker.coordinator.broker_services import OffsetsLog
from anabranch.broker.coordinator.consumer_offsets_records import encode
from anabranch.broker.coordinator.membership import on_deadlines, release_groups
from anabranch.broker.coordinator.outcome import CoordinatorOutcome, GroupWrite, Now, Then, Turn, is_committed
from anabranch.broker.coordinator.shard import Shard
from anabranch.broker.coordinator.timer import DeadlineTimer
from anabranch.broker.deferred import Deferred
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.primitives import EncodeError
from anabranch.runtime.env import Clock
from anabranch.zk_schemas.features import CONSUMER_OFFSETS_TOPIC_SCHEMA, highest_level


def read_clock(clock: Clock, not_before_ms: int = 0) -> Now:
    """The time for a decision now. After a timer, it is not before the timer's deadline ``not_before_ms``."""
    return Now(clock.now_ms(), max(int(clock.monotonic() * 1000), not_before_ms))


@dataclass(slots=True, eq=False)
class _InFlight:
    """A write, its result (committed or lost), and the action that runs once the result is known."""

    write: GroupWrite
    then: Then | None
    overdue_ms: int | None = None
    """The time when the request is answered even without a result.
    None if the result is known at once, and after such an answer."""
    error: ErrorCode | None = None


@dataclass(slots=True, eq=False)
class _Read:
    """A request that is answered from memory once it is certain that this broker led after the request arrived."""

    then: Callable[[ErrorCode], None]
    overdue_ms: int


def _answer_reads(reads: list[_Read], error: KafkaError | None) -> None:
    for read in reads:
        read.then(ErrorCode.NONE if error is None else ErrorCode.NOT_COORDINATOR)


@dataclass(frozen=True, slots=True)
class _Written:
    """An entry in the queue of writes. It fills ``done`` when all earlier writes have a result."""

    done: Deferred[None]

    def resolve(self, shard: Shard, error: ErrorCode, now: Now) -> CoordinatorOutcome:
        self.done.fill(None)
        return CoordinatorOutcome()

    def overdue(self, shard: Shard, now: Now) -> tuple[CoordinatorOutcome, Then | None]:
        """The entry stays in the queue, because a time-out decides nothing about the writes before the entry."""
        return CoordinatorOutcome(), self


class LoadedPartition:
    """Applies outcomes to one shard: append, then replay the committed records, then answer.

    Results are processed in the order of the writes, so the state goes through the same steps as the log. A write that
    takes too long is answered with REQUEST_TIMED_OUT and stays in the queue, because it is in the log and may still be
    committed.

    ``leader_epoch`` is the epoch for which the shard is known to be correct. Records are appended to the partition only
    in that epoch.
    """

    __slots__ = (
        "_clock",
        "_confirming",
        "_in_flight",
        "_log",
        "_settling",
        "_timer",
        "_unconfirmed",
        "_waiting",
        "confirmed_ms",
        "is_closed",
        "leader_epoch",
        "partition",
        "schema_level",
        "shard",
    )

    def __init__(
        self, partition: int, leader_epoch: int, shard: Shard, log: OffsetsLog, timer: DeadlineTimer, clock: Clock
    ) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.shard = shard
        self.is_closed = False
        self.confirmed_ms: int | None = None
        """The latest time (monotonic ms) at which this broker certainly led the partition; None if not known."""
        self.schema_level: Callable[[], int] = lambda: highest_level(CONSUMER_OFFSETS_TOPIC_SCHEMA)
        """The finalized level of the records' schema, looked up at each write."""
        self._log = log
        self._timer = timer
        self._clock = clock
        self._in_flight: deque[_InFlight] = deque()
        self._settling = False
        self._confirming: list[_Read] | None = None
        """The reads that wait for the confirmation in progress; None if no confirmation is in progress."""
        self._unconfirmed: list[_Read] = []
        """Reads that arrived after the confirmation in progress had begun."""
        self._waiting: list[tuple[int, Callable[[ErrorCode], None]]] = []

    def committers_of(self, topics: Iterable[str]) -> list[str]:
        """Groups that have a committed offset in one of the topics, or may have such a commit in flight."""
        durable = self.shard.durable
        stored = [group_id for topic in topics for group_id in durable.committers.get(topic, ())]
        return list(dict.fromkeys([*stored, *(entry.write.group_id for entry in self._in_flight)]))

    def turn(self) -> Turn:
        """A new turn: the shard and the present time for one decision."""
        return Turn(self.shard, read_clock(self._clock))

    def carry_out(self, turn: Turn, group_id: str) -> None:
        """Carry out the effects of a decision about ``group_id``."""
        self._perform(turn.out)
        self.schedule(group_id)

    def carry_out_of(self, turn: Turn, group_ids: Iterable[str]) -> None:
        """Carry out the effects of a decision about several groups."""
        self._perform(turn.out)
        for group_id in group_ids:
            self.schedule(group_id)

    def on_due(self, group_id: str | None, deadline_ms: int) -> None:
        """Handle a timer that fired: a group's timer or, if ``group_id`` is None, the timer of writes and reads."""
        if self.is_closed:
            return
        now = read_clock(self._clock, not_before_ms=deadline_ms)
        if group_id is None:
            self._answer_overdue(now)
            self._answer_overdue_reads(now)
            self._end_waits(now)
            return
        group = self.shard.groups.get(group_id)
        if group is None:
            return
        turn = Turn(self.shard, now)
        on_deadlines(turn, group)
        self.carry_out(turn, group_id)

    def close(self, error: ErrorCode) -> None:
        """Answer everything that waits with ``error``. Results of writes that become known later change nothing.

        Nothing is written to the log, because this broker may not lead the partition any more (KAFKA-20115).
        """
        self.is_closed = True
        turn = self.turn()
        release_groups(turn, error)
        for group_id in [None, *self.shard.groups]:
            self._timer.cancel(self._timer_key(group_id))
        self._reply(turn.out)
        waiting, self._in_flight = self._in_flight, deque()
        for entry in waiting:
            if entry.then is not None:
                self._reply(entry.then.resolve(self.shard, error, turn.now))
        reads = [*(self._confirming or ()), *self._unconfirmed]
        self._confirming, self._unconfirmed = None, []
        for read in reads:
            read.then(error)
        waits, self._waiting = self._waiting, []
        for _, then in waits:
            then(error)

    # ------------------------------------------------------------ reads

    def confirm(self, then: Callable[[ErrorCode], None]) -> None:
        """Call ``then`` once it is certain that this broker still led after this call: then its memory was up to date.

        If this broker does not lead any more, the error is NOT_COORDINATOR. Reads that arrive during a confirmation
        share the next confirmation.
        """
        overdue_ms = read_clock(self._clock).monotonic_ms + self.shard.config.offsets_commit_timeout_ms
        self._unconfirmed.append(_Read(then, overdue_ms))
        if self._confirming is None:
            self._ask_for_confirmation()
        if self._confirming is not None:
            self._timer.set(self._timer_key(None), overdue_ms)

    def wait_until(self, due_ms: int, then: Callable[[ErrorCode], None]) -> None:
        """Call ``then`` at that time (monotonic ms), or with an error if the partition is closed before."""
        self._waiting.append((due_ms, then))
        self._timer.set(self._timer_key(None), due_ms)

    def _end_waits(self, now: Now) -> None:
        waits, self._waiting = self._waiting, []
        for due_ms, then in waits:
            if due_ms <= now.monotonic_ms:
                then(ErrorCode.NONE)
            else:
                self.wait_until(due_ms, then)

    def _ask_for_confirmation(self) -> None:
        while self._unconfirmed:
            reads, self._unconfirmed = self._unconfirmed, []
            fate = self._log.confirm_leadership(self.partition, self.leader_epoch)
            if not fate.filled:
                self._confirming = reads
                fate.then(lambda error, reads=reads: self._confirmed(reads, error))  # type: ignore[misc]
                return
            fate.then(lambda error, reads=reads: _answer_reads(reads, error))  # type: ignore[misc]

    def _confirmed(self, reads: list[_Read], error: KafkaError | None) -> None:
        if self._confirming is not reads:
            return  # answered when the partition was closed
        self._confirming = None
        _answer_reads(reads, error)
        if self._confirming is None:
            self._ask_for_confirmation()

    def _answer_overdue_reads(self, now: Now) -> None:
        """Answer overdue reads with NOT_COORDINATOR: clients then look for a successor, which may exist."""
        waiting = [reads for reads in (self._confirming, self._unconfirmed) if reads]
        overdue = [read for reads in waiting for read in reads if read.overdue_ms <= now.monotonic_ms]
        for reads in waiting:
            reads[:] = [read for read in reads if read.overdue_ms > now.monotonic_ms]
            if reads:
                self._timer.set(self._timer_key(None), reads[0].overdue_ms)
        for read in overdue:
            read.then(ErrorCode.NOT_COORDINATOR)

    # ------------------------------------------------------------ writes

    def _perform(self, out: CoordinatorOutcome) -> None:
        # Append before replying: a reply wakes a connection, whose next request may write at once.
        for write in out.writes:
            entry = _InFlight(write, write.then)
            self._in_flight.append(entry)
            if write.records:
                self.append_entry(entry)
            else:
                entry.error = ErrorCode.NONE
        self._reply(out)
        self._settle()

    def written(self) -> Deferred[None]:
        """Filled when every write so far has a result (committed or lost), or when the partition is closed."""
        done: Deferred[None] = Deferred()
        self._perform(CoordinatorOutcome(writes=[GroupWrite("", [], _Written(done))]))
        return done

    def append_entry(self, entry: _InFlight) -> None:
        try:
            level = self.schema_level()
            records = [encode(record, level) for record in entry.write.records]
            fate = self._log.append(self.partition, self.leader_epoch, records)
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

        if not fate.filled:
            entry.overdue_ms = read_clock(self._clock).monotonic_ms + self.shard.config.offsets_commit_timeout_ms
            self._timer.set(self._timer_key(None), entry.overdue_ms)
        fate.then(on_fate)

    def _settle(self) -> None:
        """Process the results of writes, oldest write first, up to the first write without a result."""
        if self._settling:
            return
        self._settling = True
        try:
            while self._in_flight and (error := self._in_flight[0].error) is not None:
                entry = self._in_flight.popleft()
                if is_committed(error):
                    for record in entry.write.records:
                        self.shard.durable.replay(record)
                if entry.then is not None:
                    self._perform(entry.then.resolve(self.shard, error, read_clock(self._clock)))
                self.schedule(entry.write.group_id)
        finally:
            self._settling = False

    def _answer_overdue(self, now: Now) -> None:
        """Answer the writes that have waited for longer than ``offsets.commit.timeout.ms``, oldest first."""
        for entry in list(self._in_flight):
            if entry.overdue_ms is None:
                continue
            if entry.overdue_ms > now.monotonic_ms:
                self._timer.set(self._timer_key(None), entry.overdue_ms)
                return
            entry.overdue_ms = None
            if entry.then is not None:
                out, entry.then = entry.then.overdue(self.shard, now)
                self._perform(out)
                self.schedule(entry.write.group_id)

    @staticmethod
    def _reply(out: CoordinatorOutcome) -> None:
        for token, response in out.replies:
            assert isinstance(token, Deferred)
            token.fill(response)

    # ------------------------------------------------------------ time

    def _timer_key(self, group_id: str | None) -> Hashable:
        return self.partition, group_id

    def schedule(self, group_id: str) -> None:
        """Set the timer of the group to its ``wake_ms``."""
        group = self.shard.groups.get(group_id)
        if group is not None and group.wake_ms is not None:
            self._timer.set(self._timer_key(group_id), group.wake_ms)
