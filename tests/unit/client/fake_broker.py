"""A small broker that can misbehave on purpose: one process, one node, partitions in lists, scripted faults."""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from anabranch import Admin, Consumer, Producer
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.framing import Request, ServerConnection, encode_response
from anabranch.protocol.generated.api_versions import ApiVersionsResponse
from anabranch.protocol.generated.fetch import FetchResponse
from anabranch.protocol.generated.init_producer_id import InitProducerIdResponse
from anabranch.protocol.generated.list_offsets import ListOffsetsResponse
from anabranch.protocol.generated.metadata import MetadataResponse
from anabranch.protocol.generated.produce import ProduceResponse
from anabranch.protocol.records import RecordBatch, set_base_offset
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env, Stream
from anabranch.runtime.real_anyio import client_env
from tests.support.protocol.messages import answered, by_partition, message

SERVED = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.API_VERSIONS,
    ApiKey.INIT_PRODUCER_ID,
)
AnyClient = TypeVar("AnyClient", Admin, Consumer, Producer)
Layout = tuple[int, int, int]
"""The initial partition count, the undeleted one, and the layout version."""
DROP = "drop"
"""A fault that closes the connection instead of answering."""
SILENCE = "silence"
"""A fault that sends no response and reads on."""


@dataclass
class Fault:
    """A fault of the next produce to a partition: an error code, a dropped connection, or no response.

    ``applied``: whether the batch is appended nevertheless.
    """

    error: ErrorCode | str
    applied: bool = False
    record_errors: dict[int, str] = field(default_factory=dict)


@dataclass
class PartitionLog:
    """Batches in order, and the epoch and next sequence of each producer, as a broker keeps them."""

    batches: list[bytes] = field(default_factory=list)
    end_offset: int = 0
    start_offset: int = 0
    producers: dict[int, tuple[int, int, dict[int, int]]] = field(default_factory=dict)

    def append(self, data: bytes, layout_matches: bool = True) -> tuple[ErrorCode, int]:
        """Append a batch and return error and base offset.

        The check for duplicates comes first, then KIP-253's check of the layout, then Kafka's check of the sequence.
        """
        batch = RecordBatch(data)
        assert batch.verify_crc()
        if batch.has_producer_id:
            epoch, expected, known = self.producers.get(batch.producer_id, (batch.producer_epoch, 0, {}))
            if batch.producer_epoch > epoch:
                epoch, expected, known = batch.producer_epoch, 0, {}
            if batch.base_sequence in known:
                return ErrorCode.NONE, known[batch.base_sequence]
            if not layout_matches:
                return ErrorCode.INVALID_PARTITION_METADATA, -1
            if batch.base_sequence != expected:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            known[batch.base_sequence] = self.end_offset
            self.producers[batch.producer_id] = (epoch, expected + batch.count, known)
        if not layout_matches:
            return ErrorCode.INVALID_PARTITION_METADATA, -1
        base = self.end_offset
        stored = bytearray(data)
        set_base_offset(stored, base, 0)
        self.batches.append(bytes(stored))
        self.end_offset += batch.count
        return ErrorCode.NONE, base

    def values(self) -> list[bytes | None]:
        """Return the value of every record, in offset order."""
        return [record.value for data in self.batches for record in RecordBatch(data)]


class FakeBroker:
    """Serves ``topics``; each produced batch of a partition uses up one of the partition's ``faults``."""

    def __init__(self, topics: dict[str, int]) -> None:
        self.logs = {TopicPartition(t, p): PartitionLog() for t, count in topics.items() for p in range(count)}
        self.topics = topics
        self.faults: dict[TopicPartition, deque[Fault | None]] = {}
        self.layouts: dict[str, Layout] = {}
        """The layouts in Metadata responses, by topic. A topic without a layout is described as by plain Kafka."""
        self.enforced: dict[TopicPartition, tuple[int, int]] = {}
        """By partition: tagged batches are accepted only with this undeleted partition count and layout version."""
        self.answers: dict[ApiKey, Callable[[Any], Any]] = {}
        """Functions that answer APIs, also in place of this broker. Each gets the request body, and may be async."""
        self.max_versions: dict[ApiKey, int] = {}
        """The highest API versions of an older broker."""
        self.requests: list[Request] = []
        self.max_batch_bytes = 1 << 30
        self.producer_ids = 0
        self.connections = 0
        self.port = 0
        self.fetch_hook: Callable[[Any, FetchResponse], None] | None = None
        self.metadata_hook: Callable[[MetadataResponse], None] | None = None
        self.is_silent = False
        """Whether requests are read and not answered."""
        self._appended = anyio.Event()

    def resize(self, topic: str, layout: Layout, *, announce: bool = True) -> None:
        """Give every partition the new layout; with ``announce``, metadata shows the layout, too."""
        _, undeleted, version = layout
        for partition in range(max(self.topics[topic], undeleted)):
            tp = TopicPartition(topic, partition)
            self.logs.setdefault(tp, PartitionLog())
            self.enforced[tp] = (undeleted, version)
        if announce:
            self.announce(topic, layout)

    def announce(self, topic: str, layout: Layout) -> None:
        """Show the layout in metadata from now on."""
        self.topics[topic] = max(self.topics[topic], layout[1])
        self.layouts[topic] = layout

    def seen(self, api: ApiKey) -> list[Any]:
        """Return the bodies of the requests of one API, in order."""
        return [request.body for request in self.requests if request.header.api_key == api]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def running(self, env: Env | None = None) -> AsyncIterator[FakeBroker]:
        """Serve on a free port for the length of a block."""
        listener = await (env or client_env()).network.listen("127.0.0.1", 0)
        self.port = listener.port
        async with anyio.create_task_group() as tasks:

            async def accept() -> None:
                while True:
                    stream = await listener.accept()
                    self.connections += 1
                    tasks.start_soon(self._serve, stream)

            tasks.start_soon(accept)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()
                listener.close()

    @contextlib.asynccontextmanager
    async def client(self, kind: type[AnyClient], *topics: str, **config: Any) -> AsyncIterator[AnyClient]:
        """Serve, and run a client of this broker, for the length of a block."""
        async with self.running(), kind(*topics, bootstrap_servers=self.address, **config) as client:
            yield client

    async def _serve(self, stream: Stream) -> None:
        """Answer in order. During a held fetch the connection is still read, and the next fetch ends the held fetch."""
        connection = ServerConnection()
        before = anyio.Event()
        before.set()
        async with anyio.create_task_group() as tasks:
            with contextlib.suppress(OSError, anyio.ClosedResourceError):
                is_open = True
                while is_open and await self._receive(stream, connection):
                    while is_open and (request := connection.next_request()) is not None:
                        self.requests.append(request)
                        done = anyio.Event()
                        if request.header.api_key == ApiKey.FETCH:
                            self._release()
                            tasks.start_soon(self._respond, stream, request, before, done)
                        else:
                            is_open = await self._respond(stream, request, before, done)
                        before = done
            tasks.cancel_scope.cancel()
            stream.close()

    async def _receive(self, stream: Stream, connection: ServerConnection) -> bool:
        await stream.wait_readable()
        count = await stream.receive_into(connection.buffer())
        connection.received(count)
        return count > 0

    async def _respond(self, stream: Stream, request: Request, before: anyio.Event, done: anyio.Event) -> bool:
        """Answer a request and return whether the connection stays open."""
        header = request.header
        try:
            response = await self._answer(request)
            await before.wait()
            if response is not None and response is not DROP and not self.is_silent:
                await stream.send(encode_response(header.api_key, header.api_version, header.correlation_id, response))
        except (OSError, anyio.ClosedResourceError):
            return False
        finally:
            done.set()
        return response is not DROP

    def _release(self) -> None:
        self._appended.set()
        self._appended = anyio.Event()

    async def _answer(self, request: Request) -> Any:
        body = request.body
        answer = self.answers.get(ApiKey(request.header.api_key))
        if answer is not None:
            found = answer(body)
            return await found if inspect.isawaitable(found) else found
        match request.header.api_key:
            case ApiKey.API_VERSIONS:
                tops = {k: self.max_versions.get(k, API[k].max_version) for k in (*SERVED, *self.answers)}
                keys = [{"api_key": k, "min_version": API[k].min_version, "max_version": tops[k]} for k in tops]
                return message(ApiVersionsResponse, api_keys=keys)
            case ApiKey.METADATA:
                return self._metadata(body)
            case ApiKey.INIT_PRODUCER_ID:
                self.producer_ids += 1
                return InitProducerIdResponse(producer_id=self.producer_ids, producer_epoch=0)
            case ApiKey.PRODUCE:
                return self._produce(body)
            case ApiKey.FETCH:
                return await self._fetch(body)
            case ApiKey.LIST_OFFSETS:
                return self._list_offsets(body)
        raise AssertionError(f"not served: {request.header}")

    def _metadata(self, body: Any) -> MetadataResponse:
        names = list(self.topics) if body.topics is None else [t.name for t in body.topics]
        part = {"leader_id": 1, "leader_epoch": 0, "replica_nodes": [1], "isr_nodes": [1]}
        topics = {name: dict.fromkeys(range(self.topics.get(name, 0)), part) for name in names}
        brokers = [{"node_id": 1, "host": "127.0.0.1", "port": self.port}]
        response = by_partition(MetadataResponse, topics, brokers=brokers, cluster_id="fake", controller_id=1)
        for topic in response.topics:
            topic.error_code = ErrorCode.NONE if topic.partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if topic.name in self.layouts:
                topic.initial_partition_count, topic.undeleted_partition_count, topic.layout_version = self.layouts[
                    topic.name
                ]
                topic.ordered_delivery = 1
                for each in topic.partitions:
                    each.incarnation = 1000 + each.partition_index
        if self.metadata_hook is not None:
            self.metadata_hook(response)
        return response

    def _produce(self, body: Any) -> Any:
        answers: dict[str, dict[int, dict[str, Any]]] = {}
        drop = silence = False
        for topic in body.topic_data:
            answer = answers[topic.name] = {}
            for data in topic.partition_data:
                tp = TopicPartition(topic.name, data.index)
                faults = self.faults.get(tp)
                fault = faults.popleft() if faults else None
                code, base = ErrorCode.NONE, -1
                if len(data.records) > self.max_batch_bytes:
                    code = ErrorCode.MESSAGE_TOO_LARGE
                elif tp not in self.logs:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif fault is None or fault.applied:
                    layout = (topic.undeleted_partition_count, topic.layout_version)
                    code, base = self.logs[tp].append(bytes(data.records), layout == self.enforced.get(tp, layout))
                if fault is not None:
                    drop = drop or fault.error is DROP
                    silence = silence or fault.error is SILENCE
                    code = code if fault.error in (DROP, SILENCE) else ErrorCode(fault.error)
                errors = fault.record_errors.items() if fault is not None else ()
                named = [{"batch_index": index, "batch_index_error_message": text} for index, text in errors]
                answer[data.index] = {"error_code": code, "base_offset": base, "record_errors": named}
        self._release()
        if drop:
            return DROP
        return by_partition(ProduceResponse, answers) if body.acks and not silence else None

    async def _fetch(self, body: Any) -> FetchResponse:
        response = self._read(body)
        if not any(p.records for t in response.responses for p in t.partitions) and body.max_wait_ms:
            with anyio.move_on_after(body.max_wait_ms / 1000):
                await self._appended.wait()
            response = self._read(body)
        if self.fetch_hook is not None:
            self.fetch_hook(body, response)
        return response

    def _read(self, body: Any) -> FetchResponse:
        def read(topic: str, partition: int, asked: Any) -> dict[str, Any]:
            log = self.logs[TopicPartition(topic, partition)]
            if not log.start_offset <= asked.fetch_offset <= log.end_offset:
                return {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE, "high_watermark": log.end_offset, "records": b""}
            batches = [b for b in log.batches if RecordBatch(b).last_offset >= asked.fetch_offset]
            return {"high_watermark": log.end_offset, "records": b"".join(batches)}

        return answered(FetchResponse, body, read)

    def _list_offsets(self, body: Any) -> ListOffsetsResponse:
        def look_up(topic: str, partition: int, asked: Any) -> dict[str, Any]:
            log = self.logs[TopicPartition(topic, partition)]
            return {"offset": log.end_offset if asked.timestamp == -1 else log.start_offset}

        return answered(ListOffsetsResponse, body, look_up)
