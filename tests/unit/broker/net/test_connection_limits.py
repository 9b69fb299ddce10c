"""A connection decodes requests within the broker's limits, and lets others run after every 32 KiB of requests."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing
import trio
import trio.testing

from anabranch.broker.deferred import Deferred
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.net import connection as connection_module
from anabranch.broker.net import large_requests
from anabranch.broker.net.connection import Connection, cost_of_parts
from anabranch.broker.request.context import CloseConnectionError
from anabranch.protocol.framing import LARGE_FRAME_BYTES, BufferPool, RequestHeader, encode_request
from anabranch.protocol.generated.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from anabranch.protocol.generated.heartbeat import HeartbeatResponse
from anabranch.protocol.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.message_limits import RequestLimits
from anabranch.runtime.decoded_requests import DecodedRequests
from anabranch.runtime.memory_budget import MemoryBudget
from anabranch.runtime.turns import PIECE
from sim.clock import SimClock
from tests.support.broker.loop_probe import LoopProbe

pytestmark = pytest.mark.trio


class Whole:
    """A stream whose bytes are all there at once; then the client closes it."""

    peer = "client:1"

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        count = min(len(buffer), len(self._data))
        buffer[:count] = self._data[:count]
        self._data = self._data[count:]
        return count

    def has_ended(self) -> bool:
        return False

    def send_now(self, parts: object) -> tuple[()]:
        return ()

    def close(self) -> None: ...


class Handler:
    """Counts the bytes of requests that are handled in one round of the event loop."""

    def __init__(self) -> None:
        self.probe = LoopProbe()
        self.protocols: list[int] = []

    def handle(self, ctx: Any, body: JoinGroupRequest) -> HeartbeatResponse:
        self.probe.step(ctx.request_bytes)
        self.protocols.append(len(body.protocols))
        return HeartbeatResponse()


class Late:
    """Answers no slice of a request before ``answer`` is called."""

    def __init__(self) -> None:
        self._open: list[tuple[Deferred[Any], DeleteGroupsResponse]] = []

    def handle(self, _ctx: Any, body: DeleteGroupsRequest) -> Deferred[Any]:
        answer: Deferred[Any] = Deferred()
        results = [DeletableGroupResult(group_id=name) for name in body.groups_names]
        self._open.append((answer, DeleteGroupsResponse(results=results)))
        return answer

    def answer(self) -> int:
        for answer, response in self._open:
            answer.fill(response)
        return len(self._open)


def join(protocols: int) -> bytes:
    """A request of 32 bytes for each protocol."""
    body = JoinGroupRequest(protocols=[JoinGroupRequestProtocol(name=f"{index:026d}") for index in range(protocols)])
    return framed(4, body)


def framed(version: int, body: Any) -> bytes:
    parts = encode_request(RequestHeader(body.API_KEY, version, 1, "client"), body)
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


async def serve(data: bytes, limits: RequestLimits = RequestLimits()) -> Handler:  # noqa: B008 (never changed)
    handler = Handler()
    with handler.probe.watching():
        await serve_with(handler, data, limits, MemoryBudget(-1))
    return handler


async def serve_with(dispatcher: Any, data: bytes, limits: RequestLimits, budget: MemoryBudget) -> DecodedRequests:
    connection, decoded = connection_of(dispatcher, Whole(data), limits, budget)
    await connection.run()
    return decoded


def connection_of(
    dispatcher: Any, stream: Any, limits: RequestLimits, budget: MemoryBudget
) -> tuple[Connection, DecodedRequests]:
    values = SimpleNamespace(max_retried_partitions_per_connection=10, socket_response_max_bytes=1 << 20)
    decoded = DecodedRequests(limits)
    node: Any = SimpleNamespace(
        config=SimpleNamespace(values=values),
        decoded_requests=decoded,
        metrics=BrokerMetrics(),
        hosted=SimpleNamespace(fetch_sessions=SimpleNamespace(connection_ended=lambda owner: None)),
        env=SimpleNamespace(clock=SimClock()),
    )
    return Connection(node, dispatcher, budget, "PLAINTEXT", stream, BufferPool()), decoded


async def test_others_run_after_32_kib_of_requests_that_came_together() -> None:
    handler = await serve(join(320) * 6)
    assert handler.protocols == [320] * 6
    assert handler.probe.most_steps <= LARGE_FRAME_BYTES + len(join(320))


async def test_a_request_beyond_a_limit_closes_the_connection_and_names_the_field() -> None:
    with structlog.testing.capture_logs() as logs:
        handler = await serve(join(5_000), RequestLimits(max_elements=4_999))
    assert handler.protocols == []
    (rejected,) = [entry for entry in logs if entry["event"] == "connection.rejected"]
    assert "protocols[]: more than 4999 elements in one message (request.max.elements)" in rejected["reason"]


async def test_the_items_of_a_large_request_are_freed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    free = connection_module.free

    async def counted(arrays: list[list[Any]]) -> None:
        freed.extend(len(array) for array in arrays)
        await free(arrays)

    monkeypatch.setattr(connection_module, "free", counted)
    handler = await serve(join(5_000) + join(10))
    assert (handler.protocols, freed) == ([5_000, 10], [5_000])


async def test_slices_that_are_answered_after_the_connection_hold_no_memory() -> None:
    dispatcher, budget = Late(), MemoryBudget(1 << 20)
    groups = DeleteGroupsRequest(groups_names=[f"group-{number}" for number in range(500)])
    await serve_with(dispatcher, framed(2, groups), RequestLimits(), budget)
    assert dispatcher.answer() > 1
    assert budget.taken_bytes == 0


class LateAsAWhole(Late):
    """Answers later, and needs the decoded request until then."""

    def __init__(self, may_stop: bool) -> None:
        super().__init__()
        self._may_stop = may_stop
        self.stopped = 0

    def handle(self, ctx: Any, body: DeleteGroupsRequest) -> Deferred[Any]:
        answer = super().handle(ctx, body)
        if self._may_stop:
            answer.on_abandoned = self._stop
        return answer

    def _stop(self) -> None:
        self.stopped += 1


@pytest.mark.parametrize("may_stop", [True, False])
async def test_a_decoded_request_counts_until_its_work_ends(may_stop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_requests, "CUTS", {})
    dispatcher = LateAsAWhole(may_stop)
    groups = DeleteGroupsRequest(groups_names=[f"group-{number}" for number in range(5_000)])
    decoded = await serve_with(dispatcher, framed(2, groups), RequestLimits(), MemoryBudget(-1))
    assert dispatcher.stopped == may_stop
    assert (decoded.taken_bytes == 0) == may_stop, "the connection has ended"
    dispatcher.answer()
    assert decoded.taken_bytes == 0


class Left(Whole):
    """The client closes it while its request is served, once ``is_closed`` is set."""

    is_closed = False

    def has_ended(self) -> bool:
        return self.is_closed


class NeverKnown:
    """Metadata is not known, as before the controller's first UpdateMetadata."""

    def __init__(self) -> None:
        self.stopped = 0

    def handle(self, _ctx: Any, _body: MetadataRequest) -> Deferred[Any]:
        answer: Deferred[Any] = Deferred()
        answer.on_abandoned = self._stop
        return answer

    def _stop(self) -> None:
        self.stopped += 1


async def test_a_large_request_whose_slice_waits_ends_with_its_client() -> None:
    topics = [MetadataRequestTopic(name=f"topic-{number}") for number in range(5_000)]
    dispatcher = NeverKnown()
    stream = Left(framed(9, MetadataRequest(topics=topics)))
    connection, decoded = connection_of(dispatcher, stream, RequestLimits(), MemoryBudget(-1))
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            await trio.testing.wait_all_tasks_blocked()
            assert decoded.taken_bytes > 0
            assert connection.overdue(connection.last_active, math.inf) is None
            stream.is_closed = True
            reason = connection.overdue(connection.last_active, math.inf)
            assert reason == "closed by the client"
            connection.close(reason)
    assert (dispatcher.stopped, decoded.taken_bytes) == (1, 0)


class Refusing:
    def handle(self, _ctx: Any, _body: Any) -> None:
        raise CloseConnectionError("refused")


@pytest.mark.parametrize("dispatcher", [Handler(), Refusing()])
async def test_a_served_request_does_not_count(dispatcher: Any) -> None:
    decoded = await serve_with(dispatcher, join(5_000), RequestLimits(), MemoryBudget(-1))
    assert decoded.taken_bytes == 0


async def test_a_request_that_is_cancelled_before_it_is_served_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    read, seen = DecodedRequests.read, []
    with trio.CancelScope() as scope:

        async def last(self: DecodedRequests, frame: memoryview, has_ended: Any) -> Any:
            request = await read(self, frame, has_ended)
            seen.append((self, self.taken_bytes))
            scope.cancel()
            return request

        monkeypatch.setattr(DecodedRequests, "read", last)
        await serve_with(Handler(), join(5_000), RequestLimits(), MemoryBudget(-1))
    ((decoded, taken_bytes),) = seen
    assert taken_bytes > 0 == decoded.taken_bytes


def produce(topics: int, partitions: int, record_bytes: int) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=bytes(record_bytes)) for index in range(partitions)]
    return ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=data)] * topics)


@pytest.mark.parametrize(
    ("body", "least", "most"),
    [
        pytest.param(produce(1, 1, 1_000_000), 0, PIECE // 8, id="the bytes of records do not count"),
        pytest.param(produce(1, 1, 10), 0, PIECE // 8, id="one small batch"),
        pytest.param(produce(1, 40, 10), PIECE, PIECE, id="many partitions"),
        pytest.param(produce(3_000, 0, 0), PIECE, PIECE, id="many empty topics"),
        pytest.param(produce(20, 1, 10), PIECE, PIECE, id="topics and partitions together"),
    ],
)
async def test_the_cost_of_a_produce_depends_on_its_parts(body: ProduceRequest, least: int, most: int) -> None:
    assert least <= cost_of_parts(len(framed(9, body)), body) <= most


async def test_bytes_of_a_produce_that_belong_to_no_part_count() -> None:
    """Tagged fields that the broker does not know are skipped one by one."""
    assert cost_of_parts(LARGE_FRAME_BYTES, produce(1, 1, 10)) == PIECE
