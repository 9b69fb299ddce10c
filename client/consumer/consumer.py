"""The public consumer."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Generic, Self, Unpack

import anyio
import anyio.lowlevel

from anabranch.client.arguments import each, judged, topic_partition
from anabranch.client.client_metrics import CONSUMER_GROUP, CONSUMER_TRAFFIC, ConsumerTraffic, Metrics
from anabranch.client.cluster import Cluster
from anabranch.client.config import ConsumerConfig
from anabranch.client.consumer.arguments import CONSUMER_RULES
from anabranch.client.consumer.chosen_offsets import Offsets, to_commit, to_store
from anabranch.client.consumer.fetcher import Fetcher
from anabranch.client.consumer.position_resolver import PositionResolver
from anabranch.client.errors import ClientClosedError, ClientFailedError, IllegalStateError, KafkaTimeoutError
from anabranch.client.group.assignors import resolve_assignors
from anabranch.client.group.coordinator_link import CoordinatorLink, OffsetAndMetadata
from anabranch.client.group.listener import PartitionKeyListener, RebalanceListener
from anabranch.client.group.membership import GroupMembership
from anabranch.client.lifecycle import Client
from anabranch.client.net.offsets import OffsetAndTimestamp, OffsetQueries
from anabranch.client.options import ConsumerOptions, Key, Value
from anabranch.client.ordered_delivery.blocked_partition import BlockedPartition
from anabranch.client.ordered_delivery.delivery import OrderedDelivery
from anabranch.client.subscription.fetched_batch import ConsumerRecord, Deserializers, Records
from anabranch.client.subscription.subscription import (
    AssignedPartition,
    FetchState,
    Mode,
    Subscription,
    TakenRecords,
)
from anabranch.client.tasks import Tasks
from anabranch.protocol.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from anabranch.runtime.signal import Signal
from anabranch.zk_schemas.config_def import ConfigError

_UNCLEAN_LEAVE_S = 1.0
"""Seconds for which a consumer tries to leave its group after an exception or a cancellation."""
_FETCHING = FetchState.FETCHING  # the look-up in an enum is slow in Python 3.11


@judged(CONSUMER_RULES)
class Consumer(Client[ConsumerConfig], Generic[Key, Value]):
    """``anabranch.Consumer`` with an explicit environment."""

    def __init__(
        self,
        *topics: str,
        key_deserializer: Callable[[bytes | None], Key] | None = None,
        value_deserializer: Callable[[bytes | None], Value] | None = None,
        env: Env,
        **config: Unpack[ConsumerOptions],
    ) -> None:
        deserializers = {"key_deserializer": key_deserializer, "value_deserializer": value_deserializer}
        super().__init__(ConsumerConfig.parse({**config, **deserializers}), env)
        self._assignors = resolve_assignors(self._config.partition_assignment_strategy)
        if len({a.name for a in self._assignors}) != len(self._assignors):
            names = ", ".join(a.name for a in self._assignors)
            raise ConfigError("partition_assignment_strategy", f"names an assignor twice: {names}")
        self._deserializers = Deserializers(self._config.key_deserializer, self._config.value_deserializer)
        self._subscription = Subscription(
            has_group=self._config.group_id is not None, stores=not self._config.enable_auto_offset_store
        )
        self._changed = Signal()
        self._coordinator: GroupMembership | None = None
        self._link: CoordinatorLink | None = None
        self._fetcher: Fetcher
        self._queries: OffsetQueries
        self._positions: PositionResolver
        self._ordered: OrderedDelivery
        self._current: AssignedPartition | None = None
        self._current_in: Mapping[TopicPartition, AssignedPartition] = {}
        """The assignment that ``_current`` belongs to. The subscription replaces it when it changes."""
        self._since_poll = 0
        self._traffic = ConsumerTraffic()
        self._listener = RebalanceListener()
        self._key_listener = PartitionKeyListener()
        self._before_records: Callable[[], None] | None = None
        """Called before each look for records; may raise."""
        self._announced: frozenset[TopicPartition] = frozenset()
        """Without a group: the partitions that the listener was last called with."""
        self._has_parts = False
        """Whether ``_start`` has made the parts of the consumer."""
        if topics:
            self.subscribe(topics)

    async def _start(self, tasks: Tasks) -> None:
        config = self._config
        metadata = self._metadata = self._make_metadata(allow_auto_create=config.allow_auto_create_topics)
        self._queries = self._make_queries()
        self._fetcher = Fetcher(
            self._env, config, self._subscription, metadata, self._connections, tasks, self._changed.set
        )
        if config.group_id is not None:
            self._link = self._make_link(config.group_id)
            self._coordinator = GroupMembership(
                self._env,
                config,
                self._link,
                self._assignors,
                self._subscription,
                metadata,
                tasks,
                self._changed.set,
            )
            tasks.start_soon(self._coordinator.run_heartbeats)
        self._positions = PositionResolver(
            self._env,
            config,
            self._subscription,
            self._queries,
            metadata,
            self._link,
            tasks,
            self._fetcher.reports_divergence,
            self._on_moved,
        )
        self._ordered = OrderedDelivery(
            self._env, config, self._subscription, metadata, self._connections, self._coordinator, self._on_positions
        )
        self._fetcher.on_blocked = self._ordered.on_blocked
        self._ordered.start(tasks)
        metadata.on_update(self._on_metadata)
        self._connections.on_lost = self._on_lost
        tasks.start_soon(metadata.run)
        self._has_parts = True
        if self._subscription.mode is not Mode.NONE:
            self._take_up()

    async def _stop(self, clean: bool) -> None:
        if self._coordinator is None:
            return
        left = False
        try:
            if clean:
                with anyio.move_on_after(self._config.default_api_timeout_ms / 1000):
                    await self._coordinator.close(commit=True)
                    left = True
        finally:
            if not left:  # an exception, a cancellation or a time-out: the group need not wait for the session's end
                with anyio.move_on_after(_UNCLEAN_LEAVE_S, shield=True):
                    await self._coordinator.leave()

    async def _end(self, clean: bool, timeout_ms: float | None = None) -> None:
        try:
            await super()._end(clean, timeout_ms)
        finally:
            self._current = None

    def _on_fork(self) -> None:
        super()._on_fork()
        self._current = None

    def _on_failure(self, failure: ClientFailedError) -> None:
        self._changed.set()
        self._positions.settled.set()

    def _on_moved(self) -> None:
        """React to positions set by the user: other partitions may have to wait for these partitions again."""
        self._current = None
        self._on_positions()

    def _on_positions(self) -> None:
        if self._has_parts:
            self._fetcher.wake()
        self._changed.set()

    def _on_metadata(self) -> None:
        if self._subscription.takes_every_partition and self._subscription.follow(
            self._metadata.cluster, exclude_internal=self._config.exclude_internal_topics
        ):
            self._fetcher.wake()
        self._subscription.on_metadata(self._metadata.cluster)
        self._positions.on_metadata(self._metadata.cluster.topics)
        self._changed.set()

    def _on_lost(self, node_id: int) -> None:
        self._metadata.request_update()

    # ------------------------------------------------------------ what to read

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: object | None = None,
        partition_key_listener: object | None = None,
    ) -> None:
        """Read ``topics``, or all topics whose name ``pattern`` matches from its start, as a member of the group.

        Without a ``group_id`` this consumer reads every partition, including those created later. The call may come
        before the consumer is started.

        The call replaces the previous subscription. ``listener`` may have ``on_partitions_revoked``,
        ``on_partitions_assigned`` and ``on_partitions_lost``, plain or async, each taking a list of TopicPartition.

        ``partition_key_listener`` is called in the same way for keys that move between partitions while a topic is
        resized (KIP-253). ``on_partition_key_maybe_revoked`` flushes the state of the partitions' keys before another
        member may continue with these keys. ``on_partition_key_assigned`` loads this state before the first record of
        such a key is delivered.
        """
        self._ensure_not_closed()
        if (topics is None) == (pattern is None):
            raise ValueError("subscribe takes either topics or a pattern")
        if pattern is not None:
            self._subscription.subscribe_pattern(pattern)
        else:
            self._subscription.subscribe(topics or ())
        self._key_listener = PartitionKeyListener(partition_key_listener)
        self._listener = RebalanceListener(listener)
        self._announced = frozenset()
        self._take_up()

    def _take_up(self) -> None:
        """Begin to read as the subscription says, if the consumer is started."""
        if not self._has_parts:
            return
        subscription, metadata = self._subscription, self._metadata
        self._ordered.listener = self._key_listener
        if subscription.mode is Mode.PATTERN:
            metadata.all_topics = True
            metadata.request_update()
        elif subscription.mode is Mode.MANUAL:
            metadata.want_only({tp.topic for tp in subscription.partitions})
        else:
            metadata.want_only(subscription.topics)
        if self._coordinator is not None and subscription.is_group_managed:
            self._coordinator.listener = self._listener
            self._coordinator.request_rejoin()
        else:
            self._on_metadata()
            self._fetcher.wake()

    def assign(self, partitions: Iterable[TopicPartition], *, partition_key_listener: object | None = None) -> None:
        """Read exactly ``partitions``, outside of any group's rebalances.

        Keys keep their order among the assigned partitions. If a partition's keys come from a partition that is not
        assigned (the parent), the assigned partition waits until ``group_id`` has committed a high enough offset in the
        parent. If the group has no offset in the parent, ``ordered_delivery_unassigned_parent`` decides.
        ``partition_key_listener`` is as in ``subscribe``.
        """
        self._ensure_not_closed()
        self._subscription.assign(partitions)
        self._key_listener = PartitionKeyListener(partition_key_listener)
        self._take_up()

    def incremental_assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read ``partitions`` besides those that are assigned, which keep their positions.

        Raises ``IllegalStateError`` if one of them is assigned already, or topics are subscribed.
        """
        self._ensure_not_closed()
        self._subscription.assign_more(partitions)
        self._take_up()

    def incremental_unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading ``partitions``, which must be assigned. The others keep their positions. Nothing is committed.

        If other assigned partitions wait for one of them after a resize, they wait from then on for the commits of the
        group; see ``assign``.
        """
        self._ensure_not_closed()
        self._subscription.assign_fewer(partitions)
        self._take_up()

    async def unsubscribe(self) -> None:
        """Stop reading, and leave the group."""
        self._ensure_not_closed()
        if self._coordinator is not None and self._subscription.is_group_managed:
            await self._coordinator.close(commit=True)
        self._subscription.unsubscribe()
        if self._has_parts:
            self._metadata.all_topics = False
            self._metadata.want_only(())

    def subscription(self) -> frozenset[str]:
        """The subscribed topics, including those that a pattern matches."""
        self._ensure_not_closed()
        return self._subscription.topics

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads at the moment."""
        self._ensure_not_closed()
        return frozenset(self._subscription.partitions)

    def pause(self, *partitions: TopicPartition) -> None:
        """Deliver nothing from ``partitions`` until ``resume``."""
        self._ensure_not_closed()
        for tp in partitions:
            self._subscription.state(tp).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Deliver records of ``partitions`` again."""
        self._ensure_not_closed()
        for tp in partitions:
            self._subscription.state(tp).paused = False
        self._on_positions()

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        self._ensure_not_closed()
        return frozenset(tp for tp, state in self._subscription.partitions.items() if state.paused)

    # ------------------------------------------------------------ records

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, Records[Key, Value]]:
        """Buffered records of ``partitions`` or all, at most ``max_records`` (default ``max_poll_records``).

        Waits up to ``timeout_ms`` for the first record. The result is empty if no record arrives. Records are decoded
        while they are read.
        """
        return await self._take(partitions, timeout_ms, max_records)

    async def _take(
        self, partitions: Iterable[TopicPartition], timeout_ms: float, max_records: int | None, most: int | None = None
    ) -> dict[TopicPartition, Records[Key, Value]]:
        """``getmany`` of at most ``most`` partitions."""
        self._ensure_open()
        limit = self._config.max_poll_records if max_records is None else max_records
        self._since_poll = 0
        deadline = self._env.clock.monotonic() + timeout_ms / 1000
        await anyio.lowlevel.checkpoint()
        while True:
            await self._call_back()
            if self._before_records is not None:
                self._before_records()
            self._positions.start()
            found: dict[TopicPartition, Records[Any, Any]] = self._subscription.collect(
                limit, partitions, self._deserializers, most=most
            )
            if found:
                if self._ordered.hand_overs.undelivered:
                    self._ordered.note_delivered(found)
                self._fetcher.made_room()
                self._traffic.records += sum(map(len, found.values()))
                return found
            left = deadline - self._env.clock.monotonic()
            if left <= 0:
                return {}
            await self._changed.wait(min(left, self._config.heartbeat_interval_ms / 1000))
            self._ensure_open()

    async def _take_one(self, limit: int, timeout_ms: float | None = None) -> TakenRecords | None:
        """Between 1 and ``limit`` records of one partition, however long it takes; None after ``timeout_ms``."""
        wait_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        while True:
            for records in (await self._take((), wait_ms, limit, most=1)).values():
                return self._taken(records)
            if timeout_ms is not None:
                return None

    def _taken(self, records: Records[Any, Any]) -> TakenRecords:
        state = self._subscription.state(records.partition)
        return TakenRecords(records, state, state.version)

    def _give_back(self, taken: TakenRecords, read: int) -> None:
        """Deliver again, later, what was taken last, but for the first ``read`` records.

        If the position was set meanwhile, or the partition is not assigned any more, nothing is delivered again.
        """
        state = taken.state
        if state.version == taken.version and self._subscription.partitions.get(state.tp) is state:
            state.give_back(taken.records.spans, read)
            self._traffic.records -= len(taken.records) - read

    async def _call_back(self) -> None:
        """Run the callbacks that are due. Partitions that the member lost during a long callback are given up."""
        if self._subscription.takes_every_partition:
            await self._announce_followed()
        while True:
            if self._coordinator is not None:
                await self._coordinator.poll()
                if self._coordinator.has_lost:
                    continue
            await self._ordered.poll()
            if self._coordinator is None or not self._coordinator.has_lost:
                return

    async def _announce_followed(self) -> None:
        owned, announced = frozenset(self._subscription.partitions), self._announced
        if owned == announced:
            return
        self._announced = owned
        if gone := announced - owned:
            await self._listener.lost(sorted(gone))
        if new := owned - announced:
            await self._listener.assigned(sorted(new))

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord[Key, Value]:
        """The next record, however long it takes. The position moves by one record."""
        if partitions:
            partitions = tuple(each(topic_partition)("partitions", partitions))
        record = self._next_buffered(partitions)
        while record is None:
            found = await self.getmany(*partitions, timeout_ms=self._config.default_api_timeout_ms, max_records=1)
            for records in found.values():
                record = self._first(records)
        return record

    async def poll(self, timeout: float | None = None) -> ConsumerRecord[Key, Value] | None:
        """The next record, as ``getone``; None if there is none for ``timeout`` seconds. By default it waits.

        As with ``getone``, the records that were returned before count as processed.
        """
        if timeout is None:
            return await self.getone()
        record = self._next_buffered(())
        if record is not None:
            return record
        found = await self._take((), timeout * 1000, 1)
        for records in found.values():
            return self._first(records)
        return None

    def _first(self, records: Records[Key, Value]) -> ConsumerRecord[Key, Value]:
        """The only record of ``getmany``; the next one is read from the same partition."""
        self._current_in = self._subscription.partitions
        self._current = self._current_in.get(records.partition)
        return records[0]

    def _next_buffered(self, partitions: tuple[TopicPartition, ...]) -> ConsumerRecord[Key, Value] | None:
        """The next buffered record of the partition that was read last; None if a round of ``getmany`` is due."""
        state = self._current
        if state is None or not state.buffer or self._since_poll >= self._config.max_poll_records:
            return None
        if (self._coordinator is not None and self._coordinator.needs_poll()) or self._ordered.needs_poll(state):
            return None
        if state.paused or state.state is not _FETCHING or (partitions and state.tp not in partitions):
            return None
        if self._subscription.partitions is not self._current_in:
            return None
        self._since_poll += 1  # these two also count a record whose deserializer fails
        self._traffic.records += 1
        record = state.take_row()
        if record is not None:
            return record
        spans = state.take(1)
        if not spans:
            self._traffic.records -= 1
            return None
        state.prepare_rows(self._deserializers, self._config.max_poll_records - self._since_poll)
        records: Records[Any, Any] = Records(state.tp, spans, self._deserializers)
        return records[0]

    def __aiter__(self) -> Self:
        self._ensure_open()
        return self

    async def __anext__(self) -> ConsumerRecord[Key, Value]:
        if self._closed and not self._forked:
            raise StopAsyncIteration
        record = self._next_buffered(())
        if record is not None:
            return record
        try:
            return await self.getone()
        except ClientFailedError:
            raise
        except ClientClosedError:
            raise StopAsyncIteration from None

    def batches(self, *, max_records: int | None = None) -> AsyncIterator[Records[Key, Value]]:
        """Iterate over records, of one partition after the other, for as long as the consumer is open.

            async for records in consumer.batches():
                await store(records.partition, list(records))

        When the caller takes the next records, the previous records count as processed.
        """
        self._ensure_open()
        return self._until_closed(max_records)

    async def _until_closed(self, max_records: int | None) -> AsyncIterator[Records[Key, Value]]:
        while not self._closed or self._forked:
            try:
                found = await self._take((), self._config.default_api_timeout_ms, max_records, most=1)
            except ClientClosedError:
                if not self._closed:
                    raise
                return
            for records in found.values():
                yield records

    def explain_blocked(self) -> tuple[BlockedPartition, ...]:
        """Returns each assigned partition that is blocked so that its keys keep their order, with its waits."""
        self._ensure_open()
        return self._ordered.explain_blocked()

    def metrics(self) -> Metrics:
        """Metrics of this consumer's records and of resizes, by group and name.

        docs/metrics.md describes each metric; ``anabranch.prometheus`` exports them to Prometheus.
        """
        self._ensure_open()
        states = list(self._subscription.partitions.values())
        lags = [max(0, s.high_watermark - s.position) for s in states if s.high_watermark >= 0 and s.position >= 0]
        return {
            CONSUMER_TRAFFIC: self._traffic.values(lags, len(states)),
            CONSUMER_GROUP: self._ordered.metrics(),
        }

    # ------------------------------------------------------------ positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Deliver from ``offset`` next."""
        self._ensure_not_closed()
        self._subscription.state(partition).seek(offset)
        self._on_moved()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Deliver from the first existing record. If no partition is named, this applies to all assigned partitions."""
        await self._reset(partitions, EARLIEST_TIMESTAMP)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Deliver records written from now on. If no partition is named, this applies to all assigned partitions."""
        await self._reset(partitions, LATEST_TIMESTAMP)

    async def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Go back to the committed offsets. If no partition is named, this applies to all assigned partitions."""
        chosen = partitions or tuple(self._subscription.partitions)
        committed = await self._need_link().fetch_offsets(chosen, self._config.default_api_timeout_ms)
        for tp, offset in committed.items():
            self._subscription.state(tp).seek(offset.offset, offset.leader_epoch)
        self._on_moved()

    async def _reset(self, partitions: tuple[TopicPartition, ...], timestamp: int) -> None:
        self._ensure_open()
        chosen = partitions or tuple(self._subscription.partitions)
        for tp in chosen:
            self._subscription.state(tp).reset(timestamp)
        self._on_moved()
        for tp in chosen:
            await self.position(tp)

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record to deliver. Waits until it is known, at most ``default_api_timeout_ms``."""
        deadline = self._env.clock.monotonic() + self._config.default_api_timeout_ms / 1000
        while True:
            self._ensure_open()
            state = self._subscription.state(partition)
            if state.has_position:
                return state.position
            if state.error is not None:
                error, state.error = state.error, None
                raise error
            left = deadline - self._env.clock.monotonic()
            if left <= 0:
                raise KafkaTimeoutError(
                    f"no position of {partition} after {self._config.default_api_timeout_ms} ms: "
                    f"{self._positions.failure or 'a request for it is not answered yet'}"
                )
            self._positions.start()
            await self._positions.settled.wait(left)

    def highwater(self, partition: TopicPartition) -> int | None:
        """The high watermark when the partition was last fetched: the offset after its last committed record."""
        self._ensure_not_closed()
        mark = self._subscription.state(partition).high_watermark
        return mark if mark >= 0 else None

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """The last stable offset when the partition was last fetched: all transactions before it are complete."""
        self._ensure_not_closed()
        offset = self._subscription.state(partition).last_stable_offset
        return offset if offset >= 0 else None

    async def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float | None = None, *, cached: bool = False
    ) -> tuple[int, int]:
        """The first offset of the partition, and its high watermark: the offset after the last record.

        The leader is asked for at most ``timeout`` seconds (default ``default_api_timeout_ms``). With ``cached`` these
        are the offsets when the partition, which must be assigned, was last fetched: -1 before that.
        """
        self._ensure_open()
        if cached:
            state = self._subscription.state(partition)
            return state.log_start_offset, state.high_watermark
        limit_ms = self._config.default_api_timeout_ms if timeout is None else timeout * 1000
        deadline = self._env.clock.monotonic() + limit_ms / 1000
        found: list[int] = []
        for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
            left_ms = max(0.0, deadline - self._env.clock.monotonic()) * 1000
            found.append((await self._queries.list_offsets({partition: timestamp}, left_ms))[partition].offset)
        return found[0], found[1]

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return await self._offsets_at(partitions, EARLIEST_TIMESTAMP)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record a consumer can read."""
        return await self._offsets_at(partitions, LATEST_TIMESTAMP)

    async def _offsets_at(self, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(partitions, timestamp))
        return {tp: answer.offset for tp, answer in found.items()}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each timestamp (ms since the Unix epoch); None if there is no such record."""
        found = await self._list_offsets(timestamps)
        return {tp: found.get(tp) for tp in timestamps}

    async def _list_offsets(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._ensure_open()
        return await self._queries.list_offsets(
            timestamps,
            self._config.default_api_timeout_ms,
            read_committed=self._config.isolation_level == "read_committed",
        )

    # ------------------------------------------------------------ commits

    def _need_link(self) -> CoordinatorLink:
        self._ensure_open()
        if self._link is None:
            raise IllegalStateError("committed offsets need a group_id")
        return self._link

    def store_offsets(self, message: ConsumerRecord[Any, Any] | None = None, *, offsets: Offsets | None = None) -> None:
        """Count ``message`` and all earlier records of its partition as processed, or those before ``offsets``.

        This needs ``enable_auto_offset_store=False``. Then only records before a stored offset are processed: for a
        commit, and in a resize for members that wait for the keys of these records. Before the first call no delivered
        record is processed. A lower offset replaces a higher one. The automatic commit of a rebalance and of ``close``
        comes before ``on_partitions_revoked``: what this callback stores is committed only if it calls ``commit``.

        Raises ``IllegalStateError``, and stores nothing, if a partition is not assigned or a record was not delivered.
        """
        self._need_link()
        if self._config.enable_auto_offset_store:
            raise IllegalStateError("store_offsets needs enable_auto_offset_store=False")
        for tp, at in to_store(message, offsets, self._subscription).items():
            self._subscription.state(tp).store(at.offset, at.leader_epoch, at.metadata)
        self._on_positions()

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit ``offsets``, or the position of every partition, or with ``store_offsets`` its stored offset.

        ``offsets`` has the next offset to read of each partition, which is that of the last processed record + 1, or a
        pair of this offset and a metadata string.

        Raises CommitFailedError if the group has rebalanced without this member. Other retriable errors are tried again
        for ``default_api_timeout_ms``. An offset for a partition that a merge has removed is dropped without an error,
        because this member may not know of the removal yet. So is an offset that a later commit has replaced.
        """
        chosen = self._to_commit(offsets)
        assert self._coordinator is not None
        await self._coordinator.commits.commit(chosen)

    def _to_commit(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets of a ``commit`` that is called at this moment."""
        self._need_link()
        assert self._coordinator is not None
        if offsets is None:
            return self._coordinator.commits.consumed()
        return to_commit(offsets, self._subscription.partitions)

    async def committed(self, partition: TopicPartition) -> int | None:
        """The offset that the group has committed for ``partition``; None without a commit."""
        found = await self._need_link().fetch_offsets([partition], self._config.default_api_timeout_ms)
        return found[partition].offset if partition in found else None

    # ------------------------------------------------------------ topics

    async def partitions_for_topic(self, topic: str) -> set[int]:
        """Ids of the topic's partitions."""
        self._ensure_open()
        self._metadata.ensure(topic)
        return set((await self._metadata.topic(topic, self._config.default_api_timeout_ms)).partitions)

    async def topics(self) -> set[str]:
        """The names of all topics, without internal ones if ``exclude_internal_topics`` is set."""
        found = (await self.list_topics()).topics
        return {name for name, topic in found.items() if not (topic.internal and self._config.exclude_internal_topics)}

    async def list_topics(self, topic: str | None = None, timeout: float | None = None) -> Cluster:
        """The brokers and all topics with their partitions, or one topic. A broker is asked for it.

        Partitions marked for deletion are included, because they are still read. Waits at most ``timeout`` seconds
        (default ``default_api_timeout_ms``).
        """
        self._ensure_open()
        limit_ms = self._config.default_api_timeout_ms if timeout is None else timeout * 1000
        return await self._metadata.describe(None if topic is None else [topic], limit_ms)
