"""Moves batches from the accumulator to the brokers. One task decides; a task per request waits for the response."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import anyio

from anabranch.client.client_metrics import PRODUCER_TRAFFIC, Metrics, ProducerTraffic
from anabranch.client.cluster import Node
from anabranch.client.config import ProducerConfig
from anabranch.client.errors import ClientClosedError, ErrorCode, KafkaError, OutcomeUnknownError, error_for
from anabranch.client.net.connections import Connections, backoff_ms
from anabranch.client.net.metadata import Metadata
from anabranch.client.producer.accumulator import Accumulator
from anabranch.client.producer.outcome import BatchOutcome, decide, may_have_written
from anabranch.client.producer.partition_queue import PartitionQueue
from anabranch.client.producer.placement_while_resized import TopicPlacement
from anabranch.client.producer.producer_batch import BatchResult, ProducerBatch
from anabranch.client.producer.resize_metrics import ProducerMetrics
from anabranch.client.producer.unwritten_records_placed_again import Placing
from anabranch.client.tasks import Tasks
from anabranch.protocol.generated.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from anabranch.protocol.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from anabranch.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel, Pending
from anabranch.runtime.env import Env
from anabranch.runtime.signal import Signal

_log = logging.getLogger(__name__)

_IDLE_CHECK_S = 30.0
_SHORTEST_WAIT_MS = 0.1
"""The shortest wait, so that rounded times do not make a loop without a pause."""


class Sender:
    """The network side of a producer."""

    def __init__(
        self,
        env: Env,
        config: ProducerConfig,
        accumulator: Accumulator,
        metadata: Metadata,
        connections: Connections,
        tasks: Tasks,
        placing: Placing,
    ) -> None:
        self._env = env
        self._config = config
        self.accumulator = accumulator
        self._metadata = metadata
        self._connections = connections
        self._tasks = tasks
        self._placing = placing
        self._cluster = metadata.cluster
        self._wake = Signal()
        self._in_flight: dict[int, int] = {}
        self._connecting: set[int] = set()
        self._producer_id: int = NO_PRODUCER_ID
        self._producer_epoch: int = NO_EPOCH
        self._initialising = False
        self._init_failure: str | None = None
        self.metrics = ProducerMetrics()
        self._traffic = ProducerTraffic()
        self.rounds = 0
        """How often the sender has looked for ready batches."""
        self.memory_short = False
        """Whether a task waits for room in the buffer. Then no batch lingers."""
        self.on_progress: Callable[[], None] = lambda: None
        """Called when batches are resolved: memory is free again, or a flush may be over."""
        metadata.on_update(self._on_metadata)

    def wake(self) -> None:
        """Look for batches that are ready to send."""
        self._wake.set()

    def all_metrics(self) -> Metrics:
        """Metrics of the traffic and of resizes."""
        accumulator = self.accumulator
        in_flight = sum(list(self._in_flight.values()))
        available_bytes = max(0, accumulator.buffer_memory - accumulator.buffered_bytes)
        return {PRODUCER_TRAFFIC: self._traffic.values(in_flight, available_bytes), **self.metrics.values()}

    def _on_metadata(self) -> None:
        cluster = self._metadata.cluster
        if cluster is not self._cluster:
            self._cluster = cluster
            for topic in self.accumulator.topics.values():
                topic.see(cluster.topics.get(topic.name))
        self._wake.set()

    async def run(self) -> None:
        """Send ready batches for ever."""
        while True:
            self.rounds += 1
            wait_ms = self._send_ready(self._now_ms())
            await self._wake.wait(min(wait_ms / 1000, _IDLE_CHECK_S))
            self._connections.close_idle()

    def _now_ms(self) -> float:
        return self._env.clock.monotonic() * 1000

    # ------------------------------------------------------------ sending

    def _send_ready(self, now_ms: float) -> float:
        """Start a request to every broker that can take a request. Returns the milliseconds until the next call."""
        accumulator = self.accumulator
        if expired := accumulator.expire(now_ms, self._why_late):
            for batch in expired:
                self._traffic.errors += batch.count
                _log.warning("%s", batch.error.message if batch.error is not None else batch.tp)
            self.on_progress()
        for topic in accumulator.topics.values():
            if topic.paused:
                self.metrics.pausing(topic.name, now_ms / 1000)
                if topic.next is not None:
                    self._place_again(topic)
            elif self.metrics.any_paused:
                self.metrics.let_go(topic.name)
        wait_ms = accumulator.oldest_deadline_ms() - now_ms
        if any(topic.replacement is not None for topic in accumulator.topics.values()):
            wait_ms = 0.0  # the replacement continues after other tasks have run
        ready: dict[int, list[PartitionQueue]] = {}
        for queue in accumulator.queues.values():
            if not queue.waiting or not self._adopt_producer_id(queue):
                continue
            sendable, later_ms = accumulator.sendable(queue, now_ms, memory_short=self.memory_short)
            if not sendable:
                wait_ms = min(wait_ms, later_ms)
                continue
            leader = self._metadata.cluster.leader(queue.tp)
            if leader < 0:
                self._metadata.want(queue.tp.topic)
                self._metadata.request_update()
                continue
            ready.setdefault(leader, []).append(queue)
        for node_id, queues in ready.items():
            self._send_to(node_id, queues, now_ms)
        return max(wait_ms, _SHORTEST_WAIT_MS)

    def _why_late(self, batch: ProducerBatch) -> str:
        """The reason why a batch is not acknowledged yet, as the end of an error message."""
        if (silence := self._metadata.silence) is not None:
            return f": {silence}"
        if self._metadata.cluster.leader(batch.tp) < 0:
            return ": the partition has no leader"
        if batch.failure is not None:
            return f": {batch.failure}" + ("; the broker has not answered since" if batch.in_flight else "")
        if batch.in_flight:
            return ": the broker has not answered"
        if self.accumulator.idempotent and self._producer_id == NO_PRODUCER_ID:
            return f": no producer id yet ({self._init_failure or 'InitProducerId has no response'})"
        return ": still in the buffer"

    def _adopt_producer_id(self, queue: PartitionQueue) -> bool:
        """Give ``queue`` the present producer id, or start a new one. False while batches may get no sequences."""
        if not self.accumulator.idempotent:
            return True
        if queue.topic.next is not None:
            return True  # batches are placed again before they get a sequence
        if queue.bump_needed and queue.may_adopt:
            current = (self._producer_id, self._producer_epoch)
            if (queue.producer_id, queue.producer_epoch) == current:
                self._initialise()
                return False
            queue.adopt(*current)
        elif not queue.outstanding and queue.producer_id != self._producer_id:
            queue.adopt(self._producer_id, self._producer_epoch)
        if self._producer_id == NO_PRODUCER_ID:
            self._initialise()
            return False
        return True

    def _place_again(self, topic: TopicPlacement) -> None:
        """Go on to the next layout if every batch sent under the old layout has its outcome."""
        assert topic.next is not None
        unknown = self.accumulator.give_up_gone(topic)
        if unknown:
            self.metrics.unknown_outcomes += unknown
            _log.warning("resize of %s: it is unknown whether %d records were written", topic.name, unknown)
        replaced = self.accumulator.replace(topic, self._placing)
        if replaced is not None:
            self.metrics.replaced(topic.name, replaced, self._now_ms() / 1000)
            _log.info(
                "resize of %s: layout_version=%d undeleted_partition_count=%d batches=%d taken_apart=%d "
                "records_moved=%d records_failed=%d",
                topic.name,
                topic.layout.layout_version,
                topic.layout.undeleted_partition_count,
                sum(map(len, replaced.batches.values())),
                len(replaced.sources),
                replaced.moved,
                replaced.failed,
            )
            if topic.next is not None:  # a newer layout arrived meanwhile, and no response will wake the sender
                self._wake.set()
        elif not topic.confirmed:
            self._metadata.request_update()
        if unknown or replaced is not None:
            self.on_progress()

    def _send_to(self, node_id: int, queues: list[PartitionQueue], now_ms: float) -> None:
        if self._in_flight.get(node_id, 0) >= self._config.max_in_flight_requests_per_connection:
            return
        node = self._metadata.node(node_id)
        if node is None:
            return
        connection = self._connections.existing(node)
        if connection is None:
            if node_id not in self._connecting:
                self._connecting.add(node_id)
                self._tasks.start_soon(self._connect, node)
            return
        more = True
        while more and self._in_flight.get(node_id, 0) < self._config.max_in_flight_requests_per_connection:
            batches, more = self._drain(queues, now_ms)
            if not batches:
                return
            self.post(node_id, connection, batches)

    async def _connect(self, node: Node) -> None:
        try:
            await self._connections.get(node)
        except KafkaError:
            self._metadata.request_update()
        except ClientClosedError:
            return
        finally:
            self._connecting.discard(node.id)
            self._wake.set()

    def _drain(self, queues: list[PartitionQueue], now_ms: float) -> tuple[list[ProducerBatch], bool]:
        """One batch of each partition, up to ``max_request_size`` but at least one batch; and whether more wait."""
        accumulator = self.accumulator
        batches: list[ProducerBatch] = []
        size = 0
        more = False
        # The partitions left out last time are first this time.
        for at, queue in enumerate(queues):
            if not accumulator.sendable(queue, now_ms, memory_short=self.memory_short)[0]:
                continue
            head = queue.candidate()
            assert head is not None
            if batches and size + head.builder.size_bytes > self._config.max_request_size:
                queues[:] = queues[at:] + queues[:at]
                return batches, True
            batch = accumulator.take(queue)
            size += len(batch.encode())
            batches.append(batch)
            more = more or bool(queue.waiting)
        return batches, more

    def post(self, node_id: int, connection: Channel, batches: list[ProducerBatch]) -> None:
        by_topic: dict[str, TopicProduceData] = {}
        for batch in batches:
            topic, partition = batch.tp
            data = by_topic.get(topic)
            if data is None:
                # All batches of a topic have one layout, because a new layout begins only when no batch is outstanding.
                undeleted, version = batch.layout
                data = by_topic[topic] = TopicProduceData(
                    name=topic, undeleted_partition_count=undeleted, layout_version=version
                )
            data.partition_data.append(PartitionProduceData(index=partition, records=batch.encode()))
        config = self._config
        request = ProduceRequest(
            acks=config.acks, timeout_ms=config.request_timeout_ms, topic_data=list(by_topic.values())
        )
        try:
            pending = connection.post(request, answered=config.acks != 0)
        except KafkaError as error:
            self._finish(batches, {batch.tp: (error.code, BatchResult(), error.message) for batch in batches})
            return
        if config.acks == 0:
            if isinstance(pending.error, KafkaError):
                self._fail_request(batches, pending.error)
            else:
                for batch in batches:
                    self._acknowledged(batch, BatchResult())
                self.on_progress()
            return
        self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
        self._tasks.start_soon(self._await_answer, node_id, pending, batches)

    # ------------------------------------------------------------ answers

    async def _await_answer(self, node_id: int, pending: Pending, batches: list[ProducerBatch]) -> None:
        began_ms = self._now_ms()
        try:
            response: ProduceResponse = await pending.wait(self._config.request_timeout_ms / 1000)
        except KafkaError as error:
            self._in_flight[node_id] -= 1
            self._fail_request(batches, error)
            return
        self._in_flight[node_id] -= 1
        self._traffic.requests.add((self._now_ms() - began_ms) / 1000)
        results: dict[TopicPartition, tuple[ErrorCode, BatchResult, str | None]] = {}
        for topic in response.responses:
            for part in topic.partition_responses:
                results[TopicPartition(topic.name, part.index)] = _read_result(part)
        self._finish(batches, results)

    def _fail_request(self, batches: list[ProducerBatch], error: KafkaError) -> None:
        """Handle a missing response. Whether the batches were written is unknown, so they are sent again unchanged."""
        self._finish(batches, {batch.tp: (error.code, BatchResult(), error.message) for batch in batches})

    def _finish(
        self,
        batches: list[ProducerBatch],
        results: Mapping[TopicPartition, tuple[ErrorCode, BatchResult, str | None]],
    ) -> None:
        now_ms = self._now_ms()
        for batch in batches:
            missing = (
                ErrorCode.UNKNOWN_SERVER_ERROR,
                BatchResult(),
                "the Produce response has no result for this partition",
            )
            code, result, message = results.get(batch.tp, missing)
            self._finish_batch(batch, code, result, message, now_ms)
        self.on_progress()
        self._wake.set()

    def _finish_batch(
        self, batch: ProducerBatch, code: ErrorCode, result: BatchResult, message: str | None, now_ms: float
    ) -> None:
        accumulator = self.accumulator
        if code.refreshes_metadata:
            self._metadata.request_update()
        if batch.resolved:
            accumulator.settle_expired(batch)
            return
        queue = accumulator.queues[batch.tp]
        outcome = decide(code, batch, queue, retries=self._config.retries)
        if outcome is BatchOutcome.REPLACE:
            self._layout_refused(batch, now_ms)
            return
        batch.lost = batch.lost or may_have_written(code)
        batch.failure = f"{code.name}: {message or code.message}"
        config = self._config
        retry_at_ms = now_ms + backoff_ms(
            batch.attempts, config.retry_backoff_ms, config.retry_backoff_max_ms, self._env.rng.random()
        )
        if outcome is BatchOutcome.COMPLETE:
            self._acknowledged(batch, result)
        elif outcome is BatchOutcome.RETRY:
            self._traffic.retries += batch.count
            accumulator.retry(batch, retry_at_ms)
        elif outcome is BatchOutcome.RENUMBER:
            accumulator.renumber(batch, retry_at_ms)
        elif outcome is BatchOutcome.SPLIT:
            accumulator.split(batch, now_ms)
        elif outcome is BatchOutcome.GIVE_UP:
            self._traffic.errors += batch.count
            accumulator.fail(batch, OutcomeUnknownError(batch.tp, batch.count, code))
        else:
            self._traffic.errors += batch.count
            batch.record_errors = result.record_errors
            accumulator.fail(batch, error_for(code, f"{batch.tp}: {message or code.message}"))

    def _acknowledged(self, batch: ProducerBatch, result: BatchResult) -> None:
        self._traffic.records += batch.count
        self._traffic.bytes += len(batch.encode())
        self.accumulator.complete(batch, result)

    def _layout_refused(self, batch: ProducerBatch, now_ms: float) -> None:
        config = self._config
        self.metrics.layout_refusals += 1

        def pause_ms(attempt: int) -> float:
            return backoff_ms(attempt, config.layout_backoff_ms, config.layout_backoff_max_ms, self._env.rng.random())

        if self.accumulator.refuse(batch, now_ms, pause_ms):
            self._metadata.hurry_update()

    # ------------------------------------------------------------ producer id

    def _initialise(self) -> None:
        if not self._initialising:
            self._initialising = True
            self._tasks.start_soon(self._init_producer_id)

    async def _init_producer_id(self) -> None:
        """Get a producer id, or a higher epoch for the present id. Retriable errors are tried again for ever.

        The waiting batches have their own deadlines.
        """
        attempt = 0
        try:
            while True:
                attempt += 1
                try:
                    request = InitProducerIdRequest(
                        transactional_id=None,
                        transaction_timeout_ms=_INT_MAX,
                        producer_id=self._producer_id,
                        producer_epoch=self._producer_epoch,
                    )
                    response: InitProducerIdResponse = await self._connections.request(
                        self._metadata.any_node(), request
                    )
                    if response.error_code:
                        why = error_for(response.error_code).message
                        raise error_for(response.error_code, f"InitProducerId: {why}")
                    self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch
                    return
                except KafkaError as error:
                    self._init_failure = f"{error.code.name}: {error.message}"
                    if not error.code.retriable:
                        self.accumulator.abort(error)
                        self.on_progress()
                        return
                config = self._config
                pause = backoff_ms(
                    attempt, config.retry_backoff_ms, config.retry_backoff_max_ms, self._env.rng.random()
                )
                await anyio.sleep(pause / 1000)
        except ClientClosedError:
            return
        finally:
            self._initialising = False
            self._wake.set()


_INT_MAX = 2**31 - 1


def _read_result(part: PartitionProduceResponse) -> tuple[ErrorCode, BatchResult, str | None]:
    code, message = ErrorCode.of(part.error_code), part.error_message
    record_errors = {
        record.batch_index: record.batch_index_error_message or message or code.message for record in part.record_errors
    }
    if message is None and record_errors:
        message = next(iter(record_errors.values()))
    return code, BatchResult(part.base_offset, part.log_append_time_ms, part.log_start_offset, record_errors), message
