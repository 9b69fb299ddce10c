"""Fetch (1): read record batches, waiting for ``min_bytes`` up to ``max_wait_ms``.

Supports the sessions of KIP-227 (version 7), the leader epochs of KIP-320 (9) and the diverging epoch of KIP-595 (12).
Records are file ranges, sent without being read here. A consumer reads up to the high watermark, with read_committed up
to the last stable offset. KIP-253's layouts do not matter here: each batch carries its leader epoch, and from this
epoch a consumer knows which records it has to wait for. A consumer that does not wait by itself may get less: for this
consumer the log seems to end at the first withheld offset.
A fetch of very many partitions gets no session, or ends its session, if most of them have errors: a session would keep
partitions that may not exist. The client then sends a full fetch again, as after Kafka's answer with session id 0.
A consumer whose last fetch had nothing but errors to answer waits ``fetch.error.delay.ms`` for the same answer: some
clients repeat such a fetch at once. The first error is answered at once, because it may mean that the leader moved.
Skipped: preferred read replicas (KIP-392; always -1), topic ids (version 13).
"""

from __future__ import annotations

import copy

from anabranch.broker.deferred import Deferred
from anabranch.broker.handlers.fetch_read import FetchRead, ReadLimits
from anabranch.broker.log.cold_reads import ColdError
from anabranch.broker.replication.delayed_fetch import DelayedFetch, DelayedRefusal
from anabranch.broker.replication.fetch_session import FetchSession, FetchTarget
from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.fetch import FetchRequest, FetchResponse
from anabranch.protocol.sentinels import (
    CONSUMER_REPLICA_ID,
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    INVALID_SESSION_ID,
    READ_COMMITTED,
)
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.pauses import with_pauses
from anabranch.runtime.turns import pause

_FIRST_SESSION_VERSION = 7
_FULL_FETCHES = (FINAL_SESSION_EPOCH, INITIAL_SESSION_EPOCH)
LARGE_BYTES = 16 * 1024
"""The partitions of a larger request are added in steps."""
_LEAST_PARTITION_BYTES = 24
READ_AT_ONCE = 256
"""The number of partitions that are read before other requests are served."""
MOST_DELAYED = 10_000
"""A fetch of more partitions with nothing but errors is not delayed: what waits is answered in one pass."""


def handle(ctx: RequestContext, request: FetchRequest) -> Answer:
    if request.replica_id < 0:
        return _fetch(ctx, request)
    with ctx.node.purgatory:  # the records that a follower has now are acknowledged in this turn
        return _fetch(ctx, request)


def _fetch(ctx: RequestContext, request: FetchRequest) -> Answer:
    is_large = ctx.request_bytes > LARGE_BYTES
    target = _target(ctx, request, is_large)
    if isinstance(target, ErrorCode):
        return FetchResponse(error_code=target)
    is_follower = request.replica_id >= 0
    limits = ReadLimits(
        replica_id=request.replica_id,
        replica_epoch=request.replica_epoch,
        max_bytes=request.max_bytes if is_follower else min(request.max_bytes, ctx.node.config.values.fetch_max_bytes),
        read_committed=request.isolation_level == READ_COMMITTED,
        full=request.session_epoch in _FULL_FETCHES or ctx.api_version < _FIRST_SESSION_VERSION,
        reports_divergence=ctx.api_version >= 12,
        is_stock=request.replica_id == CONSUMER_REPLICA_ID and not ctx.keeps_order,
    )
    read = FetchRead(ctx.node.replicas, ctx.node.hosted.leader_throttle, ctx.node.metrics, target, limits)
    if is_large or len(target.dirty) > READ_AT_ONCE:
        return _answer_later(ctx, request, read, None)
    try:
        read.run(waits=False)
    except ColdError as cold:
        return _answer_later(ctx, request, read, cold.with_traceback(None))
    return _waiting(ctx, request, read) or read.response()


def _waiting(
    ctx: RequestContext, request: FetchRequest, read: FetchRead, *, is_large: bool = False
) -> Deferred[FetchResponse | None] | None:
    """The answer, if it has to wait (``DelayedFetch``); None if there is enough to answer."""
    for key in read.withheld:
        ctx.node.metrics.withheld_fetches.add(key.topic)
    if _is_enough(request, read):
        return _repeated_refusal(ctx, request, read, is_large=is_large)
    read.watch()
    deadline = ctx.node.env.clock.monotonic() + request.max_wait_ms / 1000
    kept = ctx.node.hosted.waiting_fetches
    park = DelayedFetch.park
    answer = park(ctx.node.purgatory, deadline, read, request.min_bytes, kept, ctx.session, is_large=is_large)
    answer.on_abandoned = read.target.abandon
    return answer


def _repeated_refusal(
    ctx: RequestContext, request: FetchRequest, read: FetchRead, *, is_large: bool
) -> Deferred[FetchResponse | None] | None:
    """The answer after a delay, if the fetch has only errors like the connection's fetch before; otherwise None."""
    is_refused = read.has_only_errors and not read.limits.is_follower
    is_repeated, ctx.session.fetch_was_refused = is_refused and ctx.session.fetch_was_refused, is_refused
    if not is_repeated:
        return None
    delay_ms = ctx.node.config.values.fetch_error_delay_ms
    wait_ms = min(request.max_wait_ms, delay_ms * (1 + ctx.node.env.rng.random()))
    if wait_ms <= 0 or len(read.target.partitions) > MOST_DELAYED:
        return None
    read.watch()
    deadline = ctx.node.env.clock.monotonic() + wait_ms / 1000
    kept = ctx.node.hosted.waiting_fetches
    return DelayedRefusal.park(ctx.node.purgatory, deadline, read, 1, kept, ctx.session, is_large=is_large)


def _is_enough(request: FetchRequest, read: FetchRead) -> bool:
    found = read.must_answer or read.size_bytes >= request.min_bytes or read.target.is_abandoned
    return request.max_wait_ms <= 0 or found or not read.target.partitions


def _answer_later(
    ctx: RequestContext,
    request: FetchRequest,
    read: FetchRead,
    cold: ColdError | None,
) -> Answer:
    """Read in steps while other requests are served; the first step would wait for ``cold``.

    Until all partitions are read, the session accepts no other fetch, and its client gets no response. The decoded
    request counts until then. The work ends with the client's connection.
    """
    target = read.target
    target.is_read = True
    read.watch()
    steps = read.run_in_steps()
    ctx.keeps_request = True
    added = [request] if ctx.request_bytes > LARGE_BYTES else []
    request = copy.copy(request)
    request.topics, request.forgotten_topics_data = [], []  # what waits needs the partitions of ``target`` only

    async def read_all() -> bool:
        try:
            if added and not await _add_in_steps(ctx, added.pop(), target):
                return False
            if cold is not None:
                await cold.warm()
            for number, found in enumerate(steps, 1):
                if found is not None:
                    await found.warm()
                elif number % READ_AT_ONCE == 0:
                    await pause()
            if not _is_enough(request, read):
                read.run()  # reads the partitions that changed meanwhile
            ctx.free_request()
            return True
        finally:
            target.is_read = False

    async def run() -> FetchResponse:
        try:
            if not await read_all():
                return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            waiting = None
            if isinstance(target, FetchSession) and target.session_id == INVALID_SESSION_ID:
                target.close()
            else:
                if len(target.partitions) > READ_AT_ONCE and read.is_mostly_refused:
                    ctx.node.hosted.fetch_sessions.remove(target.session_id)
                waiting = _waiting(ctx, request, read, is_large=True)
            if waiting is not None:
                await waiting.value()
            return await with_pauses(read.response_in_steps())
        except BaseException:
            if target.session_id == INVALID_SESSION_ID:
                target.close()
            raise

    later = ctx.node.later(run, lambda error: FetchResponse(error_code=error.code), may_stop=True)
    stop = later.on_abandoned

    def abandon() -> None:
        target.abandon()
        if stop is not None:
            stop()

    later.on_abandoned = abandon
    return later


async def _add_in_steps(ctx: RequestContext, request: FetchRequest, target: FetchTarget) -> bool:
    """Add the partitions of a large request; False if the session that it continues has no room for them."""
    for number, topic in enumerate(request.forgotten_topics_data):
        if number % READ_AT_ONCE == 0:
            await pause()
        for first in range(0, len(topic.partitions), READ_AT_ONCE):
            target.forget(
                TopicPartition(topic.topic, index) for index in topic.partitions[first : first + READ_AT_ONCE]
            )
            if first:
                await pause()
    for _ in target.add_in_steps(request):
        await pause()
    if not isinstance(target, FetchSession) or ctx.node.hosted.fetch_sessions.count(target):
        return True
    return request.session_epoch in _FULL_FETCHES  # answered without a session that can be continued


def _target(ctx: RequestContext, request: FetchRequest, is_large: bool) -> FetchTarget | ErrorCode:
    """The partitions to read: those of the session, of a new session, or of the request alone.

    The partitions of a large request are added later.
    """
    sessions = ctx.node.hosted.fetch_sessions
    if ctx.api_version < _FIRST_SESSION_VERSION:
        return _sessionless(ctx, request, is_large)
    if request.session_epoch in _FULL_FETCHES:
        if request.session_id != INVALID_SESSION_ID:
            sessions.remove(request.session_id)
        if request.session_epoch == FINAL_SESSION_EPOCH:
            return _sessionless(ctx, request, is_large)
        if is_large:
            size = ctx.request_bytes // _LEAST_PARTITION_BYTES
        else:
            size = sum(len(topic.partitions) for topic in request.topics)
        created = sessions.create(size, is_follower=request.replica_id >= 0) if size else None
        if created is None:
            return _sessionless(ctx, request, is_large)
        sessions.touch(created, ctx.session.fetch_sessions)
        if not is_large:
            created.add(request)
            sessions.count(created)
        return created
    session = sessions.get(request.session_id)
    if session is None:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if session.epoch != request.session_epoch or session.is_read:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    return _continue(ctx, session, request, is_large)


def _continue(
    ctx: RequestContext, session: FetchSession, request: FetchRequest, is_large: bool
) -> FetchSession | ErrorCode:
    """Add the request's partitions to the session. A waiting fetch of the session is answered first.

    A session that finds no room for more partitions ends, and its client begins a new one.
    """
    session.answer_parked()
    session.next_epoch()
    ctx.node.hosted.fetch_sessions.touch(session, ctx.session.fetch_sessions)
    if is_large:
        return session
    session.forget(
        TopicPartition(topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    )
    session.add(request)
    return session if ctx.node.hosted.fetch_sessions.count(session) else ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def _sessionless(ctx: RequestContext, request: FetchRequest, is_large: bool) -> FetchTarget:
    target = FetchTarget(ctx.node.purgatory)
    if not is_large:
        target.watches = False
        target.add(request)
    return target
