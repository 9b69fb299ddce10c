"""A simple model of brokers and a resize. It runs the producer's real sender without an event loop.

Each step is a method: change a broker's layout, deliver or lose a request, deliver or lose a response, read metadata of
any age. Copies of requests whose connection broke (``ghosts``) may arrive at any time later.
"""

from __future__ import annotations

import random
import uuid
from collections import deque
from collections.abc import Coroutine, Generator, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from anabranch.client.cluster import Cluster, Node, PartitionInfo, TopicInfo
from anabranch.client.config import ProducerConfig
from anabranch.client.errors import ErrorCode, error_for
from anabranch.client.producer.accumulator import Accumulator
from anabranch.client.producer.partitioner import Partitioner, StickyPartitioner
from anabranch.client.producer.producer_batch import ProducerBatch, RecordHandle
from anabranch.client.producer.sender import Sender
from anabranch.client.producer.unwritten_records_placed_again import Placing
from anabranch.ordered_resize.layout import Moves, moves
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.generated.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from anabranch.protocol.generated.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.records import RecordBatch

INITIAL = 2
NODES = 2
TOPIC_ID = uuid.UUID(int=1)
REMEMBERED = 5


@dataclass
class ModelPartition:
    """A partition at its leader, with its own layout and its state of producers."""

    index: int
    incarnation: int
    layout: tuple[int, int]
    max_bytes: int = 1 << 30
    """The largest batch that is written."""
    log: list[tuple[bytes, int, int]] = field(default_factory=list)
    """(key, number, the partition's layout version at the append) of each record."""
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Epoch and next sequence by producer id."""
    remembered: dict[int, deque[tuple[int, int, int]]] = field(default_factory=dict)

    def produce(self, batch: RecordBatch, layout: tuple[int, int], *, check_layout_first: bool) -> ErrorCode:
        if batch.length > self.max_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE
        pid, epoch, sequence, count = batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.count
        refused = layout != self.layout or self.index >= self.layout[0]
        if refused and check_layout_first:
            return ErrorCode.INVALID_PARTITION_METADATA
        known = self.remembered.setdefault(pid, deque(maxlen=REMEMBERED))
        if (epoch, sequence, count) in known:
            return ErrorCode.NONE
        if refused:
            return ErrorCode.INVALID_PARTITION_METADATA
        if pid >= 0:
            last_epoch, expected = self.producers.get(pid, (epoch, sequence))  # an unknown producer may begin anywhere
            if epoch < last_epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            if sequence != (expected if epoch == last_epoch else 0):
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            self.producers[pid] = (epoch, sequence + count)
            known.append((epoch, sequence, count))
        self.log += [(r.key or b"", int(r.value or b""), self.layout[1]) for r in batch]
        return ErrorCode.NONE


class _Answer:
    """The awaitable on which a sender's coroutine waits; the model resumes it with the response."""

    error = None

    def __init__(self, sent: Sent) -> None:
        self.sent = sent

    def __await__(self) -> Generator[Any, Any, Any]:
        given = yield self
        if isinstance(given, Exception):
            raise given
        return given

    async def wait(self, timeout_s: float) -> Any:
        return await self


@dataclass
class Sent:
    """A request on a connection, and the sender's task that waits for its response."""

    request: ProduceRequest
    task: Coroutine[Any, Any, Any] | None = None
    response: ProduceResponse | None = None


class ProducerModel:
    """One topic, its brokers and one producer."""

    def __init__(
        self,
        rng: random.Random,
        *,
        check_layout_first: bool = False,
        place_again: Partitioner | None = None,
        new_ids: bool = False,
        max_bytes: int = 1 << 30,
        **config: Any,
    ) -> None:
        """``place_again`` is a user's partitioner. After a resize it chooses the partitions of unsent records again.

        With ``new_ids`` each InitProducerId returns a new producer id, as Kafka does, instead of a higher epoch.
        """
        self.rng = rng
        self.check_layout_first = check_layout_first
        self.new_ids = new_ids
        self.max_bytes = max_bytes
        self.now_s = 0.0
        self.version = 0
        self.undeleted = INITIAL
        self.newest_incarnation = 100
        self.partitions: dict[int, ModelPartition] = {}
        self.leaving: int | None = None
        """The partition whose removal has begun; metadata names no leader for it."""
        self.removed: list[ModelPartition] = []
        self.late: int | None = None
        """A partition that is the last to get the new layout: no other partition can get it."""
        self.lists_what_is_to_come = rng.random() < 0.5
        for index in range(INITIAL):
            self._create(index)
        self.plan: Iterator[None] | None = None
        self.moves: Moves | None = None
        self.snapshots: list[TopicInfo] = []
        self.publish()
        self.connections: dict[int, deque[Sent]] = {node: deque() for node in range(NODES)}
        self.ghosts: list[ProduceRequest] = []
        self.requests: list[ProduceRequest] = []
        self.epoch = -1
        self.handles: list[tuple[bytes, int, RecordHandle]] = []
        self._started: list[Coroutine[Any, Any, Any]] = []
        self._make_producer(ProducerConfig.parse({"bootstrap_servers": "h:1", "batch_size": 150} | config), place_again)

    def _make_producer(self, config: ProducerConfig, place_again: Partitioner | None) -> None:
        self.accumulator = Accumulator(
            batch_size=config.batch_size,
            linger_ms=config.linger_ms,
            buffer_memory=config.buffer_memory,
            delivery_timeout_ms=config.delivery_timeout_ms,
            compression=CompressionType.NONE,
            max_in_flight=config.max_in_flight_requests_per_connection,
            idempotent=config.enable_idempotence,
        )
        self.choose = StickyPartitioner(self.rng).place
        clock = SimpleNamespace(monotonic=lambda: self.now_s, now_ms=lambda: int(self.now_s * 1000))
        self._listeners: list[Any] = []
        self.metadata = SimpleNamespace(
            cluster=self._cluster(self.snapshots[0]),
            node=lambda node_id: Node(node_id, "h", node_id),
            any_node=lambda: Node(0, "h", 0),
            want=lambda name: None,
            request_update=lambda: None,
            hurry_update=lambda: None,
            silence=None,
            on_update=self._listeners.append,
        )
        env: Any = SimpleNamespace(clock=clock, rng=self.rng)
        connections: Any = SimpleNamespace(existing=self._connection, request=self._request)
        tasks: Any = SimpleNamespace(start_soon=lambda function, *args: self._started.append(function(*args)))
        by_key = place_again is None
        placing = Placing(
            place_again or self.choose, by_key, config.batch_size, CompressionType.NONE, None, records_per_step=7
        )
        metadata: Any = self.metadata
        self.sender = Sender(env, config, self.accumulator, metadata, connections, tasks, placing)
        self.topic = self.accumulator.placement(self.snapshots[0])

    # ------------------------------------------------------------ the cluster

    def _create(self, index: int) -> None:
        self.newest_incarnation += 1
        self.partitions[index] = ModelPartition(
            index, self.newest_incarnation, (self.undeleted, self.version), self.max_bytes
        )

    def publish(self) -> None:
        """Add a snapshot of the topic, which some broker may return at any later time.

        The snapshot has the newest layout of any partition. A new layout appears only once a partition has it.
        """
        undeleted, version = max((part.layout for part in self.partitions.values()), key=lambda layout: layout[1])
        partitions = {
            p: PartitionInfo(p, -1 if p == self.leaving else p % NODES, 0, incarnation=part.incarnation)
            for p, part in self.partitions.items()
        }
        if self.lists_what_is_to_come:
            partitions = {p: PartitionInfo(p, -1, -1) for p in range(undeleted)} | partitions
        self.snapshots.append(
            TopicInfo(
                "t",
                TOPIC_ID,
                dict(sorted(partitions.items())),
                initial_partition_count=INITIAL,
                undeleted_partition_count=undeleted,
                layout_version=version,
                ordered_delivery=True,
                incarnation=1,
            )
        )

    def resize(self, undeleted: int) -> None:
        """Begin a resize; ``step_resize`` continues it.

        The call has no effect while another resize is unfinished, or if the count would reuse a partition that is being
        removed.
        """
        if self.plan is None and undeleted != self.undeleted and (self.leaving is None or undeleted <= self.leaving):
            self.moves = moves(INITIAL, self.undeleted, undeleted)
            self.undeleted, self.version = undeleted, self.version + 1
            self.plan = self._bump_all()

    def cancel(self) -> None:
        """Return to the previous count if no partition has gained a key yet."""
        if self.plan is None or self.moves is None or not self.moves.losers_of:
            return
        gained = [p for p in self.moves.losers_of if p in self.partitions and self._has_goal(p)]
        if not gained:
            gainers, losers = set(self.moves.losers_of), self.moves.losers
            self.undeleted = min(gainers) if min(gainers) > min(losers) else max(losers) + 1
            self.version += 1
            self.moves = moves(INITIAL, self.undeleted, self.undeleted)
            self.plan = self._bump_all()

    def step_resize(self) -> None:
        """Let one broker take a step, if a resize is unfinished."""
        if self.plan is not None and next(self.plan, self) is self:
            self.plan = self.moves = None

    def finish_resize(self, undeleted: int) -> None:
        """Run a whole resize."""
        self.resize(undeleted)
        while self.plan is not None:
            self.step_resize()

    def begin_resize(self, undeleted: int, late: int) -> None:
        """Resize until every existing partition except ``late`` has the new layout. Then metadata shows the layout."""
        self.late = late
        self.resize(undeleted)
        while not all(self._has_goal(p) for p in self.partitions if p != late):
            self.step_resize()
        self.publish()

    def remove(self, partition: int) -> None:
        """Remove the highest marked partition completely."""
        self.remove_drained()
        assert self.leaving == partition
        self.remove_drained()

    def _has_goal(self, p: int) -> bool:
        return self.partitions[p].layout == (self.undeleted, self.version)

    def _bump_all(self) -> Iterator[None]:
        """Give each partition the new layout.

        A gainer of keys gets the layout after the losers of those keys. Otherwise the order is random.
        """
        assert self.moves is not None
        left = {*range(self.undeleted), *self.moves.losers}
        losers_of = self.moves.losers_of
        while left:
            self._maybe_publish()
            may = [p for p in sorted(left) if not left.intersection(losers_of.get(p, ()))]
            p = self.rng.choice([p for p in may if p != self.late] or may)
            left.remove(p)
            if p in self.partitions:
                self.partitions[p].layout = (self.undeleted, self.version)
            else:
                self._create(p)
            yield
        self.publish()

    def _maybe_publish(self) -> None:
        if self.rng.random() < 0.3:
            self.publish()

    def remove_drained(self) -> None:
        """Take one of the two steps that remove the highest marked partition, once the shrink is finished."""
        if self.leaving is not None:
            self.removed.append(self.partitions.pop(self.leaving))
            self.leaving = None
            self.publish()
        elif self.plan is None and len(self.partitions) > self.undeleted:
            self.leaving = max(self.partitions)
            self.publish()

    # ------------------------------------------------------------ the producer

    def _cluster(self, info: TopicInfo) -> Cluster:
        return Cluster({n: Node(n, "h", n) for n in range(NODES)}, {"t": info})

    def read_metadata(self, snapshot: int = -1) -> None:
        """Let the producer read one of the snapshots, by default the newest.

        Only the producer itself can refuse the layout of an older snapshot.
        """
        self.metadata.cluster = self._cluster(self.snapshots[snapshot])
        for listener in self._listeners:
            listener()

    def send(self, key: bytes, *, partition: int | None = None, size: int = 0) -> RecordHandle:
        """Send a record. Its value is its number, with spaces in front of it up to ``size`` bytes."""
        number = len(self.handles)
        value = (b"%d" % number).rjust(size)
        chosen = self.choose(self.topic.info, key) if partition is None else partition
        pinned = partition is not None
        args = ("t", chosen, key, value, (), number)
        handle = self.accumulator.append(*args, pinned=pinned)
        if handle is None:
            handle = self.accumulator.append_to_new_batch(*args, self.now_s * 1000, pinned=pinned)
        self.handles.append((key, number, handle))
        return handle

    @staticmethod
    def batch_of(handle: RecordHandle) -> ProducerBatch:
        """The batch that has the record now."""
        return handle._locate()[0]

    def _connection(self, node: Node) -> Any:
        def post(request: ProduceRequest, answered: bool) -> _Answer:
            self.requests.append(request)
            sent = Sent(request)
            self.connections[node.id].append(sent)
            return _Answer(sent)

        return SimpleNamespace(post=post)

    async def _request(self, node: Node, request: InitProducerIdRequest) -> InitProducerIdResponse:
        self.epoch += 1
        if self.new_ids:
            return InitProducerIdResponse(producer_id=7 + self.epoch, producer_epoch=0)
        return InitProducerIdResponse(producer_id=7, producer_epoch=self.epoch)

    def pump(self) -> None:
        """Let the sender send every batch that it may send."""
        for _ in range(2):  # the first pass may request a producer id
            self.sender._send_ready(self.now_s * 1000)
            while self._started:
                task = self._started.pop(0)
                self._resume(task, None)

    def _resume(self, task: Coroutine[Any, Any, Any], response: Any) -> None:
        try:
            waits_for: _Answer = task.send(response)
        except StopIteration:
            return
        waits_for.sent.task = task

    # ------------------------------------------------------------ the network

    def arrive(self, node: int) -> None:
        """Let the next request of a connection reach the broker, which creates the response."""
        sent = next((s for s in self.connections[node] if s.response is None), None)
        if sent is not None:
            sent.response = self._produce(sent.request)

    def answer(self, node: int) -> None:
        """Let the next response of a connection reach the producer."""
        queue = self.connections[node]
        if queue and queue[0].response is not None:
            sent = queue.popleft()
            assert sent.task is not None
            self._resume(sent.task, sent.response)

    def cut(self, node: int, *, ghosts: bool | None = None) -> None:
        """Break a connection: no request on it is answered.

        A request that has not arrived may arrive later (``ghosts``) or never.
        """
        queue, self.connections[node] = self.connections[node], deque()
        for sent in queue:
            if sent.response is None and (self.rng.random() < 0.5 if ghosts is None else ghosts):
                self.ghosts.append(sent.request)
            assert sent.task is not None
            self._resume(sent.task, error_for(ErrorCode.NETWORK_EXCEPTION, "cut"))

    def haunt(self) -> None:
        """Let a request of a broken connection arrive."""
        if self.ghosts:
            self._produce(self.ghosts.pop(self.rng.randrange(len(self.ghosts))))

    def _produce(self, request: ProduceRequest) -> ProduceResponse:
        [topic] = request.topic_data
        answer = TopicProduceResponse(name="t")
        for data in topic.partition_data:
            part = self.partitions.get(data.index)
            if part is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                layout = (topic.undeleted_partition_count, topic.layout_version)
                assert data.records is not None
                batch = RecordBatch(bytes(data.records))
                code = part.produce(batch, layout, check_layout_first=self.check_layout_first)
            answer.partition_responses.append(
                PartitionProduceResponse(index=data.index, error_code=code, base_offset=0)
            )
        return ProduceResponse(responses=[answer])

    def settle(self) -> None:
        """Stop all faults, and let requests and responses arrive until every record is acknowledged or failed."""
        while self.plan is not None:
            self.step_resize()
        if self.leaving is not None:
            self.remove_drained()  # a removal that has begun is finished
        for _ in range(400):
            if all(handle.done() for _, _, handle in self.handles):
                return
            self.now_s += 0.2
            self.read_metadata()
            self.pump()
            for node in range(NODES):
                for _ in range(len(self.connections[node])):
                    self.arrive(node)
                    self.answer(node)
        raise AssertionError("some records are neither acknowledged nor failed")

    # ------------------------------------------------------------ invariants

    def check(self) -> None:
        """Check that no record is lost or duplicated and each key's records are in order, also across layouts."""
        written: dict[int, int] = {}
        of_key: dict[bytes, list[tuple[int, int]]] = {}
        for part in [*self.removed, *self.partitions.values()]:
            last: dict[bytes, int] = {}
            for key, number, version in part.log:
                written[number] = written.get(number, 0) + 1
                assert last.get(key, -1) < number, f"{key!r}: {number} follows {last[key]} in partition {part.index}"
                last[key] = number
                of_key.setdefault(key, []).append((version, number))
        for key, number, handle in self.handles:
            batch = self.batch_of(handle)
            assert batch.resolved, f"{key!r} {number} has no outcome"
            copies = written.get(number, 0)
            assert copies <= 1, f"{key!r}: {number} was written {copies} times"
            assert batch.error is not None or copies == 1, f"{key!r}: {number} was acknowledged and is lost"
            if batch.error is not None and batch.error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                assert self.removed, f"{key!r}: {number} failed although no partition was removed"
        for key, found in of_key.items():
            numbers = [number for _, number in sorted(found)]
            assert numbers == sorted(numbers), f"{key!r} out of order across layouts: {sorted(found)}"
        assert self.accumulator.buffered_bytes == 0

    def check_routing(self) -> None:
        counts = {info.layout_version: info.layout[1] for info in self.snapshots}
        for part in [*self.removed, *self.partitions.values()]:
            for key, number, version in part.log:
                home = place(positive_hash(key), INITIAL, counts[version])
                assert home == part.index, f"{key!r} {number} of layout {version} is in {part.index}, not {home}"
