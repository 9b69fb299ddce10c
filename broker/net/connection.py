"""One client connection: requests are decoded and applied in order, and responses are sent in the same order.

One task reads. Each response has a slot in a queue of at most ``MAX_SLOTS``. The first response is sent as soon as it
is ready. If the socket does not take all of it, a second task sends the rest; that task is started when it is first
needed. While all slots are taken nothing more is read, so a client that stops reading costs bounded memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import structlog
import trio

from anabranch.broker.deferred import Deferred
from anabranch.broker.net import large_requests, request_log
from anabranch.broker.net.dispatch import Dispatcher
from anabranch.broker.net.joined_answer import EncodedAnswer, Sink
from anabranch.broker.node import Node
from anabranch.broker.request import large_batches
from anabranch.broker.request.context import Answer, CloseConnectionError, RequestContext, keep_nothing
from anabranch.broker.stock.client_session import ClientSession
from anabranch.protocol.addresses import host_of
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.framing import (
    LARGE_FRAME_BYTES,
    MANY_ITEMS,
    BufferPool,
    FrameError,
    Request,
    ServerConnection,
    TooLargeError,
    encode_response,
)
from anabranch.protocol.generated.api_versions import ApiVersionsRequest
from anabranch.protocol.generated.produce import ProduceRequest
from anabranch.protocol.message import Message, has_more_items
from anabranch.protocol.message_limits import CONTROLLER_APIS
from anabranch.protocol.named_items import has_one_item
from anabranch.protocol.own_tags import Withholder, withholder
from anabranch.protocol.primitives import DecodeError, EncodeError
from anabranch.runtime.env import Part, Stream
from anabranch.runtime.memory_budget import MemoryBudget
from anabranch.runtime.pauses import free, with_pauses, write_response
from anabranch.runtime.turns import PIECE, turns

logger = structlog.get_logger(__name__)

MAX_SLOTS = 8
_REQUESTS_PER_YIELD = 8
_COST_PER_BYTE = 32
"""The cost of decoding and handling a byte of a small request, whose parts may be tiny, in bytes that are moved."""
_COST_PER_PART = 32 * 1024
"""The cost of handling a topic or a partition of a Produce request. The bytes of its records are not decoded."""
_MOST_PARTS = PIECE // _COST_PER_PART
_PRODUCE_KEY, _FETCH_KEY = int(ApiKey.PRODUCE), int(ApiKey.FETCH)
_PRODUCE = _PRODUCE_KEY.to_bytes(2, "big")
_PARKING = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.CONSUMER_GROUP_POSITION})
"""APIs whose requests may wait for other members."""
_ALONE = _PARKING | CONTROLLER_APIS
"""APIs whose later answers are awaited before the next request is read, so that a connection has one at a time."""
_KEEP_NOTHING = _PARKING | {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.DELETE_RECORDS}
"""APIs whose clients choose how long the answer may wait. What waits does not need the decoded request."""


_ENCODED = EncodedAnswer([], 0)
"""The response of a slot whose parts are in ``rest``."""


class _Slot:
    """A response's place in the queue; ``response`` is None until it is ready."""

    __slots__ = (
        "awaited",
        "counted_bytes",
        "ctx",
        "decoded_bytes",
        "filled",
        "handled",
        "has_many_items",
        "response",
        "rest",
    )

    def __init__(self, ctx: RequestContext, handled: float) -> None:
        self.ctx = ctx
        self.handled = self.filled = handled
        """The time when the handler returned, and the time when the response was ready."""
        self.response: Message | EncodedAnswer | None = None
        self.awaited: Deferred[Any] | None = None
        self.counted_bytes = self.decoded_bytes = 0
        """The bytes of the encoded response and of the decoded request, as ``queued.max.request.bytes`` counts them."""
        self.has_many_items = False
        """Whether the writer task encodes the response, in steps."""
        self.rest: Sequence[Part] | None = None
        """The encoded parts that the writer task has not sent yet; None before the response is encoded."""

    @property
    def withhold(self) -> Withholder | None:
        """Removes own tags from a response, if the client did not ask for them."""
        return None if self.ctx.asks_for_own_tags else withholder(self.ctx.api_key)

    def fill(self, response: Message | EncodedAnswer, now: float) -> None:
        """Set the response."""
        self.response = response
        self.filled = now
        if isinstance(response, EncodedAnswer):
            self.counted_bytes = response.size_bytes
            return
        ctx = self.ctx
        if ctx.api_key != _PRODUCE_KEY or ctx.request_bytes > LARGE_FRAME_BYTES:
            self.has_many_items = has_more_items(response, MANY_ITEMS)
        if not self.has_many_items and (withhold := self.withhold) is not None:
            withhold.at_once(response)


def cost_of_parts(size: int, body: Any) -> int:
    """The cost of decoding and handling the parts of a Produce request of ``size`` bytes, without its records."""
    parts = len(body.topic_data)
    for topic in body.topic_data:
        parts += len(topic.partition_data)
        if parts >= _MOST_PARTS:
            return PIECE
        for data in topic.partition_data:
            size -= len(data.records or b"")
    return _cost(parts, size)


def _cost(parts: int, size: int) -> int:
    cost = _COST_PER_PART * parts + _COST_PER_BYTE * size
    return cost if cost < PIECE else PIECE


class Connection:
    """A connection that was accepted. ``run`` serves it until either side closes it."""

    __slots__ = (
        "_answer_bytes",
        "_budget",
        "_clock",
        "_closed_because",
        "_decoded",
        "_dispatcher",
        "_frames",
        "_is_over",
        "_metrics",
        "_most_answer_bytes",
        "_node",
        "_nursery",
        "_progress",
        "_sending",
        "_served_bytes",
        "_served_key",
        "_session",
        "_slice",
        "_slots",
        "_stream",
        "_taken_bytes",
        "_turns",
        "_wake_writer",
        "client_host",
        "frame_since",
        "last_active",
        "listener",
    )

    def __init__(
        self, node: Node, dispatcher: Dispatcher, budget: MemoryBudget, listener: str, stream: Stream, pool: BufferPool
    ) -> None:
        self._node = node
        self._clock = node.env.clock
        self._metrics = node.metrics
        self._dispatcher = dispatcher
        self._budget = budget
        self.listener = listener
        self._stream = stream
        values = node.config.values
        self._decoded = node.decoded_requests
        self._frames = ServerConnection(self._decoded.limits, pool)
        self._turns = turns()
        self._session: ClientSession | None = None
        """None before the first request."""
        self._taken_bytes = 0
        self._answer_bytes = 0
        self._served_bytes = self._served_key = 0
        """The memory and the API key of the decoded request that is served."""
        self._slice: trio.CancelScope | None = None
        """The wait for the answer to a slice of a large request that only reads."""
        self._is_over = False
        """Whether nothing counts any more: slices of a large request may be answered after the connection."""
        self._most_answer_bytes = values.socket_response_max_bytes
        self._slots: list[_Slot] = []
        self._nursery: trio.Nursery | None = None
        self._wake_writer: trio.Event | None = None
        """None until there is a writer task."""
        self._progress: trio.Event | None = None
        """Wakes the reading task; None before it has waited for an answer."""
        self._sending = False
        self._closed_because: str | None = None
        self.client_host = host_of(stream.peer)
        self.last_active = self._clock.monotonic()
        self.frame_since: float | None = None
        """The time when the first byte of an incomplete frame arrived."""

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Serve until the connection ends. Raises nothing except a cancellation."""
        logger.debug("connection.opened", client=self._stream.peer, listener=self.listener)
        try:
            async with trio.open_nursery() as self._nursery:
                await self._read()
                self._nursery.cancel_scope.cancel()
        finally:
            self.close("ended")
            logger.debug("connection.closed", client=self._stream.peer, reason=self._closed_because)
            self._frames.close()
            self._settle_budget(0)
            self._count_answer(-self._answer_bytes)
            self._is_over = True
            self._free_served()
            self._abandon()

    def _abandon(self) -> None:
        """End what only this connection's client waited for: fetch sessions, and answers that may be left out."""
        if self._session is not None:
            self._node.hosted.fetch_sessions.connection_ended(self._session.fetch_sessions)
        for slot in self._slots:
            if slot.awaited is not None and slot.awaited.on_abandoned is not None:
                slot.awaited.on_abandoned()
                self._free_decoded(slot)
        self._slots.clear()

    def _free_served(self) -> None:
        if self._served_bytes:
            self._decoded.free(self._served_key, self._served_bytes)
            self._served_bytes = 0

    def _free_decoded(self, slot: _Slot) -> int:
        freed_bytes, slot.decoded_bytes = slot.decoded_bytes, 0
        if freed_bytes:
            self._decoded.free(slot.ctx.api_key, freed_bytes)
            slot.ctx.free_request = keep_nothing
        return freed_bytes

    def close(self, because: str) -> None:
        """Close at once. If it is called again, the first reason stays."""
        if self._closed_because is None:
            self._closed_because = because
            self._stream.close()
            self._note_progress()
            if self._slice is not None:
                self._slice.cancel()

    def overdue(self, now: float, max_idle_s: float) -> str | None:
        """The reason to close the connection (idle, an incomplete frame, or responses that are not read), or None.

        While requests wait for their answers, perhaps no task reads, so this notices that the client is gone.
        """
        if (self._slots or self._slice is not None) and self._stream.has_ended():
            return "closed by the client"
        if self.frame_since is not None and not self._slots and now - self.frame_since > max_idle_s:
            return "a request did not arrive whole within connections.max.idle.ms"
        if now - self.last_active <= max_idle_s:
            return None
        if self._sending:
            return "the client did not read its responses for connections.max.idle.ms"
        return None if self._slots else "idle for connections.max.idle.ms"

    # ------------------------------------------------------------ reading

    async def _read(self) -> None:
        try:
            while self._closed_because is None:
                await self._receive()
        except (FrameError, DecodeError, CloseConnectionError) as error:
            self._reject(str(error))
        except OSError as error:
            self.close(str(error))

    def _reject(self, reason: str) -> None:
        logger.info("connection.rejected", client=self._stream.peer, listener=self.listener, reason=reason)
        self.close(reason)

    async def _receive(self) -> None:
        frames, shared, moved = self._frames, self._turns, 0
        if frames.idle:
            if self._taken_bytes:
                self._settle_budget(0)
            await self._stream.wait_readable()
        elif moved := frames.moves():
            await shared.take(moved)
        if limited := self._budget.limited:
            await self._budget.wait_for_room(self._taken_bytes)
        target = frames.buffer(moved)
        if limited:
            self._settle_budget(max(self._taken_bytes, len(target)))
        received = await self._stream.receive_into(target)
        if received == 0:
            self.close("closed by the client")
            return
        frames.received(received)
        now = self.last_active = self._clock.monotonic()
        served = unyielded_bytes = 0
        has_waited = False
        """Whether other work was done since ``now``."""
        while (frame := frames.next_frame()) is not None:
            is_produce = frame[:2] == _PRODUCE
            if self._closed_because is not None and not is_produce:
                continue
            size = len(frame)
            cost = min(PIECE, size if is_produce else _COST_PER_BYTE * size)
            if shared.left > 0:
                shared.left -= cost
            else:
                await shared.pause(cost)
                has_waited = True
            request = await self._decoded.read(frame, self._stream.has_ended)
            if request.decoded_bytes:
                self._served_bytes, self._served_key = request.decoded_bytes, request.header.api_key
                has_waited = True
            if not is_produce:
                is_whole = large_requests.is_whole(request.header.api_key, size)
            elif is_whole := (records := large_batches.only_small(request.body)) is not None:
                shared.left -= _cost(2, size - len(records))
            else:
                shared.left -= cost_of_parts(size, request.body)
            served += 1
            unyielded_bytes += size
            if served % _REQUESTS_PER_YIELD == 0 or unyielded_bytes > LARGE_FRAME_BYTES:
                unyielded_bytes, has_waited = 0, True
                await trio.lowlevel.checkpoint()
            begun = self._clock.monotonic() if has_waited else now
            is_answered_alone = False
            if self._closed_because is None or (is_produce and cast(ProduceRequest, request.body).acks == 0):
                # Records without acknowledgements are written although their client has gone meanwhile.
                is_answered_alone = await self._serve(request, now, begun, is_whole)
            has_waited = True  # for the request before
            large_arrays = request.large_arrays
            del request
            if large_arrays is not None:
                await free(large_arrays)
            if self._served_bytes:
                self._free_served()
            if is_answered_alone:
                await self._wait_until(lambda: not self._slots)
            elif len(self._slots) >= MAX_SLOTS:
                await self._wait_until(lambda: len(self._slots) < MAX_SLOTS)
        if not frames.has_partial:
            self.frame_since = None
        elif served or self.frame_since is None:
            self.frame_since = now

    def _settle_budget(self, taken_bytes: int) -> None:
        if taken_bytes != self._taken_bytes:
            self._budget.take(taken_bytes - self._taken_bytes)
            self._taken_bytes = taken_bytes

    def _count_answer(self, delta_bytes: int) -> None:
        if self._budget.limited and delta_bytes and not self._is_over:
            self._budget.take(delta_bytes)
            self._answer_bytes += delta_bytes

    async def _serve(self, request: Request, arrived: float, begun: float, is_whole: bool) -> bool:
        """Apply a request. Returns whether the next one is read only after its answer.

        ``is_whole``: the request needs no cutting and no counting, and goes to its handler at once.
        """
        session = self._session
        if session is None:
            session = ClientSession(self._node.config.values.max_retried_partitions_per_connection)
            self._session = session
        api_key, version, correlation_id, client_id, asks = request.header
        ctx = RequestContext(
            self._node, self.listener, self.client_host, client_id, api_key, version, correlation_id, session, asks
        )
        ctx.request_bytes = request.size
        ctx.arrived, ctx.begun = arrived, begun
        body: Any = request.body
        if api_key == _FETCH_KEY:
            ctx.is_follower = body.replica_id >= 0
        if request.unsupported:
            ctx.api_version = 0
            answer: Any = self._dispatcher.unsupported_api_versions(ctx, ApiVersionsRequest())
        elif is_whole:
            answer = self._dispatcher.handle(ctx, body)
        else:
            answer = await self._handle(ctx, body)
        handled = self._clock.monotonic()
        if answer is None:
            self._note_answered(ctx, handled, handled, handled)
            return False
        slot = _Slot(ctx, handled)
        self._slots.append(slot)
        if isinstance(answer, Deferred):
            if self._served_bytes and (ctx.keeps_request or api_key not in _KEEP_NOTHING):
                slot.decoded_bytes, self._served_bytes = self._served_bytes, 0
                ctx.free_request = partial(self._free_decoded, slot)
            self._fill_later(slot, answer)
            return api_key in _ALONE
        self._metrics.note_response(api_key, answer)
        slot.fill(answer, handled)
        self._ready()
        return bool(slot.rest) or slot.has_many_items

    async def _handle(self, ctx: RequestContext, body: Any) -> Answer:
        node = self._node
        try:
            if ctx.api_key == _PRODUCE_KEY and (large := await large_batches.find(body)):
                ctx.large_batches = await large_batches.read(node.replicas, node.env.clock, ctx.session, large)
            has_one = has_one_item(ctx.api_key, body)
            if not has_one:
                await large_requests.leave_each_once(ctx, body)
            if not large_requests.may_be_cut(ctx.api_key, ctx.request_bytes, has_one_item=has_one):
                return self._dispatcher.handle(ctx, body)
            if ctx.api_key == ApiKey.OFFSET_FETCH:
                await with_pauses(node.groups.count_readers(ctx, body))
            return await large_requests.serve(
                self._dispatcher.handle, ctx, body, self._sink(ctx), self._stream.has_ended, self._wait_in
            )
        finally:
            self._slice = None
            ctx.large_batches = large_batches.NONE  # the context lives as long as the answer waits

    def _wait_in(self, scope: trio.CancelScope) -> None:
        self._slice = scope
        if self._closed_because is not None:
            scope.cancel()

    # ------------------------------------------------------------ answers

    def _fill_later(self, slot: _Slot, answer: Deferred[Any]) -> None:
        slot.awaited = answer

        def fill(response: Any) -> None:
            slot.awaited = None  # the answer refers to the slot: no cycle may keep the response in memory
            if slot.decoded_bytes:
                self._free_decoded(slot)
            if not isinstance(response, EncodedAnswer):
                self._metrics.note_response(slot.ctx.api_key, response)
            slot.fill(response, self._clock.monotonic())
            if self._slots and self._slots[0] is slot:
                self._ready()

        answer.then(fill)

    def _first_ready(self) -> _Slot | None:
        """The first slot, if its response can be sent now."""
        slots = self._slots
        return slots[0] if slots and slots[0].response is not None and self._closed_because is None else None

    def _ready(self) -> None:
        """Send the first responses that are ready; the writer task sends the bytes that the socket does not take."""
        while (slot := self._first_ready()) is not None:
            if slot.rest is not None:
                return
            if not slot.has_many_items:
                slot.rest = self._stream.send_now(self._encode(slot))
                if slot.rest:
                    self._count_rest(slot, slot.rest)
            if slot.rest or slot.has_many_items:
                if self._wake_writer is not None:
                    self._wake_writer.set()
                elif self._nursery is not None:
                    self._wake_writer = trio.Event()
                    self._nursery.start_soon(self._write)
                return
            self._answered()
            if not self._slots:
                return

    def _answered(self) -> None:
        """Remove the first slot, whose response was sent."""
        slot = self._slots.pop(0)
        if slot.counted_bytes:
            self._count_answer(-slot.counted_bytes)
        if self._progress is not None:
            self._progress.set()
        now = self.last_active = self._clock.monotonic()
        self._note_answered(slot.ctx, slot.handled, slot.filled, now)

    def _note_answered(self, ctx: RequestContext, handled: float, filled: float, sent: float) -> None:
        """The times: handling ended, response ready, response sent."""
        times = ctx.arrived, ctx.begun, handled, filled, sent
        self._metrics.requests.answered(ctx.api_key, ctx.api_version, ctx.is_follower, *times)
        if request_log.is_on():
            request_log.answered(ctx, self._stream.peer, *times)

    def _note_progress(self) -> None:
        if self._progress is not None:
            self._progress.set()

    async def _wait_until(self, condition: Any) -> None:
        while not condition() and self._closed_because is None:
            self._progress = trio.Event()
            await self._progress.wait()

    async def _write(self) -> None:
        """Send the ready responses in order, until the connection ends."""
        try:
            while self._closed_because is None:
                self._wake_writer = trio.Event()
                while self._first_ready() is not None:
                    await self._write_first()
                await self._wake_writer.wait()
        except OSError as error:
            self.close(str(error))
        finally:
            self._note_progress()

    async def _write_first(self) -> None:
        """Send the first response. While it waits for the client, only its encoded bytes are kept."""
        slot = self._slots[0]
        if slot.rest is None:
            slot.rest = await self._encode_in_steps(slot) if slot.has_many_items else self._encode(slot)
            self._count_rest(slot, slot.rest)
            slot.response = _ENCODED
        await self._send(slot.rest)
        self._answered()

    def _encode(self, slot: _Slot) -> Sequence[Part]:
        """Returns the parts to send. If encoding fails, there are no parts, and the connection is closed."""
        response = slot.response
        assert response is not None
        if isinstance(response, EncodedAnswer):
            return response.parts if response.error is None else self._not_sent(slot, response.error)
        ctx = slot.ctx
        try:
            parts = encode_response(ctx.api_key, ctx.api_version, ctx.correlation_id, response)
        except EncodeError:
            return self._not_encodable(slot)
        if len(parts[0]) > self._most_answer_bytes:
            return self._not_sent(slot, f"{type(response).__name__} of {len(parts[0])} bytes")
        return parts

    async def _encode_in_steps(self, slot: _Slot) -> Sequence[Part]:
        assert isinstance(slot.response, Message)
        ctx, most = slot.ctx, self._most_answer_bytes
        if (withhold := slot.withhold) is not None:
            await with_pauses(withhold.in_steps(slot.response))
        try:
            return await write_response(ctx.api_key, ctx.api_version, ctx.correlation_id, slot.response, most)
        except TooLargeError as error:
            return self._not_sent(slot, str(error))
        except EncodeError:
            return self._not_encodable(slot)

    def _count_rest(self, slot: _Slot, rest: Sequence[Part]) -> None:
        """Count the part of a response that waits to be sent; ranges of files take no memory."""
        if self._budget.limited and not isinstance(slot.response, EncodedAnswer):
            slot.counted_bytes = sum(len(part) for part in rest if isinstance(part, bytes | bytearray | memoryview))
            self._count_answer(slot.counted_bytes)

    def _sink(self, ctx: RequestContext) -> Sink:
        withhold = None if ctx.asks_for_own_tags else withholder(ctx.api_key)

        def take(response: Message) -> None:
            self._metrics.note_response(ctx.api_key, response)
            if withhold is not None:
                withhold.at_once(response)

        return Sink(self._most_answer_bytes, self._count_answer, take)

    def _not_sent(self, slot: _Slot, reason: str) -> Sequence[Part]:
        logger.warning(
            "connection.response_not_sent",
            client=self._stream.peer,
            api_key=slot.ctx.api_key,
            api_version=slot.ctx.api_version,
            reason=reason,
            most_bytes=self._most_answer_bytes,
        )
        self.close(reason)
        return ()

    def _not_encodable(self, slot: _Slot) -> Sequence[Part]:
        logger.exception(
            "connection.response_not_encodable",
            client=self._stream.peer,
            api_key=slot.ctx.api_key,
            api_version=slot.ctx.api_version,
        )
        self.close("a response could not be encoded")
        return ()

    async def _send(self, parts: Sequence[Part]) -> None:
        self._sending = True
        try:
            await self._stream.send(parts)
        finally:
            self._sending = False
