"""A simple model of three brokers, each with a coordinator, over one replicated partition of the offsets topic.

A replica's log is a list, and a record is a client's commit of the next number. ``ReplicatedCoordinators``
is the controller, the network and the clients. It elects leaders. It decides when a broker fetches, and when a broker
is notified of an election. A broker's view may be old.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import trio
import trio.testing

from anabranch.broker.coordinator.broker_services import KeyValue
from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.consumer_offsets_records import decode, encode
from anabranch.broker.coordinator.durable import GroupRecord, OffsetRecord
from anabranch.broker.coordinator.service import GroupCoordinator
from anabranch.broker.deferred import Deferred
from anabranch.protocol.errors import ErrorCode, KafkaError
from tests.support.broker import group_requests
from tests.unit.coordinator.calls import commit, commit_error, fetched_offset, value
from tests.unit.coordinator.conftest import Running
from tests.unit.coordinator.driver import Context
from tests.unit.coordinator.fakes import EveryTopic, LoopClock, MemoryLog

BROKERS = (0, 1, 2)


class Entry(NamedTuple):
    """A record in a replica's log, and the leader epoch in which it was written."""

    epoch: int
    record: KeyValue


@dataclass(eq=False)
class Waiting:
    """An operation at a leader that waits for the high watermark."""

    end_offset: int
    fate: Deferred[KafkaError | None]


class Replica:
    """The ``OffsetsLog`` of one broker, which has a view of its own role. Only ``deliver`` completes operations."""

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.log: list[Entry] = []
        self.high_watermark = 0
        self.leads: int | None = None
        """The leader epoch in which the broker leads, by its own view."""
        self.epoch = 0
        self.isr: tuple[int, ...] = ()
        self.others: dict[int, int] = {}
        """Log ends of the other replicas, from their fetches in this leader epoch."""
        self.waiting: list[Waiting] = []
        self.turned: list[Waiting] = []
        """The waiting operations of an ended leadership."""
        self.may_read = trio.Event()
        self.may_read.set()

    # ------------------------------------------------------------ role

    def lead(self, epoch: int, isr: tuple[int, ...]) -> None:
        self.leads, self.epoch, self.isr, self.others = epoch, epoch, isr, {}
        self.advance()

    def follow(self, epoch: int) -> None:
        self.leads, self.epoch = None, epoch
        self.turned += self.waiting
        self.waiting = []

    def advance(self) -> None:
        others = [self.others.get(broker, 0) for broker in self.isr if broker != self.broker]
        self.high_watermark = max(self.high_watermark, min([len(self.log), *others]))

    def fetched_by(self, follower: Replica) -> None:
        """Let a follower fetch in the leader's epoch. It truncates divergent entries and appends missing entries."""
        same = 0
        while same < min(len(self.log), len(follower.log)) and self.log[same] == follower.log[same]:
            same += 1
        follower.log = [*self.log]
        follower.high_watermark = max(min(same, follower.high_watermark), min(self.high_watermark, len(self.log)))
        self.others[follower.broker] = len(follower.log)
        self.advance()

    def deliver(self) -> None:
        """Complete the waiting operations whose outcome is known."""
        turned, self.turned = self.turned, []
        for waiting in turned:
            # The end offset no longer belongs to the same record, so the watermark alone must not decide.
            waiting.fate.fill(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        done = [w for w in self.waiting if w.end_offset <= self.high_watermark]
        self.waiting = [w for w in self.waiting if w.end_offset > self.high_watermark]
        for waiting in done:
            waiting.fate.fill(None)

    def hold_reads(self) -> None:
        """Let loads wait for ``may_read``."""
        if self.may_read.is_set():
            self.may_read = trio.Event()

    # ------------------------------------------------------------ OffsetsLog

    def append(self, partition: int, leader_epoch: int, records: Sequence[KeyValue]) -> Deferred[KafkaError | None]:
        fate: Deferred[KafkaError | None] = Deferred()
        if self.leads is None or leader_epoch != self.leads:
            fate.fill(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return fate
        self.log += [Entry(leader_epoch, record) for record in records]
        self.advance()
        self.waiting.append(Waiting(len(self.log), fate))
        return fate

    def confirm_leadership(self, partition: int, leader_epoch: int) -> Deferred[KafkaError | None]:
        return self.append(partition, leader_epoch, [encode(GroupRecord("", None))])

    async def read_all(self, partition: int, leader_epoch: int) -> AsyncIterator[Iterable[KeyValue]]:
        assert self.leads == leader_epoch
        for at in range(len(self.log)):
            await self.may_read.wait()
            if at >= len(self.log):
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)  # the log was truncated meanwhile
            yield [self.log[at].record]

    async def wait_until_committed(self, partition: int, leader_epoch: int) -> None:
        known = trio.Event()
        waiting = Waiting(len(self.log), Deferred())
        waiting.fate.then(lambda _: known.set())
        self.waiting.append(waiting)
        await known.wait()


@dataclass
class Asked:
    """A client's commit and the broker that received it, answered or not."""

    offset: int
    broker: int
    answer: Deferred
    is_settled: bool = False


@dataclass
class Reading:
    """A client's request for the committed offset, and the largest offset that any client knew then."""

    broker: int
    returned: int
    answer: Deferred
    is_settled: bool = False


@dataclass
class ReplicatedCoordinators:
    """The brokers, the controller and the clients. ``leader`` and ``isr`` are the true state.

    Call ``answers`` after each event.
    """

    nursery: trio.Nursery
    epoch: int = 0
    leader: int = 0
    isr: tuple[int, ...] = BROKERS
    next_offset: int = 1
    returned: int = -1
    """The largest offset that a client knows as committed, from the response to a commit or a fetch."""
    asked: list[Asked] = field(default_factory=list)
    reading: list[Reading] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    brokers: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        for broker in BROKERS:
            self.replicas.append(Replica(broker))
            self.brokers.append(self._start(broker))

    def _start(self, broker: int) -> Running:
        topics = EveryTopic()
        log = self.replicas[broker]
        coordinator = GroupCoordinator(GroupConfig(), LoopClock(), random.Random(broker), log, topics)
        self.nursery.start_soon(coordinator.run)
        return Running(coordinator, MemoryLog(), topics)

    # ------------------------------------------------------------ events

    def elect(self, broker: int, *, others_out: bool) -> None:
        """Elect a member of the ISR as leader. With ``others_out`` the previous leader leaves the ISR."""
        if broker not in self.isr:
            return
        if others_out and len(self.isr) > 1 and broker != self.leader:
            self.isr = tuple(b for b in self.isr if b != self.leader)
        self.leader = broker
        self.epoch += 1

    def notify(self, broker: int) -> None:
        """Notify a broker of the present leader."""
        replica, coordinator = self.replicas[broker], self.brokers[broker].coordinator
        if replica.epoch == self.epoch and (replica.leads is not None) == (self.leader == broker):
            return
        if self.leader == broker:
            if replica.leads is not None and replica.leads + 1 != self.epoch:
                replica.follow(self.epoch)
            replica.lead(self.epoch, self.isr)
            coordinator.on_leader(0, self.epoch)
        else:
            replica.follow(self.epoch)
            coordinator.on_not_leader(0, self.epoch)

    def fetch_from_leader(self, broker: int) -> None:
        """Let a follower fetch, if the follower and the leader agree on who leads."""
        follower, leader = self.replicas[broker], self.replicas[self.leader]
        if broker != self.leader and follower.leads is None and follower.epoch == leader.leads == self.epoch:
            leader.fetched_by(follower)

    def shrink(self, broker: int) -> None:
        """Let the leader remove a lagging replica from the ISR; a deposed leader is refused."""
        leader = self.replicas[self.leader]
        if leader.leads == self.epoch and broker != self.leader and broker in self.isr:
            self.isr = leader.isr = tuple(b for b in self.isr if b != broker)
            leader.advance()

    def grow(self, broker: int) -> None:
        """Return a replica that has all records to the ISR."""
        leader = self.replicas[self.leader]
        has_all = leader.others.get(broker, -1) == len(leader.log)
        if leader.leads == self.epoch and broker not in self.isr and has_all:
            self.isr = leader.isr = (*self.isr, broker)

    def restart(self, broker: int) -> None:
        """Restart a broker: its log stays, its role and its watermark are lost."""
        self.brokers[broker].coordinator.close()
        self.answers()
        before = self.replicas[broker]
        self.replicas[broker] = replica = Replica(broker)
        replica.log, replica.epoch = before.log, -1
        self.brokers[broker] = self._start(broker)

    def commit(self, broker: int) -> None:
        """Send a commit of the next offset to the broker that the client regards as the coordinator."""
        self.asked.append(Asked(self.next_offset, broker, commit(self.brokers[broker], self.next_offset)))
        self.next_offset += 1

    def notify_all(self) -> None:
        for broker in BROKERS:
            self.notify(broker)

    def replicate_to_all(self) -> None:
        for broker in BROKERS:
            self.fetch_from_leader(broker)

    def commit_and_replicate(self) -> None:
        """Commit and replicate without faults."""
        self.commit(self.leader)
        self.replicate_to_all()
        self.replicas[self.leader].deliver()

    # ------------------------------------------------------------ invariants

    def answers(self) -> None:
        """Check the answers since the last call.

        A commit is acknowledged only when every replica that may lead next has the commit's record. A returned offset
        cannot be lost, and is at least the largest offset that any client knew when the request was sent.
        """
        for asked in self.asked:
            if not asked.is_settled and asked.answer.filled:
                asked.is_settled = True
                if commit_error(asked.answer) == ErrorCode.NONE:
                    self._is_safe(asked.offset)
        for reading in self.reading:
            if not reading.is_settled and reading.answer.filled:
                reading.is_settled = True
                offset, error = fetched_offset(value(reading.answer))
                if error == ErrorCode.NONE:
                    assert offset >= reading.returned, (
                        f"{reading.broker} returned {offset} after {reading.returned} was returned"
                    )
                    self._is_safe(offset)

    def _is_safe(self, offset: int) -> None:
        for member in self.isr:
            assert offset == -1 or offset in self.offsets_in(member), (
                f"{offset} was returned, but {member} may lead without it"
            )
        self.returned = max(self.returned, offset)

    def fetch(self, broker: int) -> None:
        """Send a request for the committed offset to the broker that the client regards as the coordinator."""
        request = group_requests.fetch_offsets()
        answer = self.brokers[broker].coordinator.offset_fetch(Context(api_version=7), request)
        self.reading.append(Reading(broker, self.returned, answer))
        self.answers()

    def offsets_in(self, broker: int) -> list[int]:
        found = []
        for entry in self.replicas[broker].log:
            decoded = decode(*entry.record)
            if isinstance(decoded, OffsetRecord) and decoded.value is not None:
                found.append(decoded.value.offset)
        return found

    async def heal(self) -> None:
        """End all faults, and check that the coordinator has the state of its log and continues."""
        for _ in range(3):
            for replica in self.replicas:
                replica.may_read.set()
                self.notify(replica.broker)
                self.fetch_from_leader(replica.broker)
            for replica in self.replicas:
                replica.deliver()
            await trio.testing.wait_all_tasks_blocked()
        self.answers()
        self.commit_and_replicate()
        assert commit_error(self.asked[-1].answer) == ErrorCode.NONE
        self.fetch(self.leader)
        self.replicate_to_all()
        self.replicas[self.leader].deliver()
        last = self.asked[-1].offset
        assert fetched_offset(value(self.reading[-1].answer)) == (last, ErrorCode.NONE)
        assert self.offsets_in(self.leader)[-1] == last
        self.answers()
        assert all(waiting.is_settled for waiting in [*self.asked, *self.reading])
