"""Keeps the buffers of the assigned partitions full: one task and one fetch session per broker.

A broker with nothing to send parks a fetch for ``fetch_max_wait_ms``. If a partition becomes fetchable meanwhile, a
second request of the session follows at once. When this project's broker reads the second request, it answers the
first. Apache Kafka's broker reads the second request only when it has answered the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import anyio

from anabranch.client.config import ConsumerConfig
from anabranch.client.consumer.fetch_session import ConsumerFetchSession, FetchPosition, SessionRequest
from anabranch.client.consumer.read_committed import visible_batches
from anabranch.client.errors import (
    ClientClosedError,
    ErrorCode,
    KafkaError,
    LogTruncationError,
    OffsetOutOfRangeError,
    error_for,
)
from anabranch.client.net.connections import FETCH, Connections, backoff_ms
from anabranch.client.net.metadata import Metadata
from anabranch.client.subscription.fetched_batch import FetchedBatch, names_moved, without_response
from anabranch.client.subscription.subscription import (
    AssignedPartition,
    FetchState,
    Subscription,
)
from anabranch.client.tasks import Tasks
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.batch_layout import CODEC_MASK
from anabranch.protocol.generated.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from anabranch.protocol.records import iter_batches
from anabranch.protocol.sentinels import (
    CONSUMER_REPLICA_ID,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_EPOCH,
    NO_NODE,
    READ_COMMITTED,
)
from anabranch.protocol.types import Buffer, TopicPartition
from anabranch.runtime.channel import Channel, Pending
from anabranch.runtime.env import Env
from anabranch.runtime.signal import Signal

RESET_TIMESTAMPS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}

_FIRST_DIVERGENCE_VERSION = 12
_NEVER = float("inf")
_BACK_OFF = frozenset(
    {
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class _Plan(NamedTuple):
    """The partitions to fetch from a broker, and the reasons why other partitions were left out."""

    positions: dict[TopicPartition, FetchPosition]
    full: bool
    """Whether some left-out partition has a full buffer, which the user may read at any moment."""
    blocked: bool
    """Whether some left-out partition has a full buffer and must wait for another partition."""
    retry_at: float
    """The earliest end of a partition's backoff."""


class _Asked(NamedTuple):
    """A fetch without a response."""

    pending: Pending
    part: SessionRequest
    plan: _Plan
    versions: dict[TopicPartition, int]
    timeout_s: float
    deadline: float


class _Broker:
    """Signals to the task of one broker."""

    __slots__ = ("has_more", "wake")

    def __init__(self) -> None:
        self.wake = Signal()
        self.has_more = True
        """Whether a partition may have become fetchable from this broker."""


class Fetcher:
    """Fetches ahead of the user, at most ``max_partition_fetch_bytes`` per partition and ``fetch_max_bytes`` in all."""

    def __init__(
        self,
        env: Env,
        config: ConsumerConfig,
        subscription: Subscription,
        metadata: Metadata,
        connections: Connections,
        tasks: Tasks,
        on_data: Callable[[], None],
    ) -> None:
        self._env = env
        self._config = config
        self._subscription = subscription
        self._metadata = metadata
        self._connections = connections
        self._tasks = tasks
        self._on_data = on_data
        self._brokers: dict[int, _Broker] = {}
        self.on_blocked: Callable[[AssignedPartition], None] = lambda _: None
        """Called with a partition when a fetched batch of it has to wait."""
        metadata.on_update(self._on_metadata)

    def _on_metadata(self) -> None:
        for state in self._subscription.partitions.values():
            if state.refused_epoch not in (None, self._metadata.cluster.leader_epoch(state.tp)):
                state.refused_epoch = None
                state.refusals = 0
                state.retry_at = 0.0
        self.wake()

    def wake(self) -> None:
        """Look for partitions that became fetchable: assigned, positioned or resumed."""
        for tp in self._subscription.partitions:
            leader = self._metadata.cluster.leader(tp)
            if leader >= 0 and leader not in self._brokers:
                self._start(leader)
        for broker in self._brokers.values():
            broker.has_more = True
            broker.wake.set()

    def reports_divergence(self, tp: TopicPartition) -> bool:
        """Whether the next fetch response reports if the leader's log differs from the records read (KIP-595)."""
        node = self._metadata.leader(tp)
        connection = None if node is None else self._connections.existing(node, FETCH)
        return connection is not None and _reports_divergence(connection)

    def made_room(self) -> None:
        """Wake the tasks after buffers were read."""
        for broker in self._brokers.values():
            broker.wake.set()

    def _start(self, node_id: int) -> None:
        broker = self._brokers[node_id] = _Broker()
        self._tasks.start_soon(self._run, node_id, broker)

    async def _run(self, node_id: int, broker: _Broker) -> None:
        """Fetch from one broker until the client is closed."""
        session = ConsumerFetchSession()
        asked: deque[_Asked] = deque()
        failures = 0
        while True:
            try:
                if not asked and not await self._ask_first(node_id, broker, session, asked):
                    continue
                await self._answered(node_id, broker, session, asked)
                first = asked.popleft()
                empty = self._take_answer(node_id, session, first)
                failures = 0
            except KafkaError:
                asked.clear()
                session.reset()
                self._metadata.request_update()
                failures += 1
                pause_ms = backoff_ms(
                    failures,
                    self._config.retry_backoff_ms,
                    self._config.retry_backoff_max_ms,
                    self._env.rng.random(),
                )
                await anyio.sleep(pause_ms / 1000)
                continue
            except ClientClosedError:
                return
            if empty and first.plan.full and not asked:
                await broker.wake.wait(self._config.fetch_max_wait_ms / 1000)

    async def _ask_first(
        self, node_id: int, broker: _Broker, session: ConsumerFetchSession, asked: deque[_Asked]
    ) -> bool:
        """Send a fetch while none is in flight. Returns False, after a wait, if there is nothing to fetch."""
        node = self._metadata.node(node_id)
        connection = None if node is None else self._connections.existing(node, FETCH)
        plan = self._plan(node_id)
        if node is None or not plan.positions:
            await broker.wake.wait(plan.retry_at - self._env.clock.monotonic() if plan.retry_at < _NEVER else None)
            return False
        if connection is None:
            connection = await self._connections.get(node, FETCH)
            plan = self._plan(node_id)
            if not plan.positions:
                return False
        broker.has_more = False
        asked.append(self._post(connection, broker, session, plan))
        return True

    async def _answered(
        self, node_id: int, broker: _Broker, session: ConsumerFetchSession, asked: deque[_Asked]
    ) -> None:
        """Wait for the response to the first of ``asked``.

        If a partition that this request leaves out becomes fetchable, a second request follows.
        """
        first, clock = asked[0], self._env.clock
        plan = first.plan
        while not first.pending.settled:
            now = clock.monotonic()
            if now >= first.deadline:
                return
            may_ask = len(asked) == 1 and session.takes_more
            if may_ask and (broker.has_more or plan.blocked or now >= plan.retry_at):
                broker.has_more = False
                plan = self._plan(node_id)
                self._ask_more(node_id, broker, session, plan, asked)
            await broker.wake.wait(min(first.deadline, plan.retry_at if may_ask else _NEVER) - now)

    def _ask_more(
        self, node_id: int, broker: _Broker, session: ConsumerFetchSession, plan: _Plan, asked: deque[_Asked]
    ) -> None:
        node = self._metadata.node(node_id)
        connection = None if node is None else self._connections.existing(node, FETCH)
        if connection is not None and any(session.partitions.get(tp) != at for tp, at in plan.positions.items()):
            asked.append(self._post(connection, broker, session, plan))

    # ------------------------------------------------------------ asking

    def _plan(self, node_id: int) -> _Plan:
        config = self._config
        now = self._env.clock.monotonic()
        states = self._subscription.partitions
        room = config.fetch_max_bytes - sum(state.buffered_bytes for state in states.values())
        plan: dict[TopicPartition, FetchPosition] = {}
        full = blocked = False
        retry_at = _NEVER
        for tp, state in states.items():
            if state.state is not FetchState.FETCHING or state.paused or state.error is not None:
                continue
            if self._source(state, now) != node_id:
                continue
            if state.retry_at > now:
                retry_at = min(retry_at, state.retry_at)
                continue
            if state.buffer and (state.buffered_bytes >= config.max_partition_fetch_bytes or room <= 0):
                full = full or not state.is_blocked
                blocked = blocked or state.is_blocked
                continue
            # The request names at least the position's epoch. A broker that does not know this epoch is not the leader
            # now, and its log may end before the position.
            plan[tp] = FetchPosition(
                state.fetch_offset,
                max(self._metadata.cluster.leader_epoch(tp), state.last_fetched_epoch),
                state.last_fetched_epoch,
                config.max_partition_fetch_bytes,
            )
        return _Plan(plan, full, blocked, retry_at)

    def _source(self, state: AssignedPartition, now: float) -> int:
        """The broker to fetch from: the leader, or the replica that the leader named for this client's rack."""
        if state.read_replica >= 0:
            if now < state.read_replica_until and self._metadata.node(state.read_replica) is not None:
                return state.read_replica
            state.read_replica = NO_NODE
        return self._metadata.cluster.leader(state.tp)

    def _post(self, connection: Channel, broker: _Broker, session: ConsumerFetchSession, plan: _Plan) -> _Asked:
        """Send one request."""
        tps = plan.positions
        part = session.next_request(tps)
        # With a full buffer the broker must not park the request: the user may read the buffer at any moment.
        wait_ms = 0 if plan.full or part.is_urgent else self._config.fetch_max_wait_ms
        request = self._request(part, wait_ms, names_epochs=_reports_divergence(connection))
        pending = connection.post(request, parked_s=wait_ms / 1000)
        pending.on_settled = broker.wake.set
        versions = {tp: self._subscription.partitions[tp].version for tp in tps}
        timeout_s = (self._config.request_timeout_ms + wait_ms) / 1000
        return _Asked(pending, part, plan, versions, timeout_s, self._env.clock.monotonic() + timeout_s)

    def _take_answer(self, node_id: int, session: ConsumerFetchSession, asked: _Asked) -> bool:
        """Process a response, or raise its error. Returns True if the response has nothing for the user."""
        response: FetchResponse = asked.pending.result(asked.timeout_s)
        if not session.on_response(asked.part, ErrorCode.of(response.error_code), response.session_id):
            return False
        brought = False
        for topic in response.responses:
            for data in topic.partitions:
                tp = TopicPartition(topic.topic, data.partition_index)
                if data.error_code:
                    session.refused(tp)
                state = self._subscription.partitions.get(tp)
                position = asked.plan.positions.get(tp)
                if state is None or position is None or state.version != asked.versions[tp]:
                    continue
                if state.fetch_offset == position.offset and state.state is FetchState.FETCHING:
                    brought = self._take(node_id, state, position, data) or brought
        if brought:
            self._on_data()
        return not brought

    def _request(self, part: SessionRequest, wait_ms: int, *, names_epochs: bool) -> FetchRequest:
        config = self._config
        topics: dict[str, FetchTopic] = {}
        for (name, partition), position in part.send.items():
            topics.setdefault(name, FetchTopic(topic=name)).partitions.append(
                FetchPartition(
                    partition=partition,
                    current_leader_epoch=position.current_leader_epoch,
                    fetch_offset=position.offset,
                    last_fetched_epoch=position.last_fetched_epoch if names_epochs else NO_EPOCH,
                    partition_max_bytes=position.max_bytes,
                )
            )
        forgotten: dict[str, ForgottenTopic] = {}
        for name, partition in part.forget:
            forgotten.setdefault(name, ForgottenTopic(topic=name)).partitions.append(partition)
        return FetchRequest(
            replica_id=CONSUMER_REPLICA_ID,
            max_wait_ms=wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=READ_COMMITTED if config.isolation_level == "read_committed" else 0,
            session_id=part.session_id,
            session_epoch=part.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
            rack_id=config.client_rack or "",
        )

    # ------------------------------------------------------------ taking answers

    def _take(self, node_id: int, state: AssignedPartition, asked: FetchPosition, data: PartitionData) -> bool:
        """Process one partition's response. Returns True if the response has something for the user."""
        error = ErrorCode.of(data.error_code)
        if error is not ErrorCode.NONE:
            return self._take_error(node_id, state, asked, error)
        state.refusals = 0
        diverging = data.diverging_epoch
        if diverging is not None and diverging.epoch >= 0:
            if diverging.end_offset < asked.offset:
                truncate(state, diverging.end_offset, diverging.epoch, self._config.auto_offset_reset)
                return True
            # The log differs but is long enough: reading continues from here, as after OffsetForLeaderEpoch.
            state.last_fetched_epoch = diverging.epoch
            return False
        state.high_watermark = data.high_watermark
        state.last_stable_offset = data.last_stable_offset
        if data.log_start_offset >= 0:
            state.log_start_offset = data.log_start_offset
        if data.preferred_read_replica >= 0:
            state.read_replica = data.preferred_read_replica
            state.read_replica_until = self._env.clock.monotonic() + self._config.metadata_max_age_ms / 1000
            self.wake()
            return False
        records = data.records
        if not isinstance(records, bytes | bytearray | memoryview) or len(records) == 0:
            before = state.position
            state.pass_start(data.log_start_offset)
            return state.position != before
        try:
            return self._buffer(state, data, without_response(records))
        except KafkaError as damaged:
            state.error = error_for(damaged.code, f"{state.tp} from offset {state.fetch_offset}: {damaged.message}")
            return True

    def _buffer(self, state: AssignedPartition, data: PartitionData, records: Buffer) -> bool:
        config = self._config
        aborted = [(a.producer_id, a.first_offset) for a in data.aborted_transactions or ()]
        batches = iter_batches(
            records, allow_partial_tail=True, max_decompressed_bytes=config.max_decompressed_batch_bytes
        )
        read_committed = config.isolation_level == "read_committed"
        topic = self._metadata.cluster.topics.get(state.tp.topic)
        is_resized = topic is not None and topic.ordered_delivery and topic.layout_version > 0
        in_plain = is_resized and names_moved(records)
        added = False
        for batch, visible in visible_batches(batches, aborted, read_committed=read_committed):
            if batch.last_offset < state.fetch_offset:
                continue
            if config.check_crcs:
                batch.ensure_valid()
            may_hold_moved = in_plain or (is_resized and batch.attributes & CODEC_MASK != 0)
            state.add(FetchedBatch(batch, state.fetch_offset, visible=visible, may_hold_moved=may_hold_moved))
            added = True
        if state.has_blocked:
            self.on_blocked(state)
        return added

    def _take_error(self, node_id: int, state: AssignedPartition, asked: FetchPosition, error: ErrorCode) -> bool:
        config = self._config
        if state.read_replica == node_id:
            state.read_replica = NO_NODE  # the follower cannot serve, so the leader is asked
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            if self._metadata.cluster.leader(state.tp) != node_id:
                return False
            timestamp = RESET_TIMESTAMPS.get(config.auto_offset_reset)
            if timestamp is None:
                state.error = OffsetOutOfRangeError({state.tp: asked.offset})
            elif state.buffer:
                state.retry_at = self._env.clock.monotonic() + config.retry_backoff_ms / 1000
            else:
                state.reset(timestamp)
            return True
        if error is ErrorCode.FENCED_LEADER_EPOCH:
            self._take_refusal(state)
            return False
        if error.refreshes_metadata:
            self._metadata.request_update()
        if error.retriable or error in _BACK_OFF:
            state.retry_at = self._env.clock.monotonic() + config.retry_backoff_ms / 1000
            return False
        state.error = error_for(error, f"{state.tp}: {error.message}")
        return True

    def _take_refusal(self, state: AssignedPartition) -> None:
        """Request newer metadata, because the broker knows a newer leader epoch (hole 28).

        Each further refusal makes the pause longer.

        The partition is fetched again as soon as the metadata differs from the refused leader epoch.
        """
        config = self._config
        state.refusals += 1
        state.refused_epoch = self._metadata.cluster.leader_epoch(state.tp)
        pause_ms = backoff_ms(
            state.refusals, config.layout_backoff_ms, config.layout_backoff_max_ms, self._env.rng.random()
        )
        state.retry_at = self._env.clock.monotonic() + pause_ms / 1000
        self._metadata.hurry_update()


def _reports_divergence(connection: Channel) -> bool:
    return connection.version_of(ApiKey.FETCH) >= _FIRST_DIVERGENCE_VERSION


def truncate(state: AssignedPartition, end_offset: int, epoch: int, auto_offset_reset: str) -> None:
    """Go back to ``end_offset``: the log lost the later records. Without a reset policy, set an error instead."""
    if auto_offset_reset == "none":
        state.error = LogTruncationError({state.tp: end_offset})
        state.validated()
        return
    position = min(state.position, end_offset)
    state.seek(position)
    state.position_epoch = state.last_fetched_epoch = epoch
