"""An idempotent producer that raises its own epoch writes each record once, in order, whatever happens to the brokers.

``BumpingProducer`` does what librdkafka does: at most five requests in flight, repetitions first and in order, with the
same records, timestamps and boundaries. After a final error anywhere it waits for the requests in flight, raises its
epoch, and counts all batches without a known outcome from sequence 0 again. Answers are lost with their connection. The
network may hold back the requests of a connection. They arrive in order, also if the producer has given it up.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import pytest
import trio

from anabranch.broker.delayed_produce import AwaitedAppend
from anabranch.broker.log import producer_state, repeated_batches
from anabranch.broker.log.repeated_batches import MAX_IN_FLIGHT, ProducerConnection
from anabranch.broker.stock.order_with_idempotence import AwaitedBatches, SentBatch
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.produce import PartitionProduceResponse
from anabranch.protocol.records import RecordBatch
from tests.property.replication.test_random_workloads import REPLICAS, RandomWorkload
from tests.support.broker.replica_cluster import KEY
from tests.support.log.log_fixture import START_MS

PRODUCER_ID = 7
HELD_BACK_S = 100
"""A request arrives within this time."""


class Held(Enum):
    """The state of a request that the network holds back."""

    BACK = "held back"


@dataclass(eq=False)
class Batch:
    """Records of the producer. ``sequence`` is None until the batch is sent in the present epoch."""

    values: list[bytes]
    timestamp: int
    sequence: int | None = None
    in_flight: AwaitedAppend | ErrorCode | Held | None = None


class Connection:
    """A connection with one broker."""

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.awaited = AwaitedBatches()
        self.producer = ProducerConnection()
        self.is_held = False
        """Whether the network holds back all requests from now on."""
        self.held: list[bytes] = []
        self.unanswered: list[AwaitedAppend] = []
        """The requests without an answer when the producer gave up the connection."""
        self.lost_at = 0.0


class BumpingProducer:
    """A model of librdkafka's idempotent producer for one partition."""

    def __init__(self, workload: BumpWorkload) -> None:
        self._workload = workload
        self._cluster = workload.cluster
        self.epoch = 0
        self.queue: list[Batch] = []
        """The batches without a known outcome, in order."""
        self.connection = Connection(1)
        self.acknowledged: dict[int, bytes] = {}
        self.is_bumping = False
        self.next_sequence = 0
        self.lost: list[Connection] = []
        """The connections that the producer has given up, whose requests may still arrive."""

    @property
    def in_flight(self) -> list[Batch]:
        return [batch for batch in self.queue if batch.in_flight is not None]

    def send(self) -> None:
        """Send the first batch that is not in flight, unless an earlier one has to be repeated first."""
        self._bump_if_drained()
        flying = len(self.in_flight)
        if self.is_bumping or flying >= MAX_IN_FLIGHT or flying == len(self.queue):
            return
        batch = self.queue[flying]
        if batch.in_flight is not None or self.connection.broker in self._workload.down:
            return
        if batch.sequence is None:
            batch.sequence = self.next_sequence
            self.next_sequence += len(batch.values)
        batch.in_flight = self._append(batch, batch.sequence)

    def _append(self, batch: Batch, sequence: int) -> AwaitedAppend | ErrorCode | Held:
        records = [(b"k", value, (), batch.timestamp) for value in batch.values]
        numbers = {"producer_id": PRODUCER_ID, "producer_epoch": self.epoch, "base_sequence": sequence}
        request = build_batch(records, **numbers)
        if self.connection.is_held:
            self.connection.held.append(request)
            return Held.BACK
        return self._handle(self.connection, request)

    def deliver_held(self, which: int) -> None:
        """The next request of a connection that the producer has given up arrives at its broker."""
        now = self._cluster.clock.seconds
        self.lost = [lost for lost in self.lost if lost.held and now - lost.lost_at < HELD_BACK_S]
        if self.lost:
            connection = self.lost[which % len(self.lost)]
            connection.unanswered = [found for found in connection.unanswered if not found.settle()]
            found = self._handle(connection, connection.held.pop(0))
            if isinstance(found, AwaitedAppend):
                connection.unanswered.append(found)

    def broker_died(self, broker: int) -> None:
        """The connections with a broker end."""
        self.lost = [lost for lost in self.lost if lost.broker != broker]
        if self.connection.broker == broker:
            self.connection.held.clear()
            self.lose_connection()

    def _handle(self, connection: Connection, request: bytes) -> AwaitedAppend | ErrorCode:
        """Do what the broker's handler does."""
        partition = self._cluster[connection.broker].partition
        buffer = memoryview(bytearray(request))
        clock = self._cluster.clock
        connection.producer.requests += 1
        sent = SentBatch.of(connection.awaited, connection.producer, clock, KEY, RecordBatch(buffer))
        assert sent is not None

        again = ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            partition.check_leader()
            examined = partition.examine(buffer, all_in_sync=True, connection=connection.producer)
            if examined.known is None or examined.is_renumbered:
                producers = partition.log.producers
                connection.awaited.check(KEY, examined.batch, producers, clock.monotonic(), again)
            done = partition.write(examined)
        except KafkaError as error:
            sent.refused(error.code)
            return error.code
        sent.written()
        answer = PartitionProduceResponse(base_offset=done.base_offset)
        return AwaitedAppend(partition, done.last_offset + 1, answer, sent, all_in_sync=True)

    def take_answers(self, *, timed_out: bool = False) -> None:
        """Take the answers of the connection, which come in the order of the requests."""
        for batch in self.in_flight:
            found = batch.in_flight
            if isinstance(found, Held):
                if timed_out:
                    self.lose_connection()
                return
            if isinstance(found, AwaitedAppend):
                if not found.settle():
                    if not timed_out:
                        return
                    found.refuse(ErrorCode.REQUEST_TIMED_OUT)
                code = ErrorCode.of(found.answer.error_code)
            else:
                assert found is not None
                code = found
            batch.in_flight = None
            if code is ErrorCode.NONE:
                assert isinstance(found, AwaitedAppend)
                self.queue.remove(batch)
                for offset, value in enumerate(batch.values, found.answer.base_offset):
                    if found.answer.base_offset >= 0:
                        self.acknowledged[offset] = value
            elif code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch is not self.queue[0]:
                self.is_bumping = True
            else:
                assert code.retriable, f"{batch} is refused with {code.name}: librdkafka may end the producer"

    def lose_connection(self) -> None:
        """The answers on their way are lost. The next requests go to the leader, on another connection."""
        lost = self.connection
        for batch in self.in_flight:
            # The broker may answer all the same.
            if isinstance(batch.in_flight, AwaitedAppend) and not batch.in_flight.settle():
                lost.unanswered.append(batch.in_flight)
            batch.in_flight = None
        lost.lost_at = self._cluster.clock.seconds
        self.lost.append(lost)
        self.connection = Connection(self._workload.leader)

    def fail_elsewhere(self) -> None:
        """A batch of another partition is refused for good."""
        self.is_bumping = True

    def _bump_if_drained(self) -> None:
        if self.is_bumping and not self.in_flight:
            self.is_bumping = False
            self.epoch += 1
            self.next_sequence = 0
            for batch in self.queue:
                batch.sequence = None


class BumpWorkload(RandomWorkload):
    """The random workload of the replicas, with this producer."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.producer = BumpingProducer(self)
        self.values: list[bytes] = []

    def produce(self, which: int) -> None:
        values = [b"%d" % number for number in range(len(self.values), len(self.values) + 1 + which % 3)]
        self.values += values
        self.producer.queue.append(Batch(values, START_MS + len(self.values) // 8))

    def send(self, which: int) -> None:
        if self.producer.connection.broker in self.down or (
            not self.producer.in_flight and self.producer.connection.broker != self.leader
        ):
            self.producer.lose_connection()
        for _ in range(1 + which % 4):
            self.producer.send()

    def take_answers(self, which: int) -> None:
        self.producer.take_answers(timed_out=which == 0)

    def lose_connection(self, _: int) -> None:
        self.producer.lose_connection()

    async def kill(self, which: int) -> None:
        was_down = set(self.down)
        await super().kill(which)
        for broker in set(self.down) - was_down:
            self.producer.broker_died(broker)

    def hold_requests(self, _: int) -> None:
        self.producer.connection.is_held = True

    def deliver_held(self, which: int) -> None:
        self.producer.deliver_held(which)

    def bump(self, which: int) -> None:
        for _ in range(1 + which % 2):
            self.producer.fail_elsewhere()
            self.producer._bump_if_drained()

    def look(self) -> None:
        self.acknowledged = self.producer.acknowledged
        super().look()
        for broker in REPLICAS:
            found = [value for value in self.cluster[broker].values() if value is not None]
            twice = [value for value, copies in Counter(found).items() if copies > 1]
            assert not twice, f"broker {broker} has {twice} more than once"
            assert found == sorted(found, key=int), f"broker {broker} has records out of order"

    def heal(self) -> None:
        super().heal()
        self.producer.lose_connection()
        followers = [broker for broker in REPLICAS if broker != self.leader]
        for _ in range(200):
            if not self.producer.queue:
                break
            self.alter_partition(REPLICAS.index(self.leader))
            self.send(3)
            self.cluster.catch_up(self.leader, *followers)
            self.take_answers(1)
            self.look()
        assert not self.producer.queue, "the producer does not finish"
        assert self.cluster[self.leader].values() == self.values


ACTIONS = (
    *("produce", "send", "fetch", "send", "fetch", "take_answers", "fetch") * 3,
    *(
        "lose_connection",
        "bump",
        "bump",
        "hold_requests",
        *("deliver_held",) * 3,
        "elect",
        "deliver",
        "alter_partition",
        "shrink",
        "kill",
        "come_back",
    ),
    *("deliver", "alter_partition", "deliver", "alter_partition"),
)
SEEDS = int(os.environ.get("ANABRANCH_BUMP_SEEDS", "60"))
STEPS = 300


async def run_workload(seed: int, script: list[tuple[str, int]]) -> BumpWorkload:
    workload = BumpWorkload(seed)
    for action, which in script:
        step = getattr(workload, action)
        if action == "kill":
            await step(which)
        else:
            step(which)
        workload.look()
    workload.heal()
    return workload


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_record_is_written_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    script = [(rng.choice(ACTIONS), rng.randrange(9)) for _ in range(STEPS)]
    trio.run(run_workload, seed, script)


def led_again(answered: int) -> None:
    """A request of broker 1 arrives when broker 1 leads again. Meanwhile broker 2 took its batch and two later ones.

    ``answered``: the number of the batches of which the producer gets the answer of broker 2.
    """
    workload = BumpWorkload(1)
    producer = workload.producer
    for _ in range(3):
        workload.produce(0)
    workload.send(2)
    workload.cluster.catch_up(1, 2, 3)
    producer.lose_connection()
    workload.bump(0)
    workload.hold_requests(0)
    workload.send(0)
    elect(workload, 2)
    producer.lose_connection()
    for number in range(3):
        workload.send(0)
        if number < answered:
            workload.take_answers(1)
    elect(workload, 1)
    producer.lose_connection()
    producer.deliver_held(0)
    workload.produce(0)
    for _ in range(2):
        workload.send(0)
        workload.take_answers(1)
    workload.look()
    workload.heal()


def elect(workload: BumpWorkload, leader: int) -> None:
    workload.elect(workload.isr.index(leader))
    for broker in REPLICAS:
        workload.deliver(REPLICAS.index(broker))
    workload.cluster.catch_up(leader, *(broker for broker in REPLICAS if broker != leader))


@pytest.mark.parametrize("answered", [2, 3])
def test_a_request_that_arrives_late_does_not_end_a_run_that_another_leader_took(answered: int) -> None:
    led_again(answered)


def nothing_follows_the_rest_of_a_run(patch: pytest.MonkeyPatch) -> None:
    follows = producer_state.follows_run
    patch.setattr(
        producer_state,
        "follows_run",
        lambda known, batch, led_from: batch.producer_epoch > known.epoch and follows(known, batch, led_from),
    )


def the_rest_of_a_run_is_repeated_from_its_beginning(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(repeated_batches, "after_known", lambda *_: ())


@pytest.mark.mutation
@pytest.mark.parametrize(
    ("switch_off", "answered"),
    [(nothing_follows_the_rest_of_a_run, 3), (the_rest_of_a_run_is_repeated_from_its_beginning, 2)],
)
def test_a_rule_switched_off_is_noticed(
    switch_off: Callable[[pytest.MonkeyPatch], None], answered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_off(monkeypatch)
    with pytest.raises(AssertionError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        led_again(answered)
