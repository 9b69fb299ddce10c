"""An idempotent producer that raises its own epoch writes each record once, in order, whatever happens to the brokers.

``BumpingProducer`` does what librdkafka does: at most five requests in flight, repetitions first and in order, with the
same records, timestamps and boundaries. After a final error anywhere it waits for the requests in flight, raises its
epoch, and counts all batches without a known outcome from sequence 0 again. Answers are lost with their connection, and
a request that was lost with it may arrive later.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass

import pytest
import trio

from anabranch.broker.delayed_produce import AwaitedAppend
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


@dataclass(eq=False)
class Batch:
    """Records of the producer. ``sequence`` is None until the batch is sent in the present epoch."""

    values: list[bytes]
    timestamp: int
    sequence: int | None = None
    in_flight: AwaitedAppend | ErrorCode | None = None


class Connection:
    """A connection with one broker."""

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.awaited = AwaitedBatches()
        self.producer = ProducerConnection()


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
        self.copies: list[tuple[Connection, bytes]] = []
        """Requests that arrived, and may arrive once more."""

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

    def _append(self, batch: Batch, sequence: int) -> AwaitedAppend | ErrorCode:
        records = [(b"k", value, (), batch.timestamp) for value in batch.values]
        numbers = {"producer_id": PRODUCER_ID, "producer_epoch": self.epoch, "base_sequence": sequence}
        request = build_batch(records, **numbers)
        self.copies.append((self.connection, request))
        return self._handle(self.connection, request)

    def deliver_copy(self, which: int) -> None:
        """A request whose connection is lost arrives at its broker.

        Not if the broker's log has forgotten the producer: it then takes any sequence, as Apache Kafka does.
        """
        late = [copy for copy in self.copies[-30:] if copy[0] is not self.connection]
        if late:
            connection, request = late[-1 - which % len(late)]
            log = self._cluster[connection.broker].log
            if connection.broker not in self._workload.down and PRODUCER_ID in log.producers.producers:
                self._handle(Connection(connection.broker), request)

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
        for batch in self.in_flight:
            if isinstance(batch.in_flight, AwaitedAppend):
                batch.in_flight.settle()  # the broker may answer all the same
            batch.in_flight = None
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
        if self.producer.connection.broker in set(self.down) - was_down:
            self.producer.lose_connection()

    def deliver_copy(self, which: int) -> None:
        self.producer.deliver_copy(which)

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
        "deliver_copy",
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
